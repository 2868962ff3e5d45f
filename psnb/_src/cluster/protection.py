"""ServerProtection: the Dask scheduler plugin that keeps Dask from retiring parameter servers.

To Dask they look idle, so they would be retired first, and the parameters lost. All of it runs on
the scheduler's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from psnb._src.cluster.links import SHORT_LIMITS, short_limits
from psnb._src.cluster.roles import ROLE
from psnb._src.dask_compat.plugins import WorkerState, add_handler, plugin_named, replace_operation
from psnb._src.dask_compat.reach import unpickled
from psnb._src.placement.registry import LayoutRegistry

logger = logging.getLogger("psnb")


def serving(scheduler: Scheduler, workers: Iterable[WorkerState]) -> set[str]:
    """Return the addresses of the parameter servers among workers; on the scheduler.

    Processes that are meant to be one, until they are drained, and processes that became one.
    """
    registry = registry_of(scheduler)
    held, gone = registry.addresses(), registry.emptied()
    return {
        each.address
        for each in workers
        if each.address in held or (each.resources.get(ROLE) and each.address not in gone)
    }


def registry_of(scheduler: Scheduler) -> LayoutRegistry:
    """Return the scheduler's registry of strategies, which is there before the other plugins."""
    return plugin_named(scheduler, LayoutRegistry.name)


class ServerProtection(SchedulerPlugin):
    """Removes parameter servers from the workers that Dask may scale away, or retires.

    Drained servers go first: a user who scales down after draining means them, and Dask does not
    know of which kind the processes are.
    """

    name = "psnb-servers"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Replace two operations of the scheduler; Dask calls this once."""
        self._scheduler = scheduler
        self._may_go: Callable[[WorkerState], bool] = lambda worker: True
        self._choose = replace_operation(scheduler, "workers_to_close", self.workers_to_close)
        self._retire = replace_operation(scheduler, "retire_workers", self.retire_workers)
        add_handler(scheduler, SHORT_LIMITS, short_limits)

    def workers_to_close(
        self,
        memory_ratio: float | None = None,
        n: int | None = None,
        key: Callable[[WorkerState], Hashable] | bytes | None = None,
        minimum: int | None = None,
        target: int | None = None,
        attribute: str = "address",
    ) -> list[Any]:
        """Choose workers as Dask does, but drained servers first, if a number is asked for.

        Workers that go together (``key``) go first if all of them were drained.
        """
        key = unpickled(key) if isinstance(key, bytes) else key
        known = self._scheduler.workers
        if n is None and target is not None:
            n = len(known) - target
        group = key or (lambda worker: worker.address)
        gone = registry_of(self._scheduler).emptied()
        others = {group(worker) for address, worker in known.items() if address not in gone}

        def choose(first: bool, n: int, minimum: int | None) -> list[Any]:
            self._may_go = lambda worker: (group(worker) not in others) is first
            try:
                return list(self._choose(memory_ratio, n, key, minimum, attribute=attribute))
            finally:
                self._may_go = lambda worker: True

        if n is None:
            return list(self._choose(memory_ratio, n, key, minimum, attribute=attribute))
        chosen = choose(True, n, minimum)
        return chosen + choose(False, n - len(chosen), minimum and minimum + len(chosen))

    async def retire_workers(
        self,
        workers: Sequence[str] | None = None,
        *,
        names: Sequence[object] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Retire workers as Dask does, except those that hold parameters.

        Dask does the same with workers that have the only copy of a result, if there is no room for
        it elsewhere: they stay, and are not returned.
        """
        registry, known = registry_of(self._scheduler), self._scheduler.workers
        held = registry.addresses()
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
        # Dask retires no worker that has an actor: servers that hold nothing end before.
        left = {str(each) for each in (*(workers or ()), *(names or ()))}
        registry.release_idle([a for a, each in known.items() if left & {a, str(each.name)}])
        return await self._retire(workers=workers, names=names, **more)

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that may be retired: all but parameter servers."""
        servers = serving(scheduler, workers)
        return [each for each in workers if self._may_go(each) and each.address not in servers]
