import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import examples from '../../tests/monitor/fixtures/protocol.json';
import { Commands, NO_ANSWER, PATIENCE, SHOWN } from '../src/dashboard/commands';
import { Store } from '../src/dashboard/store';
import { VERSION, type Command, type Update } from '../src/protocol';

function start(): { store: Store; commands: Commands; sent: Command[] } {
  const store = new Store(() => undefined);
  store.accept(examples.update_full as unknown as Update);
  const sent: Command[] = [];
  const commands = new Commands(
    store,
    (command) => sent.push(command),
    () => undefined,
  );
  return { store, commands, sent };
}

function answer(store: Store, command: Command | undefined, error: string, result = ''): void {
  assert.ok(command);
  const { id, coordinator } = command;
  store.accept({ type: 'reply', version: VERSION, id, coordinator, error, result });
}

test('a command goes to the coordinator that is shown', () => {
  const { commands, sent } = start();
  commands.give('retire_worker', { worker: 'alice' }, 'alice');
  assert.equal(sent[0]?.coordinator, examples.update_full.coordinator);
  assert.deepEqual(sent[0].arguments, { worker: 'alice' });
  commands.dispose();
});

test('a command is under way until its answer, and not given twice', () => {
  const { store, commands, sent } = start();
  commands.give('drain');
  commands.give('drain');
  assert.equal(sent.length, 1);
  assert.ok(commands.underWay('drain'));
  answer(store, sent[0], '');
  assert.ok(!commands.underWay('drain'));
  commands.dispose();
});

test('the same command for another worker is another', () => {
  const { commands, sent } = start();
  commands.give('retire_worker', { worker: 'a' }, 'a');
  commands.give('retire_worker', { worker: 'b' }, 'b');
  assert.equal(sent.length, 2);
  commands.dispose();
});

test('what came of a command is told', () => {
  const { store, commands, sent } = start();
  const ended: boolean[] = [];
  commands.give('checkpoint', {}, '', (ok) => ended.push(ok));
  answer(store, sent[0], '', 'checkpoints/1');
  assert.deepEqual(commands.outcome, { text: 'Checkpoint: checkpoints/1', bad: false });
  commands.give('checkpoint', {}, '', (ok) => ended.push(ok));
  answer(store, sent[1], 'the disk is full');
  assert.deepEqual(commands.outcome, { text: 'Checkpoint: the disk is full', bad: true });
  assert.deepEqual(ended, [true, false]);
});

test('a success is told for some seconds, a failure until the next command', () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    const { store, commands, sent } = start();
    commands.give('add_worker');
    answer(store, sent[0], '', 'a worker is being started');
    mock.timers.tick(SHOWN - 1);
    assert.notEqual(commands.outcome.text, '');
    mock.timers.tick(1);
    assert.equal(commands.outcome.text, '');
    commands.give('add_worker');
    answer(store, sent[1], 'no room');
    mock.timers.tick(10 * SHOWN);
    assert.equal(commands.outcome.text, 'Add worker: no room');
  } finally {
    mock.timers.reset();
  }
});

test('the answer to another view is not told', () => {
  const { store, commands, sent } = start();
  const other = new Commands(
    store,
    (command) => sent.push(command),
    () => undefined,
  );
  commands.give('pause');
  answer(store, sent[0], 'no');
  assert.equal(other.outcome.text, '');
});

test('silence is told after ten seconds, and an answer that comes late all the same', () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    const { store, commands, sent } = start();
    commands.give('pause');
    mock.timers.tick(PATIENCE - 1);
    assert.equal(commands.outcome.text, '');
    mock.timers.tick(1);
    assert.equal(commands.outcome.text, `Pause: ${NO_ANSWER}`);
    answer(store, sent[0], '');
    assert.deepEqual(commands.outcome, { text: 'Pause: done', bad: false });
  } finally {
    mock.timers.reset();
  }
});

test('nothing is sent where nothing is shown', () => {
  const { store, commands, sent } = start();
  store.fail('The kernel is gone.');
  commands.give('pause');
  assert.equal(sent.length, 0);
});
