import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describeOutput, outputText } from '../src/dashboard/output';

const line = { time: 0, closure: 'step #3', text: 'loss 0.5' };

test('output is described by its lines and those that are not shown', () => {
  const of = (lines: (typeof line)[], left_out: number): string =>
    describeOutput({ worker: 'w', left_out, lines });
  assert.equal(of([line], 0), 'w: 1 line');
  assert.equal(of([line, line], 1200), 'w: 2 lines, after 1,200 that are not shown');
  assert.equal(of([], 0), 'w: nothing was printed');
});

test('a line has its closure and text', () => {
  const text = outputText({ worker: 'w', left_out: 0, lines: [line, line] });
  assert.match(text, /^\S+  step #3: loss 0\.5\n\S+  step #3: loss 0\.5$/);
});
