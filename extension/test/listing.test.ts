import assert from 'node:assert/strict';
import test from 'node:test';

import { Store } from '../src/dashboard/store';
import { blank, rows, sourcesOf, statusText } from '../src/listing';
import type { Identity, Source, Update } from '../src/protocol';
import { SOURCE, update } from './fakes';

const IDENTITY: Identity = {
  name: 'wide-and-deep',
  kernel: 'k1',
  process: 1,
  host: 'here',
  cluster: 'tcp://127.0.0.1:8786',
  cluster_id: 'Scheduler-5f2e1a0c-77',
  cluster_started: 500,
  dashboard: 'http://127.0.0.1:8787/status',
  started: 0,
};

function only(source: Source, message?: Update) {
  const store = new Store(() => undefined);
  if (message) store.accept(message);
  const [row] = rows(
    [source],
    () => (message ? store : undefined),
    () => 'Python 3',
    60,
  );
  assert.ok(row);
  return row;
}

test('a row is called by its name and tells notebook, kernel and cluster', () => {
  const row = only(SOURCE, update({ identity: IDENTITY }));
  assert.equal(row.title, 'wide-and-deep');
  assert.equal(row.file, 'train.ipynb');
  assert.equal(row.kernel, 'Python 3');
  assert.equal(row.cluster, 'tcp://127.0.0.1:8786');
  assert.match(row.clusterSince, /^5f2e1a0c, since \d\d:\d\d$/);
});

test('a row of which the cluster is not known says nothing of it', () => {
  assert.equal(only(SOURCE).clusterSince, '');
});

test('a row tells how far training is, and what was lost', () => {
  const { summary } = update();
  const figures = (changes: Partial<typeof summary>): string[] =>
    only(SOURCE, update({ summary: { ...summary, ...changes } })).figures.map(
      ({ value, label, alarming }) => `${value} ${label}${alarming ? '!' : ''}`,
    );
  const training = { epoch: 3, epochs: 100, batch: 120, batches: 360, validating: null };
  assert.equal(figures({ training })[0], '3 of 100 epochs');
  const validating: [number, number] = [3, 16];
  const both = ['3 of 100 epochs', '3 of 16 parts validated'];
  assert.deepEqual(figures({ training: { ...training, validating } }).slice(0, 2), both);
  const one = { epoch: null, epochs: null, batch: 120, batches: null, validating: null };
  assert.equal(figures({ training: one })[0], '120 batches');
  const lost = figures({ workers_lost: 2, servers_lost: 1 });
  assert.deepEqual(lost.slice(-2), ['2 workers lost!', '1 server lost!']);
});

test('two of one name keep it, and are told apart by their processes', () => {
  const sources = [
    { ...SOURCE, coordinator: 'c1' },
    { ...SOURCE, coordinator: 'c2' },
    { ...SOURCE, coordinator: 'c3' },
  ];
  const names = ['flights', 'flights', 'taxis'];
  const stores = new Map(
    sources.map(({ coordinator }, i) => {
      const store = new Store(() => undefined);
      const identity = { ...IDENTITY, name: names[i] ?? '', process: 100 + i };
      store.accept(update({ coordinator, identity }));
      return [coordinator, store];
    }),
  );
  const found = rows(sources, (coordinator) => stores.get(coordinator), () => 'Python 3', 60);
  assert.deepEqual(
    found.map(({ title, kernel }) => [title, kernel]),
    [
      ['flights', 'Python 3, process 100 on here'],
      ['flights', 'Python 3, process 101 on here'],
      ['taxis', 'Python 3'],
    ],
  );
});

test('a coordinator that has not told its name is called after its notebook', () => {
  assert.equal(only(SOURCE).title, 'train.ipynb');
});

test('what runs comes first, then the newest', () => {
  const stores = new Map<string, Store>();
  const sources = [
    { coordinator: 'old and idle', started: 1, queued: 0 },
    { coordinator: 'old and running', started: 1, queued: 5 },
    { coordinator: 'new and idle', started: 2, queued: 0 },
  ].map(({ coordinator, started, queued }) => {
    const store = new Store(() => undefined);
    const summary = { ...update().summary, queued, in_flight: 0 };
    store.accept(update({ coordinator, summary, identity: { ...IDENTITY, started } }));
    stores.set(coordinator, store);
    return { ...SOURCE, coordinator };
  });
  const order = rows(
    sources,
    (coordinator) => stores.get(coordinator),
    () => '',
    60,
  ).map(({ coordinator }) => coordinator);
  assert.deepEqual(order, ['old and running', 'new and idle', 'old and idle']);
});

