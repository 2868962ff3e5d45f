import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  axisWidth,
  formatLogTicks,
  formatTicks,
  formatTimeTick,
  rangeOfConstant,
  TIME_STEPS,
  WHOLE_STEPS,
} from '../src/dashboard/axes';

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
