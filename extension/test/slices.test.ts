import assert from 'node:assert/strict';
import { test } from 'node:test';
import { slicesNote } from '../src/dashboard/slices';
import type { Slices } from '../src/protocol';

const row = { slice: 'DE', value: 0.5, examples: 3 };

test('a table says of how many slices its rows are the worst', () => {
  const slices = (count: number): Slices => ({ metric: 'auc', count, rows: [row], others: null });
  assert.deepEqual([1, 1200].map((count) => slicesNote(slices(count))), [
    '1 slice',
    'the worst 1 of 1,200 slices',
  ]);
});
