import assert from 'node:assert/strict';
import { test } from 'node:test';
import examples from '../../tests/monitor/fixtures/protocol.json';
import {
  MAX_POINTS,
  MAX_ROWS,
  Series,
  Store,
  unpack,
  type Part,
  type State,
} from '../src/dashboard/store';
import type { CommandReply, Span, Update } from '../src/protocol';
import { pack } from './fakes';

const FULL = examples.update_full as unknown as Update;
const SMALL = examples.update_small as unknown as Update;
const TIME = FULL.summary.time;

function start(): { store: Store; hellos: () => number } {
  let count = 0;
  const store = new Store(() => count++);
  store.accept(FULL);
  return { store, hellos: () => count };
}

function shown(store: Store): State {
  assert.ok(store.state);
  return store.state;
}

/** The next small update, with these parts only. */
function next(parts: Partial<Update> = {}): Update {
  const { type, version, coordinator, sequence, full, summary } = SMALL;
  return { type, version, coordinator, sequence, full, summary, ...parts };
}

function at(time: number, parts: Partial<Update> = {}): Update {
  return next({ summary: { ...SMALL.summary, time }, ...parts });
}

function failure(number: number): NonNullable<Update['failures']>[number] {
  return { number, time: TIME, worker: 'a', closure: 'f #1', error: 'E', traceback: '' };
}

test('nothing is shown before the first full update, and that is asked for', () => {
  let hellos = 0;
  const store = new Store(() => hellos++);
  store.accept(SMALL);
  assert.equal(store.state, null);
  assert.notEqual(store.problem, '');
  assert.equal(hellos, 1);
});

test('a full update brings every part', () => {
  const state = shown(start().store);
  assert.equal(state.identity, FULL.identity);
  assert.deepEqual([...state.workers.values()], FULL.workers);
  assert.deepEqual([...state.metrics.keys()], FULL.metrics?.map(({ name }) => name));
  assert.deepEqual([...state.timeline.values()].flat(), FULL.timeline);
  assert.equal(state.slices, FULL.slices);
  for (const part of ['servers', 'failures', 'events', 'optimizers', 'controls'] as const) {
    assert.deepEqual(state[part], FULL[part]);
  }
});

test('a full update replaces all that there was', () => {
  const { store } = start();
  store.accept({ ...FULL, sequence: 9, workers: [], metrics: [], failures: [], timeline: [] });
  const state = shown(store);
  assert.equal(state.workers.size + state.metrics.size + state.timeline.size, 0);
  assert.deepEqual(state.failures, []);
});

test('all series have the rewinds, and are drawn again when there are others', () => {
  const { store } = start();
  const loss = shown(store).metrics.get('loss');
  assert.ok(loss);
  const { revision } = loss;
  assert.deepEqual(loss.series.rewinds, FULL.rewinds);
  store.accept(next({ rewinds: [] }));
  assert.deepEqual(loss.series.rewinds, []);
  assert.equal(loss.revision, revision + 1);
});

test('a series has a part for what was kept, and one for what was abandoned', () => {
  const series = new Series();
  series.times.set([1, 2, 3, 4, 5]);
  series.length = 5;
  const parts = (...rewinds: [time: number, kept: number][]): unknown => {
    series.rewinds = rewinds.map(([time, kept]) => ({ step: 0, time, kept }));
    return series.parts().map(({ from, to, branch, abandoned }) => [from, to, branch, abandoned]);
  };
  assert.deepEqual(parts(), [[0, 5, 0, false]]);
  assert.deepEqual(parts([4, 2]), [[0, 2, 0, false], [2, 4, 0, true], [4, 5, 1, false]]);
  assert.deepEqual(parts([2, 0], [5, 4.5]), [[0, 2, 0, true], [2, 4, 1, false], [4, 5, 1, true]]);
  assert.deepEqual(parts([0, 0], [9, 9]), [[0, 5, 1, false]]);
});

test('a worker replaces the one with its index', () => {
  const { store } = start();
  store.accept(SMALL);
  assert.equal(shown(store).workers.get(0)?.completed, 513);
  assert.equal(shown(store).workers.size, 2);
});

test('points are appended to their series', () => {
  const { store } = start();
  store.accept(SMALL);
  const series = shown(store).metrics.get('loss')?.series;
  assert.deepEqual(series?.values.slice(0, series.length), Float64Array.of(1, 0.8, 0.7, 0.5, NaN));
});

test('numbers that JSON does not know are numbers again', () => {
  const hostile = [...shown(start().store).metrics.values()][1];
  assert.ok(Number.isNaN(hostile?.last));
  assert.equal(hostile?.smoothed, Infinity);
});

