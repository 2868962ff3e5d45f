import assert from 'node:assert/strict';
import { test } from 'node:test';
import { over } from '../src/comparing';
import { Series, type MetricState } from '../src/dashboard/store';

function metric(name: string, begin: number): MetricState {
  const series = new Series();
  series.times.set([begin, begin + 1]);
  series.length = 2;
  return { name, count: 2, last: 1, smoothed: 1, series, revision: 3 };
}

const runs = [
  { name: 'a', metrics: new Map([['loss', metric('loss', 100)], ['auc', metric('auc', 105)]]) },
  { name: 'a', metrics: new Map([['loss', metric('loss', 900)], ['programs', metric('programs', 1)]]) },
];

test('each metric has a line for each run, in their order, with names that differ', () => {
  const found = over(runs, false);
  assert.deepEqual([...found.keys()], ['loss', 'auc']);
  for (const lines of found.values()) {
    assert.deepEqual(lines.map(({ name }) => name), ['a', 'a (2)']);
  }
  assert.equal(found.get('auc')?.[1]?.series.length, 0);
  assert.equal(found.get('auc')?.[1]?.last, null); // A dash, and no NaN: nothing went wrong.
  assert.equal(found.get('loss')?.[1]?.series.times[0], 900);
});

test('by time runs begin together, and what is kept of them does not change', () => {
  const later = { name: 'b', metrics: new Map([['loss', metric('loss', 900)]]) };
  const found = over([...runs.slice(0, 1), later], true);
  const begins = (name: string): (number | undefined)[] =>
    (found.get(name) ?? []).map(({ series }) => series.times[0]);
  assert.deepEqual(begins('loss'), [0, 0]);
  assert.equal(begins('auc')[0], 5);
  assert.equal(runs[0]?.metrics.get('loss')?.series.times[0], 100);
});

test('each run has its own rewinds, by time from its begin', () => {
  const rewound = metric('loss', 900);
  rewound.series.rewinds = [{ step: 1, time: 901, kept: 900 }];
  const found = [...runs.slice(0, 1), { name: 'b', metrics: new Map([['loss', rewound]]) }];
  for (const byTime of [false, true]) {
    const abandoned = over(found, byTime)
      .get('loss')
      ?.map(({ series }) => series.parts().map((part) => part.abandoned));
    assert.deepEqual(abandoned, [[false], [false, true]]);
  }
});
