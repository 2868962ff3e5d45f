"""ClosureScaling: the Dask scheduler plugin that lets adaptive scaling see closures.

Closures are not Dask tasks: without the plugin nothing scales up for them, and the workers that run
them look idle and are scaled away. Each coordinator sends the scheduler twice a second what it has
to do, through the handler `DEMAND`. The plugin stays on the scheduler, one for all strategies and
notebooks, and changes nothing while no coordinator has a demand. All of it runs on the scheduler's
event loop.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dask
from distributed import Client, Scheduler, SchedulerPlugin

from psnb._src.cluster.links import SHORT_LIMITS, short_limits
from psnb._src.dask_compat.plugins import WorkerState, add_handler, plugin_named, replace_operation
from psnb._src.dask_compat.reach import (
    ask_scheduler,
    event_loop,
    parse_timedelta,
    scales_itself,
    scheduler_identity,
    unpickled,
)
from psnb._src.placement.registry import LayoutRegistry
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.threads import run_on_loop
from psnb.errors import ClusterError

# Resizing: starts and retires workers of a cluster, if the cluster can do that.

_RETIRE_TIMEOUT = 60.0


def cannot_add(client: Client) -> str:
    """Return why a worker cannot be started from here; empty if it can."""
    cluster = client.cluster
    if cluster is None or not hasattr(cluster, "scale") or not hasattr(cluster, "plan"):
        return (
            "this notebook has not started the cluster, so it cannot add workers: start one with "
            "`dask worker ADDRESS --nthreads 1`"
        )
    if scales_itself(cluster):
        return "the cluster scales itself by its work (adapt): it starts workers when it needs them"
    return ""


@uninterrupted
def add_worker(client: Client) -> None:
    """Have the cluster start one more process; returns at once.

    Raises
    ------
    ClusterError
        If the cluster cannot.
    """
    if reason := cannot_add(client):
        raise ClusterError(reason)
    client.cluster.scale(len(client.cluster.plan) + 1)


def retire_worker(client: Client, address: str) -> None:
    """Have a worker finish its closures and leave; an interrupt ends only the waiting.

    Raises
    ------
    ClusterError
        If it did not leave in a minute.
    """

    async def retire() -> None:
        cluster: Any = client.cluster
        names = {
            each["name"]
            for key, each in (await scheduler_identity(client))["workers"].items()
            if key == address
        }
        if names and cluster is not None and hasattr(cluster, "worker_spec"):
            # Else the cluster would start another worker in its place.
            spec = cluster.worker_spec
            await cluster.scale_down([name for name in spec if str(name) in map(str, names)])
        else:
            await ask_scheduler(
                client,
                "retire_workers",
                workers=[address],
                remove=True,
                close_workers=True,
                stimulus_id="psnb-retire-worker",
            )

    try:
        run_on_loop(event_loop(client), retire, _RETIRE_TIMEOUT, goes_on=True)
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"the worker at {address} did not leave: {error}") from error


# Demand: how much the closures of all coordinators need of a cluster. Pure, without Dask.
#
# Coordinators report it, and the Dask scheduler adds it up (see `psnb._src.cluster.scaling`), on
# its event loop only.

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


# ServerProtection: the Dask scheduler plugin that keeps Dask from retiring parameter servers.
#
# To Dask they look idle, so they would be retired first, and the parameters lost. All of it runs on
# the scheduler's event loop.

ROLE = "ps"
"""The Dask resource that marks a parameter server."""


logger = logging.getLogger("psnb")


def serving(scheduler: Scheduler, workers: Iterable[WorkerState]) -> set[str]:
    """Return the addresses of the parameter servers among workers; on the scheduler.

    Those that are meant for it, until they are emptied, and those that have become one.
    """
    registry = plugin_named(scheduler, LayoutRegistry.name)
    held = set() if registry is None else registry.addresses()
    gone = emptied(scheduler)
    return {
        each.address
        for each in workers
        if each.address in held or (each.resources.get(ROLE) and each.address not in gone)
    }


def emptied(scheduler: Scheduler) -> set[str]:
    """Return the addresses of the servers that were emptied to be ended; on the scheduler."""
    registry = plugin_named(scheduler, LayoutRegistry.name)
    return set() if registry is None else registry.emptied()


class ServerProtection(SchedulerPlugin):
    """Removes parameter servers from the workers that Dask may scale away, or retires.

    Those that were emptied go first: who scales down after that means them, and Dask is not told
    of which kind the processes are that it is to choose.
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
        """Choose workers as Dask does, but first those that were emptied, if a number is asked for.

        Of workers that go together (``key``) they go first if all of them were emptied.
        """
        key = unpickled(key) if isinstance(key, bytes) else key
        known = self._scheduler.workers
        if n is None and target is not None:
            n = len(known) - target
        group = key or (lambda worker: worker.address)
        gone = emptied(self._scheduler)
        others = {group(worker) for address, worker in known.items() if address not in gone}

        def choose(first: bool, n: int | None, minimum: int | None) -> list[Any]:
            self._may_go = lambda worker: (group(worker) not in others) is first
            try:
                chosen = self._choose(memory_ratio, n, key, minimum, attribute=attribute)
            finally:
                self._may_go = lambda worker: True
            return list(chosen)

        if n is None:
            return list(self._choose(memory_ratio, n, key, minimum, attribute=attribute))
        chosen = choose(True, n, minimum)
        left = n - len(chosen)
        return chosen + choose(False, left, minimum and minimum + len(chosen))

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
        if registry is not None:
            # Dask retires no worker that has an actor: servers that hold nothing end before.
            left = {str(each) for each in (*(workers or ()), *(names or ()))}
            registry.release_idle([a for a, each in known.items() if left & {a, str(each.name)}])
        retired: dict[str, Any] = await self._retire(workers=workers, names=names, **more)
        return retired

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that may be retired: those that are not parameter servers."""
        servers = serving(scheduler, workers)
        return [each for each in workers if self._may_go(each) and each.address not in servers]


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
        servers = serving(self._scheduler, known.values())
        holding = len(self._board.holding(now) & known.keys() - servers)
        return max(target, len(servers) + self._board.workers(now, seconds, self._threads, holding))

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that may be retired: those that hold no closures."""
        holding = self._board.holding(time.monotonic())
        return [worker for worker in workers if worker.address not in holding]

    def _measure_workers(self) -> None:
        known = self._scheduler.workers
        if workers := known.keys() - serving(self._scheduler, known.values()):
            self._threads = sum(known[each].nthreads for each in workers) / len(workers)
