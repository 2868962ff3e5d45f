"""EpochProgress: what came of one epoch so far, and of each of its print periods. One thread.

The part of the epoch that an earlier run has trained counts as well; it is saved in JSON's types.
`FetchLines` prints metrics every n batches, as Paddle's fetch list does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.metrics.metric import MetricStates
from psnb._src.metrics.saved import loaded_states, saved_states
from psnb._src.metrics.slice_table import SliceTable
from psnb._src.monitor.history import EXAMPLES, VALIDATION
from psnb._src.training.history import TrainingSnapshot
from psnb._src.training.reported import RECENT, Reported, Sum
from psnb._src.utils.checks import integer
from psnb._src.utils.text import shown, unknown
from psnb.errors import ConfigurationError

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

    def slices(self) -> dict[str, SliceTable]:
        """Return the worst slices of each metric that has some, so far."""
        return self._reported(self._now()).slices()

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


class FetchLines:
    """Lines such as ``epoch 1 batch 400: loss 0.4312 auc 0.7812 batch_auc 0.7901``.

    Parameters
    ----------
    names : iterable of str
        Metrics; see `Trainer.train_from_dataset`.
    every : int
        The print period, in batches.

    Raises
    ------
    ConfigurationError
        If the names are not a list of str, or the period is not positive.
    """

    def __init__(self, names: Iterable[str], every: int) -> None:
        several = isinstance(names, Iterable) and not isinstance(names, str)
        self._names: list[Any] = list(names) if several else [names]
        if not all(isinstance(each, str) for each in self._names):
            raise ConfigurationError(f"fetch takes names of metrics, found {shown(names)}")
        if late := [each for each in self._names if each.startswith(VALIDATION)]:
            raise ConfigurationError(
                f"fetch has {late[0]!r}, a metric of validation, which an epoch has at its end: "
                "a line has it there without being asked, as do the history and on_epoch"
            )
        self._every = integer("fetch_every", every, 1)
        self._printed = 0
        self._checked = False

    def begin(self) -> None:
        """Count batches from zero."""
        self._printed = 0

    def due(self, batch: int) -> bool:
        """Return whether a line is due; once for each print period."""
        if not self._names or batch // self._every <= self._printed // self._every:
            return False
        self._printed = batch
        return True

    def line(self, epoch: int, batch: int, values: Mapping[str, float]) -> str:
        """Return a line; a metric that was not reported since the last one is shown as ``-``.

        Raises
        ------
        ConfigurationError
            As `check`.
        """
        self.check(values)
        shown = (
            f"{name} {values[name]:.4f}" if name in values else f"{name} -" for name in self._names
        )
        return f"epoch {epoch} batch {batch}: {' '.join(shown)}"

    def validation(self, epoch: int, values: Mapping[str, float]) -> str:
        """Return the line at an epoch's end, such as ``epoch 1: val_auc 0.7812``.

        Empty if no lines are wanted.
        """
        shown = " ".join(f"{VALIDATION}{name} {value:.4f}" for name, value in values.items())
        return f"epoch {epoch}: {shown}" if self._names else ""

    def check(self, values: Mapping[str, float], *, over: bool = False) -> None:
        """Check the names by the first values that there are; with each line, and after an epoch.

        Not as soon as a closure has reported: a step need not report all of them each time. But
        where an epoch that had batches is ``over``, something must have been reported.

        Raises
        ------
        ConfigurationError
            If they lack one of the names: lines would lack it for ever.
        """
        if self._checked or not (values or over):
            return
        self._checked = True
        for name in self._names:
            if name not in values:
                raise ConfigurationError(
                    f"fetch takes what the step reports, as by psnb.report({name}=...): "
                    + unknown("metric", name, sorted(values))
                )
