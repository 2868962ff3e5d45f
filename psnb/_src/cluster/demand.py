"""Demand: how much the closures of all coordinators need of a cluster. Pure, without Dask.

Coordinators report it, and the Dask scheduler adds it up (see `psnb._src.cluster.scaling`), on its
event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

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