test('a span that grew replaces the one with its worker and start', () => {
  const { store } = start();
  store.accept(SMALL);
  assert.deepEqual(shown(store).timeline.get(0), SMALL.timeline);
});

test('spans are in the order of their starts however they come', () => {
  const { store } = start();
  const span = (start: number): Span => ({ worker: 5, start, end: TIME, closures: 1, failed: 0 });
  store.accept(next({ timeline: [span(TIME - 1), span(TIME - 3), span(TIME - 2)] }));
  const starts = shown(store).timeline.get(5)?.map((span) => span.start);
  assert.deepEqual(starts, [TIME - 3, TIME - 2, TIME - 1]);
});

test('spans are forgotten a minute after their end', () => {
  const { store } = start();
  store.accept(at(TIME + 52)); // They ended 7.5 and 8.75 seconds before TIME.
  assert.deepEqual([...shown(store).timeline.keys()], [0]);
  store.accept(at(TIME + 53, { sequence: 3 }));
  assert.equal(shown(store).timeline.size, 0);
});

test('the depth of the queue grows with each summary and spans a minute', () => {
  const { store } = start();
  store.accept(at(TIME + 58.75));
  const times = shown(store).depth.map(([time]) => time);
  assert.deepEqual(times, [TIME - 1, TIME - 0.5, TIME, TIME + 58.75]);
});

test('failures are appended once each and bounded', () => {
  const { store } = start();
  store.accept(next({ failures: Array.from({ length: 250 }, (_, i) => failure(i)) }));
  const numbers = shown(store).failures.map(({ number }) => number);
  assert.deepEqual(numbers, Array.from({ length: MAX_ROWS }, (_, i) => i + 50));
});

test('events are appended and bounded', () => {
  const { store } = start();
  const events = Array.from({ length: 201 }, (_, i) => ({
    time: TIME,
    kind: 'k',
    worker: '',
    message: String(i),
  }));
  store.accept(next({ events }));
  assert.equal(shown(store).events.length, MAX_ROWS);
  assert.equal(shown(store).events.at(-1)?.message, '200');
});

test('a part that is missing stays as it was and is not told of', () => {
  const { store } = start();
  const told = new Set<Part>();
  store.listen({
    changed: (parts) => {
      for (const part of parts) told.add(part);
    },
  });
  store.accept(next());
  assert.deepEqual(told, new Set<Part>(['summary', 'depth']));
  assert.deepEqual(shown(store).servers, FULL.servers);
});

test('an update that follows asks for nothing', () => {
  const { store, hellos } = start();
  store.accept(SMALL);
  assert.equal(hellos(), 0);
});

test('a gap asks for a full update once, until it comes', () => {
  const { store, hellos } = start();
  for (const sequence of [4, 5, 6]) store.accept(next({ sequence }));
  assert.equal(hellos(), 1);
  store.accept({ ...FULL, sequence: 7 });
  store.accept(next({ sequence: 8 }));
  assert.equal(hellos(), 1);
  store.accept(next({ sequence: 10 }));
  assert.equal(hellos(), 2);
});

test('a question that stays unanswered is asked again', () => {
  const { store, hellos } = start();
  for (let sequence = 4; sequence <= 24; sequence++) store.accept(next({ sequence }));
  assert.equal(hellos(), 2);
});

test('figures go on after a gap', () => {
  const { store } = start();
  store.accept(next({ sequence: 9 }));
  assert.equal(shown(store).summary.completed, 1025);
});

test('news of another coordinator are not added to this one', () => {
  const { store, hellos } = start();
  store.accept(next({ coordinator: 'another' }));
  assert.equal(shown(store).summary.completed, 1024);
  assert.equal(hellos(), 1);
});

test('one that is gone shows its last figures, its state, and why no control can be used', () => {
  const { store } = start();
  const completed = shown(store).summary.completed;
  store.end('its kernel was shut down');
  assert.equal(shown(store).summary.state, 'gone');
  assert.equal(shown(store).summary.completed, completed);
  assert.equal(shown(store).notice, 'its kernel was shut down');
  const reasons = new Set(Object.values(shown(store).controls));
  assert.deepEqual([...reasons], ['its kernel was shut down']);
});

test('nothing is known of the workers and servers of one that is gone', () => {
  const { store } = start();
  store.end('its kernel was shut down');
  const { workers, servers } = shown(store);
  const states = new Set([...workers.values(), ...servers].map(({ state, tone }) => `${state} ${tone}`));
  assert.deepEqual([...states], ['unknown quiet']);
});

test('one that was closed and is gone stays closed', () => {
  const { store } = start();
  const summary = { ...SMALL.summary, state: 'closed', tone: 'quiet' } as const;
  store.accept(next({ summary }));
  store.end('it was closed');
  assert.equal(shown(store).summary.state, 'closed');
  assert.equal(shown(store).controls.pause, 'it was closed');
});

