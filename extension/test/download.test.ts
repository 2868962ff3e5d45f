import assert from 'node:assert/strict';
import { test } from 'node:test';
import { csv } from '../src/dashboard/download';
import { Series, type MetricState } from '../src/dashboard/store';

function metric(name: string, values: number[]): MetricState {
  const series = new Series();
  values.forEach((value, i) => {
    series.steps[i] = i + 1;
    series.times[i] = 100 + i;
    series.values[i] = series.averages[i] = value;
  });
  series.length = values.length;
  return { name, count: values.length, last: 0, smoothed: 0, series, revision: 0 };
}

test('a table has a line for each point that there is', () => {
  const text = csv([metric('loss', [0.5, NaN]), metric('a "b", c', [1])]);
  assert.deepEqual(text.split('\n'), [
    'metric,step,time,value,smoothed,branch,abandoned',
    'loss,1,100,0.5,0.5,0,0',
    'loss,2,101,NaN,NaN,0,0',
    '"a ""b"", c",1,100,1,1,0,0',
    '',
  ]);
});

test('a table says of which branch a point is, and whether that was abandoned', () => {
  const loss = metric('loss', [3, 2, 1]);
  loss.series.rewinds = [{ step: 2, time: 101, kept: 100 }];
  assert.deepEqual(csv([loss]).split('\n').slice(1, 4), [
    'loss,1,100,3,3,0,0',
    'loss,2,101,2,2,0,1',
    'loss,3,102,1,1,1,0',
  ]);
});
