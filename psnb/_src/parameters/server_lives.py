"""ServerLives: whether servers that somebody waits for still say that they live.

Everything here runs on the event loop of the client or worker, with a task for each such server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from psnb._src.dask_internals import ConnectionPool
from psnb._src.parameters.control_connection import ControlConnection
from psnb._src.parameters.request_batch import Request, RequestBatch, silent
from psnb._src.placement import ServerAddress

FAILOVER_TIMEOUT = 20.0
"""Seconds within which a shard that has a copy, or is being moved, must be found elsewhere."""

FIRST_SILENCE = 1.0
"""Seconds without an answer after which a server is followed; they count as silence."""

_TICKS = 20
"""The number of ticks that patience is divided into. Ticks are counted instead of comparing clocks:
if this process itself was frozen, the servers' messages are still waiting to be read."""


class ServerLives:
    """Fails the requests that wait for a server that is silent for too long.

    Parameters
    ----------
    pool : distributed.core.ConnectionPool
        Its connections ask for signs of life.
    heard : callable
        Returns how many messages of a server have come elsewhere. They count too: a busy server
        opens no new connection.
    patience : callable
        Returns for how many seconds a server may be silent.
    copied : callable
        Returns whether a request's shard has a copy, which is about to take over.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        heard: Callable[[ServerAddress], int],
        patience: Callable[[ServerAddress], float],
        copied: Callable[[Request], bool],
    ) -> None:
        self._pool, self._heard = pool, heard
        self._patience, self._copied = patience, copied
        self._waiting: dict[ServerAddress, set[RequestBatch]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, server: ServerAddress, batch: RequestBatch) -> None:
        """Follow a server for as long as a batch waits for it."""
        if server in self._waiting:
            self._waiting[server].add(batch)
            return
        self._waiting[server] = {batch}
        task = asyncio.create_task(self._follow(server), name="psnb server life")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Follow none any more; idempotent."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, server: ServerAddress) -> None:
        control, batches = ControlConnection(self._pool, server), self._waiting[server]
        silence, heard = FIRST_SILENCE, (0, self._heard(server))
        asking: asyncio.Task[None] | None = None
        try:
            while batches := {each for each in batches if not each.done.done()}:
                self._waiting[server] = batches
                if asking is None or asking.done():
                    asking = asyncio.create_task(_sign(control), name="psnb sign of life")
                tick = self._patience(server) / _TICKS
                await asyncio.sleep(tick)
                known, heard = heard, (control.heard, self._heard(server))
                silence = silence + tick if heard == known else 0.0
                batches = self._waiting[server]
                for batch in batches:
                    self._fail_silent(batch, server, silence)
        finally:
            del self._waiting[server]
            control.close()
            if asking is not None:
                asking.cancel()

    def _fail_silent(self, batch: RequestBatch, server: ServerAddress, silence: float) -> None:
        for position, other in batch.waiting().items():
            request = batch.requests[position]
            more = FAILOVER_TIMEOUT if self._copied(request) else 0.0
            if other == server and silence >= self._patience(server) + more:
                batch.failed([position], silent(request, f"it says nothing for {silence:.0f} s"))


async def _sign(control: ControlConnection) -> None:
    # `ControlConnection.heard` shows whether one came; the reason why not does not matter.
    with contextlib.suppress(OSError):
        await control.sign()
