"""ServerLives: whether servers that somebody waits for still say that they live.

Everything here runs on the event loop of the client or worker, with a task for each such server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from psnb._src.dask_internals import ConnectionPool
from psnb._src.parameters.control_connection import ControlConnection
from psnb._src.parameters.request_batch import RequestBatch
from psnb._src.placement import ServerAddress

_TICKS = 20
"""The number of ticks that patience is divided into. Ticks are counted instead of comparing clocks:
if this process itself was frozen, the servers' messages are still waiting to be read."""


class ServerLives:
    """Counts for how long servers have not responded, and says when that is too long.

    What becomes of the requests then, the client decides, by where their shards are.

    Parameters
    ----------
    pool : distributed.core.ConnectionPool
        Its connections ask for signs of life.
    heard : callable
        Returns how many messages of a server have come elsewhere. They count too: a busy server
        opens no new connection.
    overdue : callable
        Called with each batch that waits for a server that has not responded for as long as it may,
        again and again.
    waited : float
        Seconds without an answer after which a server is followed; they count as silence.
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

    def follow(self, server: ServerAddress, batch: RequestBatch, patience: float) -> None:
        """Follow a server, which may be silent for so long, while a batch waits for it."""
        if server in self._waiting:
            self._waiting[server].add(batch)
            return
        self._waiting[server] = {batch}
        task = asyncio.create_task(self._follow(server, patience), name="psnb server life")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Follow none any more; idempotent."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, server: ServerAddress, patience: float) -> None:
        control, batches = ControlConnection(self._pool, server), self._waiting[server]
        silence, heard, tick = self._waited, (0, self._heard(server)), patience / _TICKS
        asking: asyncio.Task[None] | None = None
        try:
            while batches := {each for each in batches if server in each.waiting().values()}:
                self._waiting[server] = batches
                if asking is None or asking.done():
                    asking = asyncio.create_task(_sign(control), name="psnb sign of life")
                await asyncio.sleep(tick)
                known, heard = heard, (control.heard, self._heard(server))
                silence = silence + tick if heard == known else 0.0
                self._silences[server] = silence
                if silence >= patience:
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
