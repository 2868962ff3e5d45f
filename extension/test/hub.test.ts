import assert from 'node:assert/strict';
import test from 'node:test';

import { Connection } from '../src/connection';
import { Hub } from '../src/hub';
import { VERSION, type CommandReply, type Source, type Sources } from '../src/protocol';
import { FakeClock, FakeServer, settled, SOURCE, update } from './fakes';

function sources(...all: Source[]): Sources {
  return { type: 'sources', version: VERSION, sources: all, schedulers: [] };
}

function reply(id: string, changes: Partial<CommandReply> = {}): CommandReply {
  const about = { version: VERSION, id, coordinator: 'c1', error: '', result: '' };
  return { type: 'reply', ...about, ...changes };
}

function start() {
  const clock = new FakeClock();
  const server = new FakeServer();
  const why = () => Promise.resolve({ reason: 'off', remedy: '' });
  const connection = new Connection({ open: server.open, why, clock });
  const hub = new Hub(connection, clock);
  connection.connect();
  server.last.onopen?.();
  return { clock, server, hub, socket: server.last };
}

test('the hub knows the sources it is told', () => {
  const { hub, socket } = start();
  socket.hear(sources(SOURCE));
  assert.equal(hub.source('c1')?.notebook, 'deep/train.ipynb');
  assert.equal(hub.source('c2'), undefined);
});

test('updates go to the store of their coordinator', () => {
  const { hub, socket } = start();
  const news: string[] = [];
  hub.updated.connect((_, coordinator) => news.push(coordinator));
  socket.hear(sources(SOURCE));
  socket.hear(update());
  assert.deepEqual(news, ['c1']);
  assert.equal(hub.store('c1')?.state?.summary.queued, 7);
});

test('a store that misses an update asks for everything', () => {
  const { socket } = start();
  socket.hear(update());
  socket.hear(update({ full: false, sequence: 3 }));
  assert.deepEqual(socket.messages, [{ type: 'hello', version: VERSION }]);
});

test('a coordinator that is no longer listed is forgotten', () => {
  const { hub, socket } = start();
  socket.hear(sources(SOURCE));
  socket.hear(update());
  socket.hear(sources());
  assert.equal(hub.store('c1'), undefined);
});

test('stores outlive a broken connection', () => {
  const { clock, server, hub, socket } = start();
  socket.hear(sources(SOURCE));
  socket.hear(update());
  const store = hub.store('c1');
  socket.onclose?.();
  clock.advance(250);
  server.last.onopen?.();
  server.last.hear(sources(SOURCE));
  server.last.hear(update({ sequence: 9 }));
  assert.equal(hub.store('c1'), store);
});

test('a command ends with its reply', async () => {
  const { hub, socket } = start();
  const asked = hub.command('c1', 'checkpoint');
  assert.equal(socket.messages[0]?.['command'], 'checkpoint');
  socket.hear(reply(socket.id(0), { result: 'saved' }));
  assert.equal((await asked).result, 'saved');
});

test('replies go to the command that they answer', async () => {
  const { hub, socket } = start();
  const first = hub.command('c1', 'pause');
  const second = hub.command('c1', 'drain');
  socket.hear(reply(socket.id(1), { result: 'second' }));
  socket.hear(reply(socket.id(0), { result: 'first' }));
  assert.deepEqual([(await first).result, (await second).result], ['first', 'second']);
});

test('a command without a reply ends after ten seconds', async () => {
  const { clock, hub } = start();
  const asked = hub.command('c1', 'pause');
  clock.advance(10_000);
  assert.match((await asked).error, /10 seconds/);
});

test('a command ends when the connection breaks', async () => {
  const { hub, socket } = start();
  const asked = hub.command('c1', 'pause');
  socket.onclose?.();
  assert.match((await asked).error, /broke/);
});

test('a command says at once that the hub cannot be reached', async () => {
  const { hub, socket } = start();
  socket.onclose?.();
  assert.match((await hub.command('c1', 'pause')).error, /Not sent/);
});

test('a dashboard hears what came of its command', async () => {
  const { hub, socket } = start();
  const heard: CommandReply[] = [];
  socket.hear(update());
  hub.store('c1')?.listen({ changed: () => undefined, replied: (each) => heard.push(each) });
  hub.forward({
    type: 'command',
    version: VERSION,
    id: 'd1',
    coordinator: 'c1',
    command: 'pause',
    arguments: {},
  });
  socket.hear(reply('d1', { error: 'busy' }));
  await settled();
  assert.deepEqual(heard, [reply('d1', { error: 'busy' })]);
});

test('attaching sends the address', async () => {
  const { hub, socket } = start();
  const asked = hub.attach('http://far:8787');
  assert.equal(socket.messages[0]?.['address'], 'http://far:8787');
  socket.hear(reply(socket.id(0), { coordinator: '', error: 'nobody there' }));
  assert.equal((await asked).error, 'nobody there');
});

test('a hub of another version is said to be unreachable, and why', () => {
  const { hub, socket } = start();
  socket.hear({ ...sources(SOURCE), version: VERSION + 1 });
  assert.equal(hub.reach.state, 'unreachable');
  assert.match(hub.reach.reason, /different versions of psnb/);
  assert.equal(hub.sources.length, 0);
});

test('a message that does not fit is not taken', () => {
  const { hub, socket } = start();
  socket.hear(sources(SOURCE));
  socket.hear({ ...update(), summary: null });
  assert.equal(hub.reach.state, 'unreachable');
  assert.equal(hub.store('c1'), undefined);
});
