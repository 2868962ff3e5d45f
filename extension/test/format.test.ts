import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  formatBytes,
  formatDuration,
  formatNumber,
  formatOf,
  formatParts,
  formatRate,
  formatShare,
  formatSince,
  plural,
  webAddress,
} from '../src/dashboard/format';

test('values show about four digits', () => {
  const texts = [0, 0.5, 12345.6, 1e-5, -2e9, NaN, -Infinity].map(formatNumber);
  assert.deepEqual(texts, ['0', '0.5000', '12,346', '1.00e-5', '-2.00e+9', 'NaN', '−∞']);
});

test('parts that are done say no number before there is one', () => {
  const texts = ([[0, 0], [0, 1], [3, 16]] as [number, number][]).map(formatParts);
  assert.deepEqual(texts, ['begins', '0 of 1 part', '3 of 16 parts']);
});

test('values that are whole show all their digits and no others', () => {
  assert.deepEqual([5, 1_234_567, -3].map(formatNumber), ['5', '1,234,567', '-3']);
});

test('rates show the digits that matter', () => {
  const texts = [0, 0.25, 12.34, 123.4, 12_345, 4_560_000].map(formatRate);
  assert.deepEqual(texts, ['0', '0.25', '12.3', '123', '12.3k', '4.56M']);
});

test('bytes show their unit', () => {
  assert.deepEqual([512, 2048, 3 * 2 ** 30].map(formatBytes), ['512 B', '2.00 KiB', '3.00 GiB']);
});

test('durations show minutes and hours', () => {
  const texts = [5.25, 75, 3661, 200_000].map(formatDuration);
  assert.deepEqual(texts, ['5.3 s', '1:15 min', '1:01:01 h', '2 d 7 h']);
});

test('shares show percent, and more than all', () => {
  assert.deepEqual([0, 0.976, 1.5].map(formatShare), ['0%', '98%', '150%']);
});

test('figures that are no numbers are told as what they are', () => {
  const texts = [formatRate, formatDuration, formatShare].map((format) => format(Infinity));
  assert.deepEqual(texts, ['∞', '∞', '∞']);
});

test('nouns follow their number', () => {
  assert.deepEqual([plural(1, 'worker'), plural(1200, 'worker')], ['1 worker', '1,200 workers']);
});

test('only addresses of the web become links', () => {
  assert.equal(webAddress('http://10.0.0.1:8787/status'), 'http://10.0.0.1:8787/status');
  for (const text of ['javascript:alert(1)', ' javascript:http://', 'data:text/html,x', '']) {
    assert.equal(webAddress(text), '');
  }
});

test('a count says of how many, once that is known', () => {
  assert.deepEqual([formatOf(1200, 3600), formatOf(120, null)], ['1,200 of 3,600', '120']);
});

test('a moment has its day if that is another one', () => {
  const now = new Date(2026, 10, 26, 15, 30).getTime() / 1000;
  assert.deepEqual([formatSince(now - 3600, now), formatSince(now - 86_400, now)], ['14:30', '2026-11-25 15:30']);
});
