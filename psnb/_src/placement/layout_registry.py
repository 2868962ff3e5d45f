"""LayoutRegistry: the Dask scheduler plugin that keeps the layouts of all strategies.

The scheduler is the one process that all others in a cluster can always ask. A strategy writes its
layout there (`PUBLISH`), again and again; workers that cannot find a shard read it (`LAYOUT`). A
layout is removed when its strategy is closed, or when its client was away for `LIFETIME` seconds: a
client whose connection breaks may come back. All of it runs on the scheduler's event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from psnb._src.dask_internals import add_handler
from psnb._src.placement.layout import unpacked

PUBLISH = "psnb_publish"
LAYOUT = "psnb_layout"
"""The names of the handlers on the Dask scheduler."""

LIFETIME = 600.0
"""Seconds for which a layout is kept after its client has gone."""


class LayoutRegistry(SchedulerPlugin):
    """Remembers the newest layout of each strategy."""

    name = "psnb-layouts"
    idempotent = True

    def __init__(self) -> None:
        self._layouts: dict[str, list[Any]] = {}
        self._owners: dict[str, str] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}  # these end strategies without a client

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handlers; Dask calls this once."""
        add_handler(scheduler, PUBLISH, self.publish)
        add_handler(scheduler, LAYOUT, self.layout)

    def publish(self, owner: str, strategy: str, layout: list[Any] | None) -> None:
        """Store a strategy's layout, which a client owns; None: the strategy is closed."""
        if strategy in self._leaving:
            self._leaving.pop(strategy).cancel()
        if layout is None:
            self._layouts.pop(strategy, None)
            self._owners.pop(strategy, None)
            return
        self._owners[strategy] = owner
        if strategy not in self._layouts or self._layouts[strategy][1] < layout[1]:
            self._layouts[strategy] = layout

    def layout(self, strategy: str) -> list[Any] | None:
        """Return a strategy's layout; None if it is closed."""
        return self._layouts.get(strategy)

    def addresses(self) -> set[str]:
        """Return the addresses of the servers of all strategies that hold shards or copies."""
        layouts = map(unpacked, self._layouts.values())
        return {server.address for layout in layouts for server in layout.servers}

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Forget the strategies of a client that has gone, unless it comes back."""
        loop = asyncio.get_running_loop()
        for strategy, owner in self._owners.items():
            if owner == client and strategy not in self._leaving:
                timer = loop.call_later(LIFETIME, self.publish, client, strategy, None)
                self._leaving[strategy] = timer
