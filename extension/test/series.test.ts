import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MAX_POINTS, pack, Series, unpack } from '../src/dashboard/series';

function points(start: number, values: number[]): Parameters<Series['append']>[0] {
  const column = pack(values);
  return { start, steps: column, times: column, values: column, averages: column };
}

function values(series: Series): number[] {
  return [...series.values.subarray(0, series.length)];
}

test('what was packed is unpacked', () => {
  const numbers = [0, -1.5, 1e300, NaN, Infinity, -Infinity];
  assert.deepEqual([...unpack(pack(numbers))], numbers);
});

test('a series is packed as little-endian float64', () => {
  assert.equal(pack([1]), 'AAAAAAAA8D8=');
});

test('points are appended past the first capacity', () => {
  const series = new Series();
  const all = Array.from({ length: 1000 }, (_, i) => i);
  series.append(points(0, all.slice(0, 200)));
  series.append(points(200, all.slice(200)));
  assert.deepEqual(values(series), all);
});

test('points from the start replace all', () => {
  const series = new Series();
  series.append(points(0, [1, 2, 3]));
  series.append(points(0, [4]));
  assert.deepEqual(values(series), [4]);
});

test('points that are there already are left out', () => {
  const series = new Series();
  series.append(points(0, [1, 2, 3]));
  series.append(points(1, [2, 3, 4]));
  assert.deepEqual(values(series), [1, 2, 3, 4]);
});

test('a series goes on where points were missed', () => {
  const series = new Series();
  series.append(points(0, [1]));
  series.append(points(5, [6]));
  series.append(points(6, [7]));
  assert.deepEqual(values(series), [1, 6, 7]);
});

test('a series that is too long loses every second point', () => {
  const series = new Series();
  series.append(points(0, Array.from({ length: MAX_POINTS }, (_, i) => i)));
  series.append(points(MAX_POINTS, [MAX_POINTS]));
  assert.equal(series.length, MAX_POINTS / 2);
  assert.deepEqual(values(series).slice(0, 3), [1, 3, 5]);
  assert.equal(series.total, MAX_POINTS + 1);
});

test('a series knows whether all its values are whole', () => {
  const series = new Series();
  series.append(points(0, [1, NaN, 3]));
  assert.ok(series.whole);
  series.append(points(3, [4.5]));
  assert.ok(!series.whole);
  series.append(points(0, [1]));
  assert.ok(series.whole);
});

test('the point at a place is the last one that is not after it', () => {
  const series = new Series();
  series.append({ ...points(0, [10, 20, 30]), times: pack([1, 2.5, 2.5]) });
  assert.deepEqual([5, 10, 29, 99].map((step) => series.at(step, false)), [-1, 0, 1, 2]);
  assert.deepEqual([0.5, 1, 2.4, 2.5].map((time) => series.at(time, true)), [-1, 0, 0, 2]);
});
