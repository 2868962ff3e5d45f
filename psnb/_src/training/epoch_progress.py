"""EpochProgress: what came of one epoch so far, and of each of its print periods. One thread.

The part of the epoch that an earlier run has trained counts as well; it is saved in JSON's types.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.metrics.metric import MetricStates
from psnb._src.metrics.saved import loaded_states, saved_states
from psnb._src.monitor.history import EXAMPLES
from psnb._src.training.history import TrainingSnapshot
from psnb._src.training.reported import RECENT, Reported, Sum

NO_PART: Mapping[str, Any] = {"numbers": {}, "states": {}, "seconds": 0.0}
"""An epoch that has not begun, as `EpochProgress.part` returns it."""


class EpochProgress:
    """An epoch, also one of which another run has trained a part.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Whose closures report.
    epoch : int
        Counts from 1.
    iterator : LeasedIterator
        The part that is left.
    earlier : mapping
        From `part`, of an earlier run.

    Attributes
    ----------
    epoch, iterator
        As given.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        epoch: int,
        iterator: LeasedIterator,
        earlier: Mapping[str, Any],
    ) -> None:
        self.epoch, self.iterator, self._coordinator = epoch, iterator, coordinator
        self._earlier, self._earlier_seconds = loaded_part(earlier)
        self._begin = self._period = self._now()
        self._began = time.monotonic()
        self._seconds: float | None = None  # once it is over

    def end(self) -> None:
        """Note that it is over."""
        self._seconds = time.monotonic() - self._began

    @property
    def earlier(self) -> MetricStates:
        """The metrics in an earlier run."""
        return self._earlier.states

    def snapshot(self) -> TrainingSnapshot:
        """Return the figures of now."""
        found = self._reported(self._now())
        examples = found.numbers.get(EXAMPLES)
        return TrainingSnapshot(
            self.epoch,
            self.iterator.progress().visits,
            None if examples is None else int(examples.total),
            found.results(),
            self._time(),
        )

    def part(self) -> dict[str, Any]:
        """Return its result so far, in JSON's types, for another run to continue."""
        found = self._reported(self._now())
        numbers = {name: [str(each.total), *each[1:]] for name, each in found.numbers.items()}
        states = saved_states(found.states)
        return {"numbers": numbers, "states": states, "seconds": self._time()}

    def lines(self) -> dict[str, float]:
        """Return what a printed line may have, and begin the next print period.

        For numbers, the mean of the period. For metrics the value so far, and under ``batch_`` and
        their names the period's.
        """
        now = self._now()
        period = now.since(self._period).results()
        self._period = now
        so_far = self._reported(now).states.results()
        return period | {f"{RECENT}{name}": value for name, value in period.items()} | so_far

    def _now(self) -> Reported:
        metrics = self._coordinator.statistics().metrics
        sums = {n: Sum(each.total, each.weight, each.not_finite) for n, each in metrics.items()}
        return Reported(sums, self._coordinator.metrics)

    def _reported(self, now: Reported) -> Reported:
        return now.since(self._begin).and_(self._earlier)

    def _time(self) -> float:
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        return self._earlier_seconds + seconds


def loaded_part(saved: Mapping[str, Any]) -> tuple[Reported, float]:
    """Return what was reported in a part of an epoch, and how many seconds that took.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError
        If it is none.
    """
    numbers = {
        name: Sum(float(total), float(weight), int(not_finite))  # the sum may be infinite
        for name, (total, weight, not_finite) in saved["numbers"].items()
    }
    return Reported(numbers, loaded_states(saved["states"])), float(saved["seconds"])
