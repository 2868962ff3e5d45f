import assert from 'node:assert/strict';
import test from 'node:test';

import { Connection, pause, type Reach } from '../src/connection';
import { FakeClock, FakeServer, settled } from './fakes';

const OBSTACLE = { reason: 'It is off.', remedy: 'switch it on' };

function connect() {
  const clock = new FakeClock();
  const server = new FakeServer();
  const why = () => Promise.resolve(OBSTACLE);
  const connection = new Connection({ open: server.open, why, clock });
  const reaches: Reach[] = [];
  connection.changed.connect((_, reach) => reaches.push(reach));
  connection.connect();
  return { clock, server, connection, reaches };
}

test('pauses double up to ten seconds', () => {
  assert.deepEqual(
    [1, 2, 3, 4, 5, 6, 7, 50].map(pause),
    [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000],
  );
});

test('a socket that opens makes it connected', () => {
  const { server, reaches } = connect();
  server.last.onopen?.();
  assert.deepEqual(reaches, [{ state: 'connected' }]);
});

test('a lost connection comes back after the first pause', () => {
  const { clock, server, connection } = connect();
  server.last.onopen?.();
  server.last.onclose?.();
  assert.equal(connection.reach.state, 'connecting');
  clock.advance(249);
  assert.equal(server.sockets.length, 1);
  clock.advance(1);
  server.last.onopen?.();
  assert.equal(server.sockets.length, 2);
  assert.equal(connection.reach.state, 'connected');
});

test('attempts that fail are further and further apart until one opens', () => {
  const { clock, server } = connect();
  for (const milliseconds of [250, 500, 1000]) {
    server.last.onclose?.();
    assert.deepEqual(clock.waiting, [milliseconds]);
    clock.advance(milliseconds);
  }
  server.last.onopen?.();
  server.last.onclose?.();
  assert.deepEqual(clock.waiting, [250]);
});

test('an attempt that fails tells why', async () => {
  const { server, connection } = connect();
  server.last.onclose?.();
  await settled();
  assert.deepEqual(connection.reach, { state: 'unreachable', ...OBSTACLE });
});

test('an explanation that comes after the connection is back is not told', async () => {
  const { clock, server, connection } = connect();
  server.last.onclose?.();
  clock.advance(250);
  server.last.onopen?.();
  await settled();
  assert.equal(connection.reach.state, 'connected');
});

test('people can try at once instead of waiting', () => {
  const { clock, server, connection } = connect();
  server.last.onclose?.();
  connection.connect();
  assert.equal(server.sockets.length, 2);
  assert.deepEqual(clock.waiting, []);
});

test('nothing is sent before the socket is open', () => {
  const { server, connection } = connect();
  assert.equal(connection.send('too early'), false);
  server.last.onopen?.();
  assert.equal(connection.send('now'), true);
  assert.deepEqual(server.last.sent, ['now']);
});

test('after disposal nothing is opened again', () => {
  const { clock, server, connection } = connect();
  const socket = server.last;
  socket.onopen?.();
  connection.dispose();
  assert.ok(socket.closed);
  assert.equal(socket.onclose, null);
  assert.deepEqual(clock.waiting, []);
});
