// The examples of the wire contract, in tests/monitor/fixtures/protocol.json, are taken; what does not
// fit is refused. tests/monitor/test_protocol.py has the examples for Python.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import examples from '../../tests/monitor/fixtures/protocol.json';
import { decode } from '../src/messages';
import { VERSION } from '../src/protocol';

const FULL = examples.update_full;

function reason(message: unknown): string {
  const decoded = decode(typeof message === 'string' ? message : JSON.stringify(message));
  return decoded.type === 'refused' ? decoded.reason : 'it is taken';
}

for (const name of ['update_full', 'update_small', 'reply_ok', 'reply_error', 'sources'] as const) {
  test(`the example ${name} is taken as it is`, () => {
    assert.deepEqual(decode(JSON.stringify(examples[name])), examples[name]);
  });
}

test('a message of another version is refused, whatever else is in it', () => {
  const text = `protocol ${VERSION} here, ${VERSION + 1} there`;
  assert.equal(reason({ ...FULL, version: VERSION + 1 }), text);
  assert.equal(reason({ version: VERSION + 1 }), text);
});

test('what is no message is refused', () => {
  assert.match(reason('{"type": "upd'), /not JSON/);
  assert.match(reason([FULL]), /no members/);
  assert.match(reason(null), /no members/);
  assert.match(reason({ ...FULL, type: 'toString' }), /no messages of type toString/);
  assert.match(reason(examples.hello), /no messages of type hello/);
});

const { summary, ...headless } = FULL;

const MISFITS: [where: string, message: object][] = [
  ['Update.summary', headless],
  ['Update.summary', { ...FULL, summary: null }],
  ['Update.summary.tone', { ...FULL, summary: { ...summary, tone: 'loud' } }],
  ['Update.summary.queued', { ...FULL, summary: { ...summary, queued: 1.5 } }],
  ['Update.summary.eta', { ...FULL, summary: { ...summary, eta: 'soon' } }],
  ['Update.summary.training', { ...FULL, summary: { ...summary, training: { batch: 1 } } }],
  ['Update.full', { ...FULL, full: 1 }],
  ['Update.notice', { ...FULL, notice: null }],
  ['Update.depth[0]', { ...FULL, depth: [[1, 2]] }],
  ['Update.workers[0].activity', { ...FULL, workers: [{ index: 0 }] }],
  ['Update.metrics[0].values', { ...FULL, metrics: [{ ...FULL.metrics[0], values: 'AAA' }] }],
  ['Update.controls.pause', { ...FULL, controls: { pause: true } }],
  ['Sources.sources', { ...examples.sources, sources: {} }],
  ['CommandReply.id', { ...examples.reply_ok, id: 7 }],
];

for (const [where, message] of MISFITS) {
  test(`a message that differs is refused, with the place: ${where}`, () => {
    assert.ok(reason(message).startsWith(`${where} `), reason(message));
  });
}

test('a member that is not known yet does no harm', () => {
  assert.equal(decode(JSON.stringify({ ...FULL, surprise: 1, toString: 1 })).type, 'update');
});
