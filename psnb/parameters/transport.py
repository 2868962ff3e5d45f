"""How handles reach the servers: requests go out together, answers come back in order.

`Transport` is the interface; `CommTransport` carries it over Dask's own connections. A process that
runs Dask workers has one transport for all of them (`set_process_transport`), which handles use
that were unpickled there; the handles of the notebook get the strategy's.

A request names a shard; the `Directory` knows its server. All requests of a call to one server go
in one message, which the server runs without others in between. When a server does not answer, or
has the shard no more, the scheduler is asked where the shard is now, and the request is sent again:
every operation may be repeated (see `psnb.server.commits`).

Threads: any thread may call. It sends its requests itself where a connection is open, unless it is
the main thread; the event loop of the worker or client does the rest while the caller waits. A call
from that very loop would wait for itself, so it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, Protocol

import numpy as np
from distributed.core import ConnectionPool, Status
from tornado.ioloop import IOLoop

from psnb.errors import ConfigurationError, CoordinatorClosedError, PsnbError, ServerLostError
from psnb.parameters.batch import Batch, Request, lost, unreadable
from psnb.parameters.connection import CONNECT_TIMEOUT, Connection, open_connection
from psnb.placement import Directory, ServerAddress, ShardId
from psnb.stream import UnreadableError

CALL_TIMEOUT = 60.0
"""Seconds for one operation, its data's way included. A server whose process is gone is noticed at
once, one whose machine is gone after `CONNECT_TIMEOUT`, a frozen one after this."""

RETRIES = 3
"""How often an operation is tried again when its connection breaks, as in TensorFlow."""

FAILOVER_TIMEOUT = 20.0
"""Seconds in which a shard that has a copy, or is being moved, must be found elsewhere."""

_PAUSE = 0.05
"""Seconds before the first try again; twice as long before each further one, up to 0.2."""

_LOOK_AGAIN = 1.0
"""Seconds without an answer after which to ask whether the shard is elsewhere by now."""

_CLOSED = "the Dask client or worker that carries parameters was closed"


class Transport(Protocol):
    """Something that carries requests to servers."""

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Run all requests, at the same time where they can, and return their results in order.

        ``seen`` takes up how many updates of closures each shard has had that is not there yet.

        Raises
        ------
        ServerLostError
            If a server cannot be reached, or holds nothing of this strategy any more.
        SerializationError
            If arguments or results cannot be pickled, or not unpickled where they go. Requests of
            others to that server that were under way then fail with it.
        """

    def lend(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """Return an array that is not copied when it is sent to a shard's server, or None.

        Once sent it must stay as it is.
        """


class _Exchange:
    """The requests of a batch that go to one server, in one message."""

    def __init__(
        self, owner: CommTransport, batch: Batch, server: ServerAddress, positions: Sequence[int]
    ) -> None:
        self.owner, self.batch, self.server, self.positions = owner, batch, server, positions

    def message(self) -> tuple[Any, ...]:
        """Return what the server gets; see `psnb.server.actor`."""
        return self.server.key, [self.batch.operation(position) for position in self.positions]

    def answered(self, answer: tuple[Any, ...]) -> None:
        if answer[0] == "OK":
            moved = self.batch.answered(self.positions, answer[1])
            if moved:
                self.owner.moved(self.batch, moved, self.server)
        else:
            self.owner.gone(self.batch, self.positions, self.server)


class CommTransport:
    """Requests over Dask's connections, one to each address, with a time limit on each call.

    Parameters
    ----------
    loop : tornado.ioloop.IOLoop
        The event loop of the client or worker.
    pool : distributed.core.ConnectionPool
        Its connections; with it, those of this transport are closed.
    directory : Directory
        Where shards are; of the same event loop.
    """

    def __init__(self, loop: IOLoop, pool: ConnectionPool, directory: Directory) -> None:
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop  # type: ignore[attr-defined]
        self._pool, self._directory = pool, directory
        # The event loop's alone. A task for each address: done when it is connected.
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        self._open: dict[str, Connection] = {}  # those of them that any thread may send by
        self._tasks: set[asyncio.Task[None]] = set()  # what takes its time; the event loop's alone
        self._closed = False

    def close(self) -> None:
        """Hang up; any thread. Idempotent. Calls raise ServerLostError from then on."""
        self._closed = True
        # A RuntimeError: the loop is closed, and all connections with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hang_up)

    def call(  # noqa: D102 - inherited
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        try:
            if asyncio.get_running_loop() is self._loop:
                raise ConfigurationError(
                    "parameters cannot be reached from Dask's event loop: "
                    "call from a closure, a task or the notebook's thread"
                )
        except RuntimeError:
            pass  # no loop runs in this thread, as it should be
        if not requests:
            return []
        batch = Batch(requests)
        self._begin(batch)
        try:
            self._wait(batch)
        finally:
            batch.done.cancel()  # of no effect when it is done; else nobody waits any more
        return batch.results(seen)

    async def ask(self, server: ServerAddress, operation: str, timeout: float, **more: Any) -> Any:
        """Run one operation of a server itself; on the event loop.

        Raises
        ------
        ServerLostError
            If it is gone.
        TimeoutError
            If it does not answer in ``timeout`` seconds.
        """
        batch = Batch([Request(server, "", operation, more)])
        self._start(batch, [0])
        async with asyncio.timeout(timeout):
            await asyncio.wrap_future(batch.done)
        return batch.results()[0]

    def _begin(self, batch: Batch) -> None:
        if self._closed:
            raise ServerLostError("the parameter servers are gone: their strategy was closed")
        rest: Sequence[int] = range(len(batch.requests))
        # Not in the main thread, which an interrupt may stop in the middle of a message.
        if threading.current_thread() is not threading.main_thread():
            rest = self._send(batch, rest)
        try:
            if rest:
                self._loop.call_soon_threadsafe(self._start, batch, rest)
        except RuntimeError as error:
            raise CoordinatorClosedError(_CLOSED) from error

    def _wait(self, batch: Batch) -> None:
        end = time.monotonic() + CONNECT_TIMEOUT + CALL_TIMEOUT
        while True:
            try:
                batch.done.result(min(_LOOK_AGAIN, end - time.monotonic()))
                return
            except FutureTimeoutError as error:
                if time.monotonic() >= end:
                    raise ServerLostError(
                        f"no answer within {CALL_TIMEOUT:.0f} s from {batch.asked()}, or from "
                        "Dask's event loop here: one of them hangs"
                    ) from error
            with contextlib.suppress(RuntimeError):  # the loop is closed; the time will tell
                self._loop.call_soon_threadsafe(lambda: self._spawn(self._look_again(batch)))

    def _send(self, batch: Batch, positions: Iterable[int]) -> list[int]:
        """Send what can be sent at once; any thread. Returns the rest."""
        groups: dict[ServerAddress, list[int]] = {}
        rest = []
        for position in positions:
            server = self._server(batch.requests[position].to)
            if server is None or server.address not in self._open:
                rest.append(position)
            else:
                groups.setdefault(server, []).append(position)
        for server, mine in groups.items():
            connection = self._open.get(server.address)
            if connection is None:  # it broke this very moment
                rest.extend(mine)
            else:
                batch.sent(mine, server)
                connection.send(_Exchange(self, batch, server, mine))
        return rest

    def _server(self, to: ShardId | ServerAddress) -> ServerAddress | None:
        if isinstance(to, ServerAddress):
            return to
        layout = self._directory.known(to.strategy)
        return layout.places[to.number].primary if layout is not None else None

    def lend(  # noqa: D102 - inherited
        self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray | None:
        server = self._server(shard)
        connection = self._open.get(server.address) if server is not None else None
        return None if connection is None else connection.lend(shape, dtype)

    def _hang_up(self) -> None:
        self._open.clear()
        for task in self._tasks:
            task.cancel()
        connections, self._connections = self._connections, {}
        for connecting in connections.values():
            if not connecting.done():
                connecting.cancel()
            elif not connecting.cancelled() and connecting.exception() is None:
                connecting.result().close()

    # What follows runs on the event loop.

    def moved(self, batch: Batch, positions: Sequence[int], server: ServerAddress) -> None:
        """Send requests again whose shard the server has no more; it will be elsewhere soon."""
        self._spawn(self._again(batch, positions, server, None))

    def gone(self, batch: Batch, positions: Sequence[int], server: ServerAddress) -> None:
        """Send requests again, elsewhere, whose server is no more, though its process answers."""
        error = ConnectionRefusedError(
            "its strategy was closed, or its process was started again without its tables"
        )
        self._spawn(self._again(batch, positions, server, error))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine, name="psnb request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start(self, batch: Batch, positions: Iterable[int]) -> None:
        groups: dict[ServerAddress | None, list[int]] = {}
        for position in self._send(batch, positions):
            groups.setdefault(self._server(batch.requests[position].to), []).append(position)
        for server, mine in groups.items():
            way = self._find(batch, mine) if server is None else self._carry(batch, mine, server)
            self._spawn(way)

    async def _find(self, batch: Batch, positions: Sequence[int]) -> None:
        """Find out where shards are; those that are nowhere are lost."""
        with batch.failing(positions, _CLOSED):
            await self._refresh(batch, positions)
            found = [p for p in positions if self._server(batch.requests[p].to) is not None]
            for position in set(positions).difference(found):
                batch.failed([position], lost(batch.requests[position], None))
            self._start(batch, found)

    async def _refresh(self, batch: Batch, positions: Sequence[int]) -> None:
        to = [batch.requests[position].to for position in positions]
        for strategy in {each.strategy for each in to if not isinstance(each, ServerAddress)}:
            await self._directory.refresh(strategy)

    async def _carry(self, batch: Batch, positions: Sequence[int], server: ServerAddress) -> None:
        with batch.failing(positions, _CLOSED):
            address = server.address
            connecting = self._connections.get(address)
            if connecting is None:
                connecting = asyncio.create_task(self._connect(address), name="psnb connecting")
                self._connections[address] = connecting
            try:
                connection = await asyncio.shield(connecting)
            except OSError as error:  # TimeoutError among them
                if self._connections.get(address) is connecting:
                    del self._connections[address]  # the next request tries again
                await self._again(batch, positions, server, error)
            else:
                batch.sent(positions, server)
                connection.send(_Exchange(self, batch, server, positions))

    async def _connect(self, address: str) -> Connection:
        if self._pool.status != Status.running:  # it would raise RuntimeError
            raise CoordinatorClosedError(_CLOSED)
        broken = partial(self._broken, address)
        connection = await open_connection(self._pool, address, broken)
        self._open[address] = connection
        return connection

    def _broken(self, address: str, exchanges: Sequence[Any], error: OSError) -> None:
        self._connections.pop(address, None)
        self._open.pop(address, None)
        closed = self._closed or self._pool.status != Status.running
        for exchange in exchanges:
            batch, positions = exchange.batch, exchange.positions
            if closed:
                batch.failed(positions, CoordinatorClosedError(_CLOSED))
            elif isinstance(error, UnreadableError):
                for position in positions:
                    batch.failed([position], unreadable(batch.requests[position], error))
            else:
                batch.breaks += 1
                # If the process is gone, connecting again will tell.
                again = error if batch.breaks > RETRIES else None
                self._spawn(self._again(batch, positions, exchange.server, again))

    async def _again(
        self, batch: Batch, positions: Sequence[int], server: ServerAddress, error: OSError | None
    ) -> None:
        """Send requests again, to where their shards are by now.

        With an ``error``, which says that the server is not to be reached, only if they are
        elsewhere, or will be soon because there are copies.
        """
        with batch.failing(positions, _CLOSED):
            waited = batch.since_trouble()
            try:
                await self._refresh(batch, positions)
            except (OSError, PsnbError) as unknown:
                for position in positions:
                    batch.failed([position], lost(batch.requests[position], error or unknown))
                return
            hopeful = []
            for position in positions:
                request = batch.requests[position]
                there = self._server(request.to)
                known = there is not None and (there != server or error is None)
                if waited < FAILOVER_TIMEOUT and (known or self._copied(request)):
                    hopeful.append(position)
                else:
                    batch.failed([position], lost(request, error))
            if hopeful:
                await asyncio.sleep(batch.pause(_PAUSE))
                self._start(batch, hopeful)

    def _copied(self, request: Request) -> bool:
        if isinstance(request.to, ServerAddress):
            return False
        layout = self._directory.known(request.to.strategy)
        return layout is not None and layout.places[request.to.number].replica is not None

    async def _look_again(self, batch: Batch) -> None:
        waiting = batch.waiting()
        with contextlib.suppress(OSError, PsnbError):
            await self._refresh(batch, list(waiting))
            elsewhere = [
                position
                for position, server in waiting.items()
                if self._server(batch.requests[position].to) not in (server, None)
            ]
            self._start(batch, elsewhere)


_process_transport: Transport | None = None


def set_process_transport(transport: Transport | None) -> None:
    """Name the transport for handles that are unpickled in this process."""
    global _process_transport
    _process_transport = transport


def process_transport() -> Transport:
    """Return the transport of this process.

    Raises
    ------
    ConfigurationError
        If this is no process of a cluster that psnb prepared.
    """
    if _process_transport is None:
        raise ConfigurationError(
            "parameters can only be used in the notebook that made them and on the workers of its "
            "cluster; this process is neither"
        )
    return _process_transport
