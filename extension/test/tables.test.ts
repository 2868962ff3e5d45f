import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatLearningRate, parseLearningRate } from '../src/dashboard/tables';
import type { Num } from '../src/protocol';

test('a learning rate is a number of at least zero', () => {
  assert.deepEqual([' 1e-3 ', '0', '0.5'].map(parseLearningRate), [0.001, 0, 0.5]);
  for (const text of ['', ' ', '-1', 'fast', 'Infinity', 'NaN', '0,5']) {
    assert.equal(parseLearningRate(text), null);
  }
});

test('a learning rate has the digits that were set, and few of a schedule', () => {
  const shown = (learning_rate: Num, schedule: string): string =>
    formatLearningRate({ parameter: 'w', optimizer: 'SGD', learning_rate, schedule });
  const texts = [shown(0.0123456, ''), shown(1 / 30, 'Warmup'), shown('nan', 'fails')];
  assert.deepEqual(texts, ['0.0123456', '0.03333', 'NaN']);
});
