"""EpochFigures: the metrics of one epoch, and of each of its print periods. One thread.

The part of the epoch that an earlier run has trained counts as well: `EpochFigures.saved` has it in
JSON's types.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.metrics.metric import MetricStates, united
from psnb._src.metrics.saved import loaded_states, saved_states
from psnb._src.monitor.history import EXAMPLES, NO_METRICS

if TYPE_CHECKING:
    pass
from psnb._src.training.history import TrainingSnapshot

RECENT = "batch_"
"""What begins the name of a metric that is wanted of the print period alone."""

NOTHING: Mapping[str, Any] = {"numbers": {}, "states": {}}
"""What `EpochFigures.saved` returns when nothing was reported."""


class _Sum(NamedTuple):
    """Of a number: its sum times weights, the sum of weights, and how many were not finite."""

    total: float = 0.0
    weight: float = 0.0
    not_finite: int = 0

    def plus(self, other: _Sum, sign: int = 1) -> _Sum:
        """Return the sum of both, or what is left without the other."""
        return _Sum(
            self.total + sign * other.total,
            self.weight + sign * other.weight,
            self.not_finite + sign * other.not_finite,
        )


class _Reported(NamedTuple):
    """What was reported up to one moment, or between two."""

    numbers: Mapping[str, _Sum]
    states: MetricStates

    def since(self, earlier: _Reported) -> _Reported:
        """Return what was reported after another moment."""
        found = {}
        for name, each in self.numbers.items():
            before = earlier.numbers.get(name, _Sum())
            # The coordinator keeps series of the metrics, too.
            merged = name in self.states or name.removeprefix(RECENT) in self.states
            if each.weight > before.weight and not merged:
                found[name] = each.plus(before, -1)
        return _Reported(found, self.states.since(earlier.states))

    def and_(self, other: _Reported) -> _Reported:
        """Return what was reported here or there."""
        numbers = dict(other.numbers)
        for name, each in self.numbers.items():
            numbers[name] = numbers.get(name, _Sum()).plus(each)
        return _Reported(numbers, united(other.states, self.states))

    def results(self) -> dict[str, float]:
        """Return the mean of each number, and the value of each metric."""
        means = {
            name: float("nan") if each.not_finite else each.total / each.weight
            for name, each in self.numbers.items()
            if name not in NO_METRICS
        }
        return means | self.states.results()


class EpochFigures:
    """The metrics that closures have reported since this was made.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Whose closures.
    earlier : mapping
        From `saved`: the part of the epoch in an earlier run.

    Raises
    ------
    KeyError, TypeError, ValueError
        If that is something else.
    """

    def __init__(
        self, coordinator: ClusterCoordinator, earlier: Mapping[str, Any] = NOTHING
    ) -> None:
        self._coordinator = coordinator
        self._begin = self._period = self._now()
        numbers = {name: _loaded(*each) for name, each in earlier["numbers"].items()}
        self._earlier = _Reported(numbers, loaded_states(earlier["states"]))

    def _now(self) -> _Reported:
        metrics = self._coordinator.statistics().metrics
        sums = {n: _Sum(each.total, each.weight, each.not_finite) for n, each in metrics.items()}
        return _Reported(sums, self._coordinator.metrics)

    def _epoch(self) -> _Reported:
        return self._now().since(self._begin).and_(self._earlier)

    @property
    def earlier(self) -> MetricStates:
        """What an earlier run had of the metrics."""
        return MetricStates(self._earlier.states)

    @property
    def examples(self) -> int | None:
        """The sum of the reported ``examples``; None if there were none."""
        found = self._epoch().numbers.get(EXAMPLES)
        return None if found is None else int(found.total)

    def so_far(self) -> dict[str, float]:
        """Return the metrics of the epoch so far."""
        return self._epoch().results()

    def saved(self) -> dict[str, Any]:
        """Return what the epoch has so far, as JSON can hold it."""
        found = self._epoch()
        numbers = {name: [str(each.total), *each[1:]] for name, each in found.numbers.items()}
        return {"numbers": numbers, "states": saved_states(found.states)}

    def lines(self) -> dict[str, float]:
        """Return what a printed line may have, and begin the next print period.

        For numbers, the mean of the period. For metrics the value so far, and under ``batch_`` and
        their names the period's.
        """
        now = self._now()
        period = now.since(self._period).results()
        self._period = now
        so_far = now.since(self._begin).and_(self._earlier).states.results()
        return period | {f"{RECENT}{name}": value for name, value in period.items()} | so_far


def _loaded(total: str, weight: float, not_finite: int) -> _Sum:
    return _Sum(float(total), float(weight), int(not_finite))  # the sum may be infinite


@dataclass
class EpochProgress:
    """An epoch, also one of which another run has trained a part.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    iterator : LeasedIterator
        What is left of it.
    figures : EpochFigures
        What closures reported.
    began : float
        When, of the monotonic clock.
    earlier_seconds : float
        How long the part took that another run has trained.
    seconds : float or None
        How long this run took, once it is over.
    """

    epoch: int
    iterator: LeasedIterator
    figures: EpochFigures
    began: float
    earlier_seconds: float
    seconds: float | None = None

    def end(self) -> None:
        """Note that it is over."""
        self.seconds = time.monotonic() - self.began

    def snapshot(self) -> TrainingSnapshot:
        """Return the figures of now."""
        seconds = time.monotonic() - self.began if self.seconds is None else self.seconds
        return TrainingSnapshot(
            self.epoch,
            self.iterator.progress().visits,
            self.figures.examples,
            self.figures.so_far(),
            self.earlier_seconds + seconds,
        )

    def part(self) -> dict[str, Any]:
        """Return its result so far, in JSON's types, for another run to continue."""
        return {**self.figures.saved(), "seconds": self.snapshot().seconds}
