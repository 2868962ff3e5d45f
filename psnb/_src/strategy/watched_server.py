"""WatchedServer: what a strategy's reconciler knows of one server, and how it comes to know it.

On the client's event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from psnb._src.placement import Health, Layout, ObservedServer, ServerAddress
from psnb._src.strategy.server_control import ServerControl, gone, silent


class WatchedServer:
    """What the reconciler knows of one server.

    Attributes
    ----------
    observed : ObservedServer
        What was observed of it.
    told : Health
        The health that was reported last.
    """

    def __init__(self, server: ServerAddress, control: ServerControl) -> None:
        self.server, self._control = server, control
        self._connection = control.connection(server)
        self._heard, self._silence = 0, 0.0
        self._asking: asyncio.Task[None] | None = None
        self._gone: str | None = None
        # Nothing was heard of it yet: that is no reason to let its copies take over.
        self.observed = ObservedServer(Health.ALIVE)
        self.told = Health.ALIVE

    def beat(self, layout: Layout, news: asyncio.Event) -> None:
        """Ask the server, unless it has not answered yet."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(layout, news), name="psnb beat")

    def pass_time(self, seconds: float) -> None:
        """Count time in which the server could have answered."""
        self._silence = 0.0 if self._connection.heard > self._heard else self._silence + seconds
        self._heard = self._connection.heard
        if self.observed.health is Health.ALIVE and self.is_silent:
            self.observed = replace(self.observed, health=Health.SILENT)

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard of it for too long."""
        return self._silence >= self._control.patience

    def why(self) -> str:
        """Return what is wrong with it, as a text."""
        return self._gone or silent(self.server, self._silence)

    def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, layout: Layout, news: asyncio.Event) -> None:
        connected, before = self._connection.connected, self.observed
        try:
            status = await self._control.beat(self.server, layout)
        except ConnectionRefusedError as error:
            self._gone = gone(self.server, error)
            self.observed = ObservedServer(Health.GONE)
        except OSError:
            if not connected:
                return  # not reached: it counts as silent if that lasts
            news.set()  # the connection broke: the next beat, at once, tells more
        else:
            self.observed = ObservedServer(
                Health.ALIVE, layout.version, status.shards, status.leaves, status.writes
            )
        if self.observed != before:
            news.set()
