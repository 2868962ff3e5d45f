"""How handles reach the servers: requests go out together, answers come back in order.

`Transport` is the interface; `CommTransport` carries it over Dask's own connections. A process that
runs Dask workers has one transport for all of them (`set_process_transport`), which handles use
that were unpickled there; the handles of the notebook get the strategy's.

Threads: any thread may call. It sends its requests itself where a connection is open, unless it is
the main thread; the event loop of the worker or client does the rest while the caller waits. A call
from that very loop would wait for itself, so it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from distributed.core import ConnectionPool, Status
from distributed.protocol.pickle import dumps as cloudpickled
from tornado.ioloop import IOLoop

from psnb.errors import ConfigurationError, CoordinatorClosedError, ServerLostError
from psnb.parameters.connection import Connection, open_connection

CONNECT_TIMEOUT = 5.0
"""Seconds to reach a server that is not connected yet."""

CALL_TIMEOUT = 60.0
"""Seconds for one operation, its data's way included. A server whose process is gone is noticed at
once, one whose machine is gone after `CONNECT_TIMEOUT`, a frozen one after this."""

RETRIES = 3
"""How often an operation is tried again when its connection breaks, as in TensorFlow."""

_RETRY_PAUSE = 0.1

_REPEATABLE = frozenset(
    {"read", "gather", "lookup", "preview", "state", "load", "statistics", "commit"}
    | {"describe_rows", "optimizer", "read_many", "row_use", "skipped", "tune"}
)
"""Operations that may run twice: the others may have been done when their connection broke."""

_DESCRIPTIVE = frozenset({"create_dense", "create_sparse", "tune"})
"""Operations whose arguments may be of classes that a notebook defines."""

_CLOSED = "the Dask client or worker that carries parameters was closed"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a parameter server lives.

    Attributes
    ----------
    address : str
        Address of its Dask worker.
    key : str
        Key of its actor there: tells a server from a later one at the same address.
    """

    address: str
    key: str


@dataclass(frozen=True, slots=True)
class Request:
    """One operation on one shard."""

    server: ServerAddress
    table: str
    operation: str
    arguments: Mapping[str, Any]


