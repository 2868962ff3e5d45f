"""ServerProtection: the Dask scheduler plugin that keeps Dask from retiring parameter servers.

To Dask they look idle, so they would be retired first, and the parameters lost. All of it runs on
the scheduler's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from psnb._src.dask_internals import WorkerState, plugin_named, replace_operation
from psnb._src.placement import LayoutRegistry

ROLE = "ps"
"""The Dask resource that marks a parameter server."""


logger = logging.getLogger("psnb")


def serves(scheduler: Scheduler, worker: WorkerState) -> bool:
    """Return whether a worker is a parameter server, or has become one; on the scheduler."""
    registry = plugin_named(scheduler, LayoutRegistry.name)
    return bool(worker.resources.get(ROLE)) or (
        registry is not None and worker.address in registry.addresses()
    )


class ServerProtection(SchedulerPlugin):
    """Removes parameter servers from the workers that Dask may scale away, or retires."""

    name = "psnb-servers"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Replace the scheduler's `retire_workers`; Dask calls this once."""
        self._scheduler = scheduler
        self._retire = replace_operation(scheduler, "retire_workers", self.retire_workers)

    async def retire_workers(
        self,
        workers: Sequence[str] | None = None,
        *,
        names: Sequence[object] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Retire workers as Dask does, except those that hold parameters.

        Dask does the same with workers that have the only copy of a result, if there is no room for
        it elsewhere: they stay, and are left out of what is returned.
        """
        registry = plugin_named(self._scheduler, LayoutRegistry.name)
        held = set() if registry is None else registry.addresses()
        known = self._scheduler.workers
        # LocalCluster mixes names, of whichever type, and addresses.
        held |= {str(known[address].name) for address in held if address in known}
        asked = [*(workers or ()), *(names or ())]
        if kept := [str(each) for each in asked if str(each) in held]:
            logger.info(
                "%s would take parameters along and stays; strategy.rebalance(drain=[...]) empties "
                "a server",
                ", ".join(kept),
            )
            workers = workers and [each for each in workers if str(each) not in held]
            names = names and [each for each in names if str(each) not in held]
        retired: dict[str, Any] = await self._retire(workers=workers, names=names, **more)
        return retired

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that may be retired: those that are not parameter servers."""
        return [worker for worker in workers if not serves(scheduler, worker)]
