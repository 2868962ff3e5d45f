import assert from 'node:assert/strict';
import { test } from 'node:test';
import { aligned, columns, decimate, drawnPoints, rewindings, sentence, type Points } from '../src/dashboard/chart';
import { metric } from './fakes';

function decimated(values: number[], wanted: number, positive = false): Points {
  const column = Float64Array.from(values);
  const xs = column.map((_, i) => i);
  return decimate(xs, column, column, values.length, wanted, positive);
}

const WAVE = Array.from({ length: 10_000 }, (_, i) => Math.sin(i / 50));

test('few points stay as they are', () => {
  assert.deepEqual(decimated([3, 1, 2], 10), { x: [0, 1, 2], raw: [3, 1, 2], smoothed: [3, 1, 2] });
});

test('many become about as many as wanted', () => {
  const { length } = decimated(WAVE, 500).x;
  assert.ok(length >= 250 && length <= 502, String(length));
});

test('the first and the last point stay', () => {
  const { x } = decimated(WAVE, 100);
  assert.deepEqual([x[0], x.at(-1)], [0, 9999]);
});

test('a spike stays', () => {
  const values = WAVE.map((value, i) => (i === 4321 ? 99 : value));
  assert.ok(decimated(values, 100).raw.includes(99));
});

test('places stay in order', () => {
  const { x } = decimated(WAVE, 300);
  assert.deepEqual(x, [...x].sort((a, b) => a - b));
});

test('what is not finite is a gap', () => {
  assert.deepEqual(decimated([1, NaN, Infinity, 2], 10).raw, [1, null, null, 2]);
});

test('a stretch without a finite value is a gap among many points too', () => {
  const values = WAVE.map((value, i) => (i >= 4000 && i < 6000 ? NaN : value));
  assert.ok(decimated(values, 100).raw.includes(null));
});

test('only what is above zero has a logarithm', () => {
  assert.deepEqual(decimated([1, 0, -1, 2], 10, true).raw, [1, null, null, 2]);
});

test('a line says its latest, first, lowest and highest value, and where', () => {
  const loss = metric('loss', { 1: 0.69, 2: NaN, 1100: 0.2, 1200: 0.21 });
  assert.equal(
    sentence(loss, 0, false),
    'loss: 0.2100 at step 1,200, from 0.6900; lowest 0.2000 at 1,100, highest 0.6900 at 1',
  );
  assert.match(sentence(loss, 1000, true), /^loss: 0.2100 after 3:20 min, .* at 1:40 min, .* at /);
});

test('a line without a value says nothing', () => {
  assert.equal(sentence(metric('loss', { 1: NaN }), 0, false), '');
});

test('a rewind is said, and where it was', () => {
  assert.equal(rewindings([1200, 1300], false), 'rewound at step 1,200; 1,300');
  assert.equal(rewindings([1200, 1300], true), 'rewound after 20:00 min; 21:40 min');
  assert.equal(rewindings([], false), '');
});

test('abandoned branches have columns of their own, and no line joins two of them', () => {
  const { series } = metric('loss', { 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6 });
  series.rewinds = [
    { step: 4, time: 4, kept: 2 },
    { step: 5, time: 5, kept: 4 },
  ];
  const { x, raw, kinds } = drawnPoints(series, false, 100, false);
  assert.deepEqual(x, [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(columns(raw, kinds, 3), [
    [1, 2, null, null, null, 6],
    [null, null, null, null, 5, null],
    [null, 2, 3, 4, null, null], // From where it leaves the line.
  ]);
});

test('a gap of a line with few points stays one beside a line with many', () => {
  const few: [number[], (number | null)[]] = [[2, 4, 6], [1, null, 3]];
  const many: [number[], (number | null)[]] = [[1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1, 1]];
  // Undefined is what a line goes across.
  assert.deepEqual(aligned([few, many])[1], [undefined, 1, null, null, null, 3, undefined]);
});

test('each branch of a long series has points, and all together about as many as wanted', () => {
  const { series } = metric('loss', Object.fromEntries(WAVE.map((value, i) => [i + 1, value])));
  series.rewinds = [
    { step: 9000, time: 9000, kept: 100 },
    { step: 9003, time: 9003, kept: 9000 },
  ];
  const { x } = drawnPoints(series, false, 500, false);
  assert.ok(x.length >= 250 && x.length <= 520, String(x.length));
  for (const place of [1, 100, 101, 9000, 9001, 9003, 9004, 10_000]) assert.ok(x.includes(place), String(place));
});