class Transport(Protocol):
    """Something that carries requests to servers."""

    def call(self, requests: Sequence[Request]) -> list[Any]:
        """Run all requests, at the same time where they can, and return their results in order.

        Raises
        ------
        ServerLostError
            If a server cannot be reached, or holds nothing of this strategy any more.
        """

    def lend(
        self, server: ServerAddress, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray | None:
        """Return an array that is not copied when it is sent to a server, or None.

        Once sent it must stay as it is.
        """


class _Batch:
    """The requests of one call: answers come on the event loop, one thread waits for the last."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.done: Future[None] = Future()
        self.exchanges = [_Exchange(request, self) for request in requests]
        self._missing = len(requests)

    def answered(self) -> None:
        self._missing -= 1
        if not self._missing and not self.done.cancelled():
            self.done.set_result(None)

    def results(self) -> list[Any]:
        # Exchanges and batch refer to each other: the arrays must not wait for the collector.
        exchanges, self.exchanges = self.exchanges, []
        return [exchange.result() for exchange in exchanges]


class _Exchange:
    """A request of a batch, and what came of it."""

    def __init__(self, request: Request, batch: _Batch) -> None:
        self.request, self._batch = request, batch
        self.retries = RETRIES if request.operation in _REPEATABLE else 0
        self._answer: tuple[Any, ...] = ()
        self._error: Exception | None = None

    def message(self) -> tuple[Any, ...]:
        """Return what the server gets; see `psnb.server.actor`."""
        each = self.request
        arguments: Any = each.arguments
        if each.operation in _DESCRIPTIVE:
            arguments = cloudpickled(arguments)
        return each.server.key, each.table, each.operation, arguments

    def answered(self, answer: tuple[Any, ...]) -> None:
        self._answer = answer
        self._batch.answered()

    def failed(self, error: Exception) -> None:
        self._error = error
        self._batch.answered()

    def result(self) -> Any:
        """Return the result or raise what the server, or the way there, gave instead of one."""
        request, server = self.request, self.request.server
        where = f"parameter server {server.key} at {server.address}"
        what = f"({request.operation} of {request.table!r})"
        if isinstance(self._error, OSError):  # TimeoutError among them
            raise ServerLostError(
                f"{where} does not answer {what}: {self._error}. What it held is lost: make a new "
                "strategy and restore the last checkpoint"
            ) from self._error
        if self._error is not None:
            raise self._error
        status, *rest = self._answer
        if status == "lost":
            raise ServerLostError(
                f"{where} is gone {what}: its strategy was closed, or its process was restarted "
                "without its tables"
            )
        if status == "error":
            raise rest[0]
        return rest[0]


class CommTransport:
    """Requests over Dask's connections, one to each address, with a time limit on each call.

    Parameters
    ----------
    loop : tornado.ioloop.IOLoop
        The event loop of the client or worker.
    pool : distributed.core.ConnectionPool
        Its connections; with it, those of this transport are closed.
    """

    def __init__(self, loop: IOLoop, pool: ConnectionPool) -> None:
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop  # type: ignore[attr-defined]
        self._pool = pool
        # The event loop's alone. A task for each address: done when it is connected.
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        self._open: dict[str, Connection] = {}  # those of them that any thread may send by
        self._closed = False

    def close(self) -> None:
        """Hang up; any thread. Idempotent. Calls raise ServerLostError from then on."""
        self._closed = True
        # A RuntimeError: the loop is closed, and all connections with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hang_up)

    def call(self, requests: Sequence[Request]) -> list[Any]:  # noqa: D102 - inherited
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
        if self._closed:
            raise ServerLostError("the parameter servers are gone: their strategy was closed")
        batch = _Batch(requests)
        rest = batch.exchanges
        # Not in the main thread, which an interrupt may stop in the middle of a message.
        if threading.current_thread() is not threading.main_thread():
            rest = [exchange for exchange in rest if not self._send_at_once(exchange)]
        try:
            if rest:
                self._loop.call_soon_threadsafe(self._start, rest)
        except RuntimeError as error:
            raise CoordinatorClosedError(_CLOSED) from error
        try:
            batch.done.result(CONNECT_TIMEOUT + CALL_TIMEOUT)
        except FutureTimeoutError as error:
            asked = ", ".join(sorted({request.server.address for request in requests}))
            raise ServerLostError(
                f"no answer within {CALL_TIMEOUT:.0f} s from the parameter servers at {asked}, or "
                "from Dask's event loop here: one of them hangs"
            ) from error
        finally:
            batch.done.cancel()  # of no effect when it is done; else nobody waits any more
        return batch.results()

    def lend(  # noqa: D102 - inherited
        self, server: ServerAddress, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray | None:
        connection = self._open.get(server.address)
        return None if connection is None else connection.lend(shape, dtype)

    def _send_at_once(self, exchange: _Exchange) -> bool:
        connection = self._open.get(exchange.request.server.address)
        if connection is not None:
            connection.send(exchange)
        return connection is not None

    def _hang_up(self) -> None:
        self._open.clear()
        connections, self._connections = self._connections, {}
        for connecting in connections.values():
            if not connecting.done():
                connecting.cancel()
            elif not connecting.cancelled() and connecting.exception() is None:
                connecting.result().close()

    def _start(self, exchanges: Sequence[_Exchange]) -> None:
        for exchange in exchanges:
            address = exchange.request.server.address
            connecting = self._connections.get(address)
            if connecting is None:
                connecting = asyncio.create_task(self._connect(address))
                self._connections[address] = connecting
            if connecting.done():
                self._send(exchange, connecting)
            else:
                connecting.add_done_callback(partial(self._send, exchange))

    def _send(self, exchange: _Exchange, connected: asyncio.Task[Connection]) -> None:
        if connected.cancelled():
            exchange.failed(CoordinatorClosedError(_CLOSED))
            return
        error = connected.exception()
        if error is None:
            connected.result().send(exchange)
        elif isinstance(error, Exception):
            address = exchange.request.server.address
            if self._connections.get(address) is connected:
                del self._connections[address]  # the next request tries again
            exchange.failed(error)

    async def _connect(self, address: str) -> Connection:
        if self._pool.status != Status.running:  # it would raise RuntimeError
            raise CoordinatorClosedError(_CLOSED)
        broken = partial(self._broken, address)
        connection = await open_connection(self._pool, address, CONNECT_TIMEOUT, broken)
        self._open[address] = connection
        return connection

    def _broken(self, address: str, exchanges: Sequence[Any], error: OSError) -> None:
        self._connections.pop(address, None)
        self._open.pop(address, None)
        closed = self._pool.status != Status.running
        for exchange in exchanges:
            if closed:
                exchange.failed(CoordinatorClosedError(_CLOSED))
            elif exchange.retries:
                exchange.retries -= 1
                # If the process is gone, connecting again will tell.
                self._loop.call_later(_RETRY_PAUSE, self._start, [exchange])
            else:
                exchange.failed(error)


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
