import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  describeAges,
  describeNorms,
  describeRow,
  describeRows,
  parseId,
} from '../src/dashboard/tableViews';
import type { RowFound, TableDescribed } from '../src/protocol';

const TABLE: TableDescribed = {
  table: 'items',
  rows: 1200,
  waiting: 7,
  bytes: 153_600,
  edges: [0.5, 1, 1.5],
  counts: [300, 880],
  zeros: 12,
  not_finite: 8,
  mean: 1.07,
  ages: [
    [0, 1000],
    [3, 200],
  ],
  most_used: [['18446744073709551615', 31.5]],
};

const ROW: RowFound = {
  table: 'items',
  id: '7',
  values: [0.25, 'nan'],
  norm: 1.5,
  unseen_days: 2,
  score: 31.5,
  nearest: [],
};

test('an id keeps its 64 bits, and what is no integer is none', () => {
  assert.deepEqual([' 18446744073709551615 ', '-1'].map(parseId), ['18446744073709551615', '-1']);
  for (const text of ['', ' ', '1.5', 'seven', '0x10', '1e3', '1 2', '123456789012345678901']) {
    assert.equal(parseId(text), null);
  }
});

test('a table is described in sentences', () => {
  assert.equal(
    describeRows(TABLE),
    'items: 1,200 rows, 150 KiB, 7 ids waiting for one, mean norm 1.070, 12 of zeros, ' +
      '8 with NaN or infinities',
  );
  assert.equal(
    describeNorms(TABLE),
    'Norms of rows from 0.5000 to 1.500; most, 880, from 1 to 1.500',
  );
  assert.equal(describeAges(TABLE), '0: 1,000, 3: 200');
});

test('an empty table has neither norms nor ages', () => {
  const empty: TableDescribed = {
    ...TABLE,
    ...{ rows: 0, waiting: 0, bytes: 0, edges: [], counts: [], zeros: 0, not_finite: 0 },
    ...{ mean: 'nan', ages: [], most_used: [] },
  };
  assert.deepEqual([describeRows(empty), describeAges(empty)], ['items: 0 rows, 0 B', '']);
});

test('a row is described with what is recorded of it', () => {
  assert.equal(describeRow(ROW), 'items, id 7: norm 1.500, unseen for 2 days, score 31.50');
  const unknown = { ...ROW, unseen_days: null, score: null };
  assert.equal(describeRow(unknown), 'items, id 7: norm 1.500');
});
