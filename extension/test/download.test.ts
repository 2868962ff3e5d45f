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
    'metric,step,time,value,smoothed',
    'loss,1,100,0.5,0.5',
    'loss,2,101,NaN,NaN',
    '"a ""b"", c",1,100,1,1',
    '',
  ]);
});
