import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  axisWidth,
  decimate,
  formatLogTicks,
  formatTicks,
  formatTimeTick,
  rangeOfConstant,
  TIME_STEPS,
  WHOLE_STEPS,
  type Points,
} from '../src/dashboard/chart';

test('ticks of whole numbers have separators and no decimals', () => {
  assert.deepEqual(formatTicks([0, 5, 10], 5), ['0', '5', '10']);
  assert.deepEqual(formatTicks([1_000_000, 1_200_000], 200_000), ['1,000,000', '1,200,000']);
});

test('ticks between whole numbers have the same decimals', () => {
  assert.deepEqual(formatTicks([-0, 0.5, 1], 0.5), ['0.0', '0.5', '1.0']);
  assert.deepEqual(formatTicks([0.4, 0.425], 0.025), ['0.400', '0.425']);
  assert.deepEqual(formatTicks([0.1 + 0.2], 0.1), ['0.3']);
});

test('ticks that would be too long have an exponent', () => {
  assert.deepEqual(formatTicks([0, 2e9], 1e9), ['0', '2e9']);
  assert.deepEqual(formatTicks([1e-8, 1.5e-8], 5e-9), ['1e-8', '1.5e-8']);
});

test('ticks of a logarithmic axis say what they are, or nothing', () => {
  const texts = formatLogTicks([1e-4, 0.01, null, 100, 1e6]);
  assert.deepEqual(texts, ['1e-4', '0.01', '', '100', '1,000,000']);
});

test('ticks of time are seconds, then minutes', () => {
  assert.deepEqual([0, 0.5, 45, 90].map(formatTimeTick), ['0 s', '0.5 s', '45 s', '1:30 min']);
});

test('steps between ticks ascend', () => {
  for (const steps of [WHOLE_STEPS, TIME_STEPS]) {
    assert.deepEqual(steps, [...new Set(steps)].sort((a, b) => a - b));
  }
  assert.ok(WHOLE_STEPS.every(Number.isInteger));
});

test('a constant is in the middle of a small range', () => {
  assert.deepEqual(rangeOfConstant(5, 5, true), [4, 6]);
  assert.deepEqual(rangeOfConstant(0, 0, false), [-1, 1]);
  assert.deepEqual(rangeOfConstant(-200, -200, false), [-220, -180]);
  assert.deepEqual(rangeOfConstant(1000, 1000, true), [900, 1100]);
});

test('what differs by rounding alone is a constant', () => {
  assert.notEqual(rangeOfConstant(0.3, 0.1 + 0.2, false), null);
  assert.equal(rangeOfConstant(0.3, 0.301, false), null);
});

test('an axis is as wide as its widest label, in steps', () => {
  const measure = (text: string): number => 6 * text.length;
  assert.equal(axisWidth([], measure), 40);
  assert.equal(axisWidth(['0', '1,000,000'], measure), 70);
  assert.equal(axisWidth(['0', '1,000'], measure), axisWidth(['0', '10'], measure) + 10);
});

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