test('examples a second appear only if there are some', () => {
  const labels = (message: Update) => only(SOURCE, message).figures.map(({ label }) => label);
  const { summary } = update();
  assert.deepEqual(labels(update()), ['closures/s', 'queued', 'in flight']);
  assert.deepEqual(labels(update({ summary: { ...summary, examples_per_second: 5 } })), [
    'closures/s',
    'examples/s',
    'queued',
    'in flight',
  ]);
});

test('a rate that is no number is told as what it is', () => {
  const { summary } = update();
  const row = only(SOURCE, update({ summary: { ...summary, examples_per_second: 'inf' } }));
  assert.deepEqual(
    row.figures.map(({ value }) => value),
    ['120', '∞', '7', '3'],
  );
});

test('the line of the queue shows as much of the past as is set', () => {
  const store = new Store(() => undefined);
  store.accept(
    update({
      depth: [
        [960, 1, 0],
        [985, 2, 0],
        [1000, 7, 3],
      ],
    }),
  );
  const queue = (seconds: number) =>
    rows(
      [SOURCE],
      () => store,
      () => '',
      seconds,
    )[0]?.queue;
  assert.deepEqual(
    [queue(60), queue(20)],
    [
      [1, 2, 7],
      [2, 7],
    ],
  );
});

test('failures alarm', () => {
  const { summary } = update();
  const { figures } = only(SOURCE, update({ summary: { ...summary, failed: 2 } }));
  assert.deepEqual(figures.at(-1), { value: '2', label: 'failed', alarming: true });
});

test('what runs can be paused and what is paused resumed', () => {
  assert.equal(only(SOURCE, update()).control.command, 'pause');
  const paused = update({ controls: { pause: 'it is paused already', resume: '' } });
  assert.equal(only(SOURCE, paused).control.command, 'resume');
});

test('a control that the source does not take is disabled for the reason it gives', () => {
  const row = only(SOURCE, update({ controls: { pause: 'Only its own process can.' } }));
  assert.equal(row.control.why, 'Only its own process can.');
});

test('a coordinator that is gone says why, cannot be paused and comes last', () => {
  const gone = { ...SOURCE, coordinator: 'a', notebook: 'a.ipynb', gone: 'Its kernel has died.' };
  const row = only(gone);
  assert.deepEqual([row.state, row.notice, row.control.why], ['gone', gone.gone, gone.gone]);
  const order = rows(
    [gone, SOURCE],
    () => undefined,
    () => '',
    60,
  ).map(({ title }) => title);
  assert.deepEqual(order, ['train.ipynb', 'a.ipynb']);
});

test('a coordinator without news says so', () => {
  assert.match(only(SOURCE).notice, /has sent nothing yet/);
});

test('only addresses of the web become links', () => {
  const hostile = { ...IDENTITY, dashboard: 'javascript:alert(1)' };
  assert.equal(only(SOURCE, update({ identity: hostile })).dashboard, '');
  assert.equal(only(SOURCE, update({ identity: IDENTITY })).dashboard, IDENTITY.dashboard);
});

test('a coordinator whose state is not known shows a reason instead of figures', () => {
  const row = only(SOURCE, update({ full: false }));
  assert.deepEqual(row.figures, []);
  assert.equal(row.notice, 'Waiting for the coordinator.');
});

test('an empty list says how to start, an unreachable hub what stands in the way', () => {
  assert.match(blank({ state: 'connected' }, 0)?.remedy ?? '', /ClusterCoordinator/);
  assert.equal(blank({ state: 'connected' }, 1), null);
  const off = { state: 'unreachable', reason: 'off', remedy: 'switch it on' } as const;
  assert.deepEqual(blank(off, 1), { ...off, title: 'Hub unreachable', retry: true });
});

test('the status bar says first what somebody must do something about', () => {
  const idle = { state: 'idle', tone: 'good' as const, queued: 0, in_flight: 2 };
  const lost = { state: 'parameters lost', tone: 'bad' as const, queued: 1, in_flight: 0 };
  assert.equal(statusText([idle]), 'psnb: 0 queued, 2 in flight');
  assert.equal(statusText([idle, lost, lost]), 'psnb: parameters lost, 2 queued, 2 in flight');
});

const OTHER = { ...SOURCE, coordinator: 'c2', kernel: 'k2' };

test('a notebook has the coordinators of its kernel, not those of an earlier one', () => {
  assert.deepEqual(sourcesOf({ path: SOURCE.notebook, kernel: 'k2' }, [SOURCE, OTHER]), [OTHER]);
});

test('a notebook whose kernel is not known yet has those of its path', () => {
  assert.deepEqual(sourcesOf({ path: SOURCE.notebook, kernel: '' }, [SOURCE]), [SOURCE]);
});

test('what is gone does not count, nor does anything without a document', () => {
  assert.deepEqual(sourcesOf({ path: '', kernel: 'k1' }, [{ ...SOURCE, gone: 'died' }]), []);
  assert.deepEqual(sourcesOf(null, [SOURCE]), []);
});
