"""The Dask scheduler plugin that keeps the layouts of all strategies.

The scheduler is the one process that everybody in a cluster can always ask. A strategy writes its
layout there (`PUBLISH`), workers that cannot find a shard read it (`LAYOUT`). A layout goes when
its strategy is closed or its client is gone. All of it runs on the scheduler's event loop.
"""

from __future__ import annotations

from typing import Any

from distributed import Scheduler, SchedulerPlugin

PUBLISH = "psnb_publish"
LAYOUT = "psnb_layout"
"""The names of the handlers on the Dask scheduler."""


class LayoutBook(SchedulerPlugin):
    """Remembers the newest layout of each strategy."""

    name = "psnb-layouts"
    idempotent = True

    def __init__(self) -> None:
        self._layouts: dict[str, list[Any]] = {}
        self._owners: dict[str, str] = {}

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handlers; Dask calls this once."""
        scheduler.handlers[PUBLISH] = self.publish
        scheduler.handlers[LAYOUT] = self.layout

    def publish(self, owner: str, strategy: str, layout: list[Any] | None) -> None:
        """Write a strategy's layout down, in the name of a client; None: the strategy is closed."""
        if layout is None:
            self._layouts.pop(strategy, None)
            self._owners.pop(strategy, None)
        elif strategy not in self._layouts or self._layouts[strategy][1] < layout[1]:
            self._layouts[strategy] = layout
            self._owners[strategy] = owner

    def layout(self, strategy: str) -> list[Any] | None:
        """Return a strategy's layout; None if it is closed."""
        return self._layouts.get(strategy)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Forget the strategies of a client that has gone."""
        for strategy in [each for each, owner in self._owners.items() if owner == client]:
            self.publish(client, strategy, None)
