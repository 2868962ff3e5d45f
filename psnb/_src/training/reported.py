"""Reported: what closures have reported, added up: in a part of an epoch, or of a dataset. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from psnb._src.metrics.metric import MetricStates, united
from psnb._src.metrics.slice_table import SliceTable
from psnb._src.monitor.history import NO_METRICS

RECENT = "batch_"
"""What begins the name of a metric that is wanted of the print period alone."""

MOST_KEPT = 100
"""Slices of a metric that the history of training keeps of each epoch: the worst."""


class Sum(NamedTuple):
    """Of a number: its sum times weights, the sum of weights, and how many were not finite."""

    total: float = 0.0
    weight: float = 0.0
    not_finite: int = 0

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """Return the sum of both, or the difference."""
        return Sum(
            self.total + sign * other.total,
            self.weight + sign * other.weight,
            self.not_finite + sign * other.not_finite,
        )


class Reported(NamedTuple):
    """What was reported up to one moment, or between two."""

    numbers: Mapping[str, Sum] = {}
    states: MetricStates = MetricStates({})

    def since(self, earlier: Reported) -> Reported:
        """Return what was reported after another moment."""
        found = {}
        for name, each in self.numbers.items():
            before = earlier.numbers.get(name, Sum())
            # The coordinator keeps series of the metrics, too.
            merged = name in self.states or name.removeprefix(RECENT) in self.states
            if each.weight > before.weight and not merged:
                found[name] = each.plus(before, -1)
        return Reported(found, self.states.since(earlier.states))

    def and_(self, other: Reported) -> Reported:
        """Return what was reported here or there."""
        numbers = dict(other.numbers)
        for name, each in self.numbers.items():
            numbers[name] = numbers.get(name, Sum()).plus(each)
        return Reported(numbers, united(other.states, self.states))

    def slices(self) -> dict[str, SliceTable]:
        """Return the worst slices of each metric that has some."""
        return {name: table.worst(MOST_KEPT) for name, table in self.states.slices().items()}

    def results(self) -> dict[str, float]:
        """Return the mean of each number, and the value of each metric."""
        means = {
            name: float("nan") if each.not_finite else each.total / each.weight
            for name, each in self.numbers.items()
            if name not in NO_METRICS and each.weight
        }
        return means | self.states.results()
