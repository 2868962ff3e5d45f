"""ClosureScaling: the Dask scheduler plugin that lets adaptive scaling see closures.

Closures are not Dask tasks: without the plugin nothing scales up for them, and the workers that run
them look idle and are scaled away. Each coordinator sends the scheduler once a second what it has
to do, through the handler `DEMAND`. The plugin stays on the scheduler, one for all strategies and
notebooks, and changes nothing while no coordinator has a demand. All of it runs on the scheduler's
event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Set
from dataclasses import dataclass
from datetime import timedelta

import dask
from distributed import Scheduler, SchedulerPlugin

from psnb._src.cluster.protection import serving
from psnb._src.dask_compat.plugins import WorkerState, add_handler, replace_operation
from psnb._src.dask_compat.reach import parse_timedelta

EXPIRY = 15.0
"""Seconds after which a coordinator that reports nothing counts as gone: its notebook died."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one coordinator.

    Attributes
    ----------
    closures : int
        Closures that wait or run.
    occupancy : float
        The seconds that they are expected to take in total.
    holding : frozenset of str
        Dask addresses of the workers that hold closures at this moment.
    """

    closures: int = 0
    occupancy: float = 0.0
    holding: Set[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.closures or self.holding)

    def threads(self, target_duration: float) -> float:
        """Return how many threads it takes to be done in ``target_duration`` seconds.

        At most one for each closure, even if it is long. It may be a fraction, so that many
        coordinators with little to do ask for little together.
        """
        return min(self.closures, self.occupancy / target_duration)


class DemandBoard:
    """The newest demand of each coordinator; it is forgotten if the reports stop."""

    def __init__(self) -> None:
        self._demands: dict[str, tuple[float, Demand]] = {}  # with the time of their coming

    def report(self, coordinator: str, demand: Demand, now: float) -> None:
        """Note a coordinator's demand; an empty one withdraws the one before."""
        if demand:
            self._demands[coordinator] = now, demand
        else:
            self._demands.pop(coordinator, None)

    def demands(self, now: float) -> list[Demand]:
        """Return the demands, one for each coordinator that has one."""
        self._demands = {
            name: (came, demand)
            for name, (came, demand) in self._demands.items()
            if now - came < EXPIRY
        }
        return [demand for _, demand in self._demands.values()]

    def holding(self, now: float) -> frozenset[str]:
        """Return the addresses of the workers that hold closures, of any coordinator."""
        return frozenset().union(*(demand.holding for demand in self.demands(now)))

    def workers(
        self, now: float, target_duration: float, threads_per_worker: float, holding: int
    ) -> int:
        """Return how many workers the closures need.

        Parameters
        ----------
        now : float
            The time, on the clock of the reports.
        target_duration : float
            Seconds in which all should be done.
        threads_per_worker : float
            Closures that a worker runs at the same time.
        holding : int
            How many workers hold closures: the result is never less.
        """
        demands = self.demands(now)
        threads = sum(demand.threads(target_duration) for demand in demands)
        least = 1 if any(demand.closures for demand in demands) else 0  # even if they take no time
        return max(least, holding, math.ceil(threads / threads_per_worker))


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

    def adaptive_target(self, target_duration: str | float | timedelta | None = None) -> int:
        """Return how many workers there should be, servers among them.

        The larger of Dask's need for its tasks and the closures' need: they share the workers.

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
        servers = serving(self._scheduler, known.values())
        holding = len(self._board.holding(now) & known.keys() - servers)
        return max(target, len(servers) + self._board.workers(now, seconds, self._threads, holding))

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that may be retired: those without closures."""
        holding = self._board.holding(time.monotonic())
        return [worker for worker in workers if worker.address not in holding]

    def _measure_workers(self) -> None:
        known = self._scheduler.workers
        if workers := known.keys() - serving(self._scheduler, known.values()):
            self._threads = sum(known[each].nthreads for each in workers) / len(workers)
