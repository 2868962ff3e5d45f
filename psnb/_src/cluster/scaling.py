"""ClosureScaling: the Dask scheduler plugin that lets adaptive scaling see closures.

Closures are not Dask tasks: without the plugin nothing scales up for them, and the workers that run
them look idle and are scaled away. Each coordinator tells the scheduler twice a second what it has
to do (`psnb._src.cluster.demand`), through the handler `DEMAND`. The plugin stays on the scheduler,
one for all strategies and notebooks, and changes nothing while no coordinator has a demand. All of
it runs on the scheduler's event loop.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import dask
from distributed import Scheduler, SchedulerPlugin

from psnb._src.cluster.demand import Demand, DemandBoard
from psnb._src.cluster.protection import serves
from psnb._src.dask_internals import (
    WorkerState,
    add_handler,
    keep_awake,
    parse_timedelta,
    replace_operation,
)

DEMAND = "psnb_demand"
"""The name of the handler on the Dask scheduler."""


class ClosureScaling(SchedulerPlugin):
    """Adds closures to what Dask scales for, and keeps the workers that hold closures."""

    name = "psnb-scaling"
    idempotent = True

    def __init__(self) -> None:
        self._board = DemandBoard()
        self._threads = 1.0  # of a worker, on average, when there was one last

    async def start(self, scheduler: Scheduler) -> None:
        """Replace the scheduler's `adaptive_target`; Dask calls this once."""
        self._scheduler = scheduler
        # Adaptive asks the handler, the routes under /api/v1 and the metrics the scheduler itself.
        self._target_for_tasks = replace_operation(
            scheduler, "adaptive_target", self.adaptive_target
        )
        add_handler(scheduler, DEMAND, self.report)

    def report(self, coordinator: str, closures: int, occupancy: float, holding: list[str]) -> None:
        """Note a coordinator's demand; see `Demand`."""
        demand = Demand(closures, occupancy, frozenset(holding))
        self._board.report(coordinator, demand, time.monotonic())
        self._measure_workers()
        if demand:
            # Closures are work: a scheduler with an idle timeout must not end under them.
            keep_awake(self._scheduler)

    def adaptive_target(self, target_duration: str | float | timedelta | None = None) -> int:
        """Return how many workers there should be, servers among them.

        The larger of what Dask wants for its tasks and what closures need: they share the workers.

        Parameters
        ----------
        target_duration : str, float or timedelta, optional
            In which time all should be done; Dask's own setting if left out.
        """
        target: int = self._target_for_tasks(target_duration)
        now = time.monotonic()
        if not self._board.demands(now):
            return target
        if target_duration is None:
            target_duration = dask.config.get("distributed.adaptive.target-duration")
        seconds = parse_timedelta(target_duration)
        self._measure_workers()
        known = self._scheduler.workers
        servers = {address for address, worker in known.items() if self._serves(worker)}
        holding = len(self._board.holding(now) & known.keys() - servers)
        return max(target, len(servers) + self._board.workers(now, seconds, self._threads, holding))

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that may be retired: those that hold no closures."""
        holding = self._board.holding(time.monotonic())
        return [worker for worker in workers if worker.address not in holding]

    def _measure_workers(self) -> None:
        workers: Any = [w for w in self._scheduler.workers.values() if not self._serves(w)]
        if workers:
            self._threads = sum(worker.nthreads for worker in workers) / len(workers)

    def _serves(self, worker: WorkerState) -> bool:
        return serves(self._scheduler, worker)
