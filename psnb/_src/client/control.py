"""ControlConnection: to one server, for heartbeats and control, separate from data; and liveness.

A heartbeat that waits behind data proves nothing. So a client that must know whether a server
lives uses a separate connection for that.

Threads: all runs on the event loop of the client or worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from psnb._src.client.connection import ServerConnection, open_connection
from psnb._src.client.requests import RequestBatch
from psnb._src.dask_compat.reach import ConnectionPool
from psnb._src.placement.layout import ServerAddress
from psnb._src.server.messages import Done, Failed, ServerAnswer
from psnb._src.server.operations import HostOperation


class _Question:
    """A request, and the future of its answer."""

    def __init__(self, key: str, operations: Sequence[HostOperation]) -> None:
        self._key, self._operations = key, operations
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def message(self) -> tuple[str, Sequence[HostOperation]]:
        return self._key, self._operations

    def answered(self, answers: Sequence[ServerAnswer] | None) -> None:
        if self.answer.done():
            return
        match answers:
            case None:
                reason = "its process was started again, or it was dropped"
                self.answer.set_exception(ConnectionRefusedError(reason))
            case [Failed(error)]:
                self.answer.set_exception(error)
            case [Done(result)]:
                self.answer.set_result(result)
            case _:  # a heartbeat
                self.answer.set_result(None)

    def broken(self, error: OSError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ControlConnection:
    """A connection to a server, opened when it is needed, and again after it broke.

    Parameters
    ----------
    pool : distributed.core.ConnectionPool
        When it closes, the connection closes too.
    server : ServerAddress
        The server.
    """

    def __init__(self, pool: ConnectionPool, server: ServerAddress) -> None:
        self._pool, self._server = pool, server
        self._connection: ServerConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._heard = 0  # on connections that are closed

    @property
    def heard(self) -> int:
        """How many messages the server has sent."""
        return self._heard + (self._connection.heard if self._connection else 0)

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    async def sign(self) -> None:
        """Return when the server has sent a heartbeat; raises as `ask` does."""
        await self._send([])

    async def ask(self, operation: HostOperation) -> Any:
        """Run an operation of the server itself and return its result; without a time limit.

        The caller watches `heard`, and stops waiting when it does not change for too long.

        Raises
        ------
        ConnectionRefusedError
            If the server's process has ended, or the server was dropped.
        OSError
            If it cannot be reached, or the connection broke.
        PsnbError
            What the operation raised.
        """
        return await self._send([operation])

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _send(self, operations: Sequence[HostOperation]) -> Any:
        while self._connection is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(), name="psnb control connection")
            await asyncio.shield(self._opening)
        question = _Question(self._server.key, operations)
        self._connection.send(question)
        return await question.answer

    async def _open(self) -> None:
        try:
            address = self._server.address
            self._connection = await open_connection(self._pool, address, self._broken)
        finally:
            self._opening = None

    def _broken(self, questions: list[Any], error: OSError) -> None:
        if self._connection is not None:
            self._heard, self._connection = self.heard, None
        for question in questions:
            question.broken(error)


_TICKS = 20
"""Ticks for each `heartbeat_timeout`. They are counted instead of comparing clocks: if this process
itself was frozen, the servers' messages are still waiting to be read."""


class ServerLiveness:
    """Counts for how long servers have not responded, and says when that is too long.

    The client then decides about the requests, by where their shards are.

    Parameters
    ----------
    pool : distributed.core.ConnectionPool
        Its connections ask for heartbeats.
    heard : callable
        Returns how many messages of a server have come over other connections. They count too: a
        busy server opens no new connection.
    overdue : callable
        Called again and again with each batch whose server is unresponsive.
    waited : float
        Seconds without an answer after which a server is watched; they count towards the timeout.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        heard: Callable[[ServerAddress], int],
        overdue: Callable[[RequestBatch], Awaitable[None]],
        waited: float,
    ) -> None:
        self._pool, self._heard, self._overdue, self._waited = pool, heard, overdue, waited
        self._waiting: dict[ServerAddress, set[RequestBatch]] = {}
        self._silences: dict[ServerAddress, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def silence(self, server: ServerAddress) -> float:
        """Return for how many seconds a server that is followed has not responded; else 0."""
        return self._silences.get(server, 0.0)

    def follow(self, server: ServerAddress, batch: RequestBatch, heartbeat_timeout: float) -> None:
        """Follow a server, which may be unresponsive for so long, while a batch waits for it."""
        if server in self._waiting:
            self._waiting[server].add(batch)
            return
        self._waiting[server] = {batch}
        task = asyncio.create_task(self._follow(server, heartbeat_timeout), name="psnb server life")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Follow none any more; idempotent."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, server: ServerAddress, heartbeat_timeout: float) -> None:
        control, batches = ControlConnection(self._pool, server), self._waiting[server]
        silence, heard, tick = self._waited, (0, self._heard(server)), heartbeat_timeout / _TICKS
        asking: asyncio.Task[None] | None = None
        try:
            while batches := {each for each in batches if server in each.waiting().values()}:
                self._waiting[server] = batches
                if asking is None or asking.done():
                    asking = asyncio.create_task(_sign(control), name="psnb heartbeat")
                await asyncio.sleep(tick)
                known, heard = heard, (control.heard, self._heard(server))
                silence = silence + tick if heard == known else 0.0
                self._silences[server] = silence
                if silence >= heartbeat_timeout:
                    await asyncio.gather(*map(self._overdue, self._waiting[server]))
        finally:
            del self._waiting[server]
            self._silences.pop(server, None)
            control.close()
            if asking is not None:
                asking.cancel()


async def _sign(control: ControlConnection) -> None:
    # `ControlConnection.heard` shows whether one came; the reason why not does not matter.
    with contextlib.suppress(OSError):
        await control.sign()
