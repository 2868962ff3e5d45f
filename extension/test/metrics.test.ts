import assert from 'node:assert/strict';
import { test } from 'node:test';
import { charted, grouped, matching } from '../src/dashboard/metrics';

test('metrics are grouped by what is before their first slash, in their order', () => {
  const names = ['loss', 'train/loss', 'val/loss', 'train/layer/norm', 'auc', '/odd'];
  assert.deepEqual(
    [...grouped(names)],
    [
      ['', ['loss', 'auc']],
      ['train/', ['train/loss', 'train/layer/norm']],
      ['val/', ['val/loss']],
      ['/', ['/odd']],
    ],
  );
});

test('validation is drawn with its metric, and what says nothing of the model last', () => {
  const names = ['programs', 'loss', 'auc', 'val_auc', 'train/auc', 'val_train/auc', 'val_alone'];
  assert.deepEqual(
    [...charted(names)],
    [
      ['loss', ['loss']],
      ['auc', ['auc', 'val_auc']],
      ['train/auc', ['train/auc', 'val_train/auc']],
      ['val_alone', ['val_alone']],
      ['programs', ['programs']],
    ],
  );
});

test('a filter finds names that have all its words', () => {
  const names = ['train/Loss', 'val/loss', 'train/auc'];
  assert.deepEqual(matching(names, 'loss'), ['train/Loss', 'val/loss']);
  assert.deepEqual(matching(names, ' LOSS  tr '), ['train/Loss']);
  assert.deepEqual(matching(names, ''), names);
  assert.deepEqual(matching(names, 'x'), []);
});