test('one that was silent and comes back shows its own state again', () => {
  const { store, hellos } = start();
  store.end('no news for 5 s');
  store.accept(next());
  assert.equal(shown(store).summary.state, SMALL.summary.state);
  assert.equal(hellos(), 1);
  store.accept({ ...FULL, sequence: SMALL.sequence + 1 });
  assert.deepEqual(shown(store).controls, FULL.controls);
});

test('replies reach the listeners', () => {
  const { store } = start();
  const replies: CommandReply[] = [];
  store.listen({ changed: () => undefined, replied: (reply) => replies.push(reply) });
  store.accept(examples.reply_error as CommandReply);
  assert.deepEqual(replies, [examples.reply_error]);
});

test('a listener that left hears nothing', () => {
  const { store } = start();
  const leave = store.listen({
    changed: () => {
      assert.fail();
    },
  });
  leave();
  store.accept(SMALL);
});

test('names stay the text they were', () => {
  const name = FULL.workers?.[1]?.name ?? '';
  assert.match(name, /^<img/);
  assert.equal(shown(start().store).workers.get(1)?.name, name);
});

test('ten thousand points are taken in milliseconds', () => {
  const column = pack(Float64Array.from({ length: 10_000 }, (_, i) => i));
  const metric = { name: 'm', count: 1, last: 1, smoothed: 1, start: 0 };
  const points = { steps: column, times: column, values: column, averages: column };
  const { store } = start();
  const times: number[] = [];
  for (let sequence = 2; sequence < 12; sequence++) {
    const begin = performance.now();
    store.accept(next({ sequence, metrics: [{ ...metric, ...points }] }));
    times.push(performance.now() - begin);
  }
  assert.ok(Math.min(...times) < 20, `${Math.min(...times)} ms`);
});

function points(start: number, values: number[]): Parameters<Series['append']>[0] {
  const column = pack(values);
  return { start, steps: column, times: column, values: column, averages: column };
}

function values(series: Series): number[] {
  return [...series.values.subarray(0, series.length)];
}

test('what was packed is unpacked', () => {
  const numbers = [0, -1.5, 1e300, NaN, Infinity, -Infinity];
  assert.deepEqual([...unpack(pack(numbers))], numbers);
});

test('a series is packed as little-endian float64', () => {
  assert.deepEqual([...unpack('AAAAAAAA8D8=')], [1]);
});

test('points are appended past the first capacity', () => {
  const series = new Series();
  const all = Array.from({ length: 1000 }, (_, i) => i);
  series.append(points(0, all.slice(0, 200)));
  series.append(points(200, all.slice(200)));
  assert.deepEqual(values(series), all);
});

test('points from the start replace all', () => {
  const series = new Series();
  series.append(points(0, [1, 2, 3]));
  series.append(points(0, [4]));
  assert.deepEqual(values(series), [4]);
});

test('points that are there already are left out', () => {
  const series = new Series();
  series.append(points(0, [1, 2, 3]));
  series.append(points(1, [2, 3, 4]));
  assert.deepEqual(values(series), [1, 2, 3, 4]);
});

test('a series goes on where points were missed', () => {
  const series = new Series();
  series.append(points(0, [1]));
  series.append(points(5, [6]));
  series.append(points(6, [7]));
  assert.deepEqual(values(series), [1, 6, 7]);
});

test('a series that is too long loses every second point', () => {
  const series = new Series();
  series.append(points(0, Array.from({ length: MAX_POINTS }, (_, i) => i)));
  series.append(points(MAX_POINTS, [MAX_POINTS]));
  assert.equal(series.length, MAX_POINTS / 2);
  assert.deepEqual(values(series).slice(0, 3), [1, 3, 5]);
  assert.equal(series.total, MAX_POINTS + 1);
});

test('a series knows whether all its values are whole', () => {
  const series = new Series();
  series.append(points(0, [1, NaN, 3]));
  assert.ok(series.whole);
  series.append(points(3, [4.5]));
  assert.ok(!series.whole);
  series.append(points(0, [1]));
  assert.ok(series.whole);
});

test('the point at a place is the last one that is not after it', () => {
  const series = new Series();
  series.append({ ...points(0, [10, 20, 30]), times: pack([1, 2.5, 2.5]) });
  assert.deepEqual([5, 10, 29, 99].map((step) => series.at(step, false)), [-1, 0, 1, 2]);
  assert.deepEqual([0.5, 1, 2.4, 2.5].map((time) => series.at(time, true)), [-1, 0, 0, 2]);
});
