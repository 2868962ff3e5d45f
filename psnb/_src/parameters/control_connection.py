"""ControlConnection: to one server, for signs of life and control, separate from data.

A sign of life that waits behind data proves nothing. So a client that must know whether a server
lives uses a separate connection for that. Threads: one event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from psnb._src.dask_internals import ConnectionPool
from psnb._src.parameters.server_connection import ServerConnection, open_connection
from psnb._src.placement import ServerAddress
from psnb._src.server import Done, Failed, HostOperation, ServerAnswer


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
            case _:  # a sign of life
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
        """Return when the server has sent a sign of life; raises as `ask` does."""
        await self._send([])

    async def ask(self, operation: HostOperation) -> Any:
        """Run an operation of the server itself and return its result; without a time limit.

        The caller watches `heard`, and gives up when it does not change for too long.

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
