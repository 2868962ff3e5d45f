"""ScheduleOptions: how a closure is to be scheduled. Pure; closures may share one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.utils.checks import integer, is_integer
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

DEFAULT_RETRIES = 5


WorkerPredicate = Callable[[WorkerStatistics], bool]
"""Returns whether a worker may run a closure."""


Pin = str | int | WorkerPredicate
"""Which worker must run a closure: its name, its index, or a function that chooses."""


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The options of `ClusterCoordinator.schedule`.

    Attributes
    ----------
    retries : int
        How often the closure may be lost with its worker and run again.
    priority : int
        Higher goes first.
    worker : str, int, callable or None
        Which worker must run it.
    detached : bool
        Only `fetch` raises its error: other closures are not cancelled, and `join` does not raise
        it. It changes no parameters, so it may begin in any update mode.
    slot : int, optional
        The slot of an ordered epoch that it takes from; see `OrderedLeases`.
    steps : int
        How many it may have: see `Work`.
    results : bool
        Whether what steps return is kept. Else it is dropped.

    Raises
    ------
    ConfigurationError
        If one of them is of the wrong kind.
    """

    retries: int = DEFAULT_RETRIES
    priority: int = 0
    worker: Pin | None = None
    detached: bool = False
    slot: int | None = None
    steps: int = 1
    results: bool = True

    def __post_init__(self) -> None:
        integer("retries", self.retries, 0)
        if not is_integer(self.priority):
            raise ConfigurationError(f"priority must be an int, found {shown(self.priority)}")
        index = is_integer(self.worker) and self.worker >= 0  # type: ignore[operator]
        if not (index or self.worker is None or isinstance(self.worker, str)) and not callable(
            self.worker
        ):
            raise ConfigurationError(
                "worker must be a worker's name, its index from 0, or a function that takes a "
                f"psnb.WorkerStatistics and returns a bool, found {shown(self.worker)}"
            )
        for name in ("retries", "priority", "worker"):
            if is_integer(value := getattr(self, name)):  # perhaps numpy's, which may wrap
                object.__setattr__(self, name, int(value))


def options(retries: int, priority: int, worker: Pin | None) -> ScheduleOptions:
    """Return options; equal ones are one object, if they name no worker."""
    if worker is None:
        return _unpinned(retries, priority)
    return ScheduleOptions(retries, priority, worker)


@lru_cache(maxsize=256, typed=True)
def _unpinned(retries: int, priority: int) -> ScheduleOptions:
    return ScheduleOptions(retries, priority)
