import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decimate, rewindings, sentence, type Points } from '../src/dashboard/chart';
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

test('a rewind is said, and where it was; epochs are not', () => {
  const epochs = [0, 1200, 1300].map((place, i) => ({ epoch: Number(!i), place }));
  assert.equal(rewindings(epochs, false), 'rewound at step 1,200; 1,300');
  assert.equal(rewindings(epochs, true), 'rewound after 20:00 min; 21:40 min');
  assert.equal(rewindings(epochs.slice(0, 1), false), '');
});
