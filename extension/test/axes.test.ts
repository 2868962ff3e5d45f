import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  axisWidth,
  formatLogTicks,
  formatTicks,
  formatTimeTick,
  rangeOfConstant,
  TIME_STEPS,
  sharedAxis,
  valueRange,
  WHOLE_STEPS,
} from '../src/dashboard/axes';
import { metric } from './fakes';

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

test('charts share an axis from the first place of all, or epoch, to the last', () => {
  const metrics = [metric('loss', { 1: 0.5, 1200: 0.25 }), metric('auc', { 217: 0.5 }), metric('none', {})];
  const epochs = [{ epoch: 3, step: 0, time: 0.5 }, { epoch: 4, step: 600, time: 300 }];
  const places = [{ epoch: 3, place: 0 }, { epoch: 4, place: 600 }];
  const rewinds: number[] = [];
  assert.deepEqual(sharedAxis(metrics, epochs, false), { zero: 0, from: 0, to: 1200, epochs: places, rewinds });
  assert.deepEqual(sharedAxis(metrics, [], false), { zero: 0, from: 1, to: 1200, epochs: [], rewinds });
  assert.deepEqual(sharedAxis([], [], true), { zero: 0, from: 0, to: 0, epochs: [], rewinds });
});

test('an axis has the rewinds of all lines in their order, each place once', () => {
  const metrics = [metric('a', { 1000: 0.5 }), metric('b', { 1000: 0.5 })];
  const mark = (step: number): { step: number; time: number; kept: number } => ({ step, time: 2 * step, kept: 0 });
  for (const [i, steps] of [[1300, 1200], [1200]].entries()) {
    const series = metrics[i]?.series;
    assert.ok(series);
    series.rewinds = steps.map(mark);
  }
  const axis = { zero: 0, from: 1000, to: 1300, epochs: [], rewinds: [1200, 1300] };
  assert.deepEqual(sharedAxis(metrics, [], false), axis);
  assert.deepEqual(sharedAxis(metrics, [], true), { ...axis, zero: 1000, from: 0, to: 1600, rewinds: [1400, 1600] });
});

test('by time an axis counts from its begin', () => {
  const epochs = [{ epoch: 1, step: 0, time: 995 }];
  const axis = sharedAxis([metric('loss', { 1000: 0.5, 1200: 0.25 })], epochs, true);
  assert.deepEqual(axis, { zero: 995, from: 0, to: 205, epochs: [{ epoch: 1, place: 0 }], rewinds: [] });
});

/** The range of values at 1, 2, 3, ... */
function shown(values: (number | null)[], means = false, epochs: number[] = []): unknown {
  return valueRange([{ x: values.map((_, i) => i + 1), values, means }], epochs);
}

const RAMP = Array.from({ length: 101 }, (_, i) => i / 100);

test('an outlier does not set the range, however long or short the others are', () => {
  assert.deepEqual(shown([...RAMP, 50, -50]), [0, 1]);
  assert.deepEqual(shown([...RAMP.slice(0, 19), 9]), [0, 9]); // Few.
  assert.deepEqual(shown([...RAMP.map(() => 0), 1]), [0, 1]); // An exception of a constant.
  assert.deepEqual(shown([null, 1, 2]), [1, 2]);
  assert.equal(shown([null]), null);
});

test('a line with few values is shown whole beside one with many', () => {
  const line = (values: number[]): Parameters<typeof valueRange>[0][number] => ({
    x: values.map((_, i) => i),
    values,
    means: false,
  });
  assert.deepEqual(valueRange([line(RAMP), line([7])], []), [0, 7]);
});

test('the first batches of epochs do not set the range of a mean over the epoch', () => {
  const values = Array.from({ length: 60 }, (_, i) => (i % 20 < 2 ? 0 : 500 + i));
  const epochs = [0.5, 20.5, 40.5];
  assert.deepEqual(shown(values, true), [0, 559]); // Too many to be outliers.
  assert.deepEqual(shown(values, true, epochs), [502, 559]);
  assert.deepEqual(shown(values, false, epochs), [0, 559]);
  assert.deepEqual(shown(RAMP, true, [99.5]), [0, 1]); // Before the first epoch.
  assert.deepEqual(shown(RAMP, true, [0, 2000]), [0, 1]); // All that there is.
});
