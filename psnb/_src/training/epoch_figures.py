"""EpochFigures: what closures report in one epoch, and in each of its print periods. One thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from psnb._src.coordinator import ClusterCoordinator
from psnb._src.metrics import MetricStates
from psnb._src.monitor import MetricStatistics

EXAMPLES = "examples"

NO_METRICS = (EXAMPLES, "programs")
"""What steps report that says nothing of the model; its mean says nothing at all."""

RECENT = "batch_"
"""What begins the name of a metric that is wanted of the print period alone."""

_NONE = MetricStatistics(0, float("nan"), float("nan"))


class _Mark(NamedTuple):
    """What was reported up to one moment."""

    numbers: Mapping[str, MetricStatistics]
    states: MetricStates

    def since(self, earlier: _Mark) -> dict[str, float]:
        """Return the mean of each number, and the value of each metric, after another moment."""
        found = {}
        for name, each in self.numbers.items():
            before = earlier.numbers.get(name, _NONE)
            # The coordinator keeps series of the metrics, too.
            merged = name in self.states or name.removeprefix(RECENT) in self.states
            if each.weight > before.weight and name not in NO_METRICS and not merged:
                mean = (each.total - before.total) / (each.weight - before.weight)
                found[name] = mean if each.not_finite == before.not_finite else float("nan")
        return found | self.states.since(earlier.states).results()


class EpochFigures:
    """The metrics of what closures have reported since this was made.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Whose closures.
    """

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        self._coordinator = coordinator
        self._begin = self._period = self._now()

    def _now(self) -> _Mark:
        return _Mark(self._coordinator.statistics().metrics, self._coordinator.metrics)

    @property
    def examples(self) -> int | None:
        """The sum of the reported ``examples``; None if there were none."""
        now = self._coordinator.statistics().metrics
        if EXAMPLES not in now:
            return None
        return int(now[EXAMPLES].total - self._begin.numbers.get(EXAMPLES, _NONE).total)

    def so_far(self) -> dict[str, float]:
        """Return the metrics of the epoch so far."""
        return self._now().since(self._begin)

    def lines(self) -> dict[str, float]:
        """Return what a printed line may have, and begin the next print period.

        Of numbers, the mean of the period. Of metrics the value so far, and under ``batch_`` and
        their names that of the period.
        """
        now = self._now()
        period = now.since(self._period)
        self._period = now
        so_far = {
            name: now.since(self._begin)[name] for name in now.states.since(self._begin.states)
        }
        return period | {f"{RECENT}{name}": value for name, value in period.items()} | so_far
