"""MergedMetrics: metrics that closures report, merged over all that succeeded.

The scheduler hands it over, packed, on the event loop: that only appends to a deque. A reader
merges them first, and so does the event loop when many have arrived. One lock guards what is
merged; the lock of the history is taken within.
"""

from __future__ import annotations

import logging
import pickle
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic

from psnb._src.metrics.metric import MergeableMetric, MetricState, MetricStates, joined, united
from psnb._src.monitor.history import MOST_METRICS, History
from psnb._src.monitor.statistics import MetricStatistics
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.text import NAME, text_of, truncate

logger = logging.getLogger("psnb")

MOST_ARRIVED = 32
"""Closures whose states are merged together: more are cheaper, and block others for longer."""

_NOTHING = MetricStates({})

PERIOD = 1.0
"""Seconds between two points of the charts, at least."""


_REST = 20
"""How many times as long as it took until values are computed again: large states take long."""

_QUICK = 0.01
"""Seconds that values may take each time that a view asks for them."""


def sampled(name: str, state: MetricState) -> str:
    """Return a sentence if the value of a state is that of a sample; empty if not."""
    if state.coverage == 1:
        return ""
    return (
        f"{name}: of {state.coverage:.1%} of the examples, as there are more groups than "
        "capacity= holds: a larger one takes more memory (MetricState.coverage)"
    )


def warn_of_samples(states: MetricStates) -> None:
    """Warn of each state of which the value is that of a sample."""
    for name, state in states.items():
        if sentence := sampled(name, state):
            logger.warning("%s", sentence)


def recent_name(name: str) -> str:
    """Return what a metric's value over the examples since the last point is called.

    ``batch_auc`` as in Paddle; ``train/batch_auc`` stays in the group of ``train/auc``.
    """
    group, slash, last = name.rpartition("/")
    return f"{group}{slash}batch_{last}"


class MergedMetrics:
    """Metrics by name, since the coordinator was made. Thread-safe.

    Charts and figures are of the epoch: a trainer's printed lines and its history have the same
    values by the same names. Before the first epoch, they are of all closures.

    Parameters
    ----------
    history : History
        Gets a point of each metric now and then, and one of its latest examples alone.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._arrived: deque[bytes] = deque()  # its operations are atomic
        self._lock = Lock()  # guards all that follows, and that no state is merged twice
        # By metric, too: if a changed cell reports another metric under an old name, closures of
        # the old one may still end, and a mark (`MetricStates`) must stay a part of its metric.
        self._merged: dict[tuple[str, MergeableMetric], MetricState] = {}
        self._latest: dict[str, MergeableMetric] = {}
        self._numbers: dict[str, tuple[float, float, int]] = {}  # as `ReportedStates` has them
        self._of_one: dict[str, MergeableMetric] = {}  # what each name stands for in this epoch
        self._begun = self._earlier = _NOTHING  # before the epoch; of it, in an earlier run
        self._drawn = _NOTHING
        self._drawn_at, self._cost = float("-inf"), 0.0
        self._changes = 0  # of what the values of an epoch follow from
        # After how many of them, the values, when, and in how many seconds.
        self._computed: tuple[int, Mapping[str, float], float, float] = -1, {}, 0.0, 0.0
        self._complaint: str | None = None  # the first; more would be too much
        self._complained = False

    def add(self, packed: bytes) -> None:
        """Take the pickled metrics of a closure that has ended well; never blocks or raises."""
        self._arrived.append(packed)

    def states(self) -> MetricStates:
        """Return what was merged."""
        with self._lock:
            states = self._merge()
        self._warn_once()
        return states

    def begin(self, now: float, earlier: MetricStates = _NOTHING) -> None:
        """Draw the present values, and count for views from zero: an epoch begins.

        Parameters
        ----------
        now : float
            Seconds since the epoch.
        earlier : MetricStates
            What an earlier run had of the epoch.
        """
        self.draw(now, period=0.0)
        with self._lock:
            self._begun, self._earlier = self._merge(), earlier
            self._of_one.clear()
            self._changes += 1

    def draw(self, now: float, period: float = PERIOD) -> None:
        """Add points to the history if the last ones are old enough and values have changed.

        Also merges what has arrived, if that is much.

        Parameters
        ----------
        now : float
            Seconds since the epoch.
        period : float
            Seconds that must have passed since the last points.
        """
        with self._lock:
            due = now - self._drawn_at >= max(period, _REST * self._cost * bool(period))
            if not due and len(self._arrived) < MOST_ARRIVED:
                return
            begun = monotonic()
            states = self._merge()
            if not due:
                return
            recent = states.since(self._drawn)
            if recent:
                self._drawn, self._drawn_at = states, now
                epoch = self._of_epoch(states)
                whole = MetricStates({name: epoch[name] for name in recent if name in epoch})
                self._history.add(now, self._results(whole), averaged=False)
                latest = self._results(recent)
                self._history.add(now, {recent_name(name): latest[name] for name in latest})
                self._keep_slices(whole)
                self._cost = monotonic() - begun
        self._warn_once()

    def bring_up_to_date(
        self, metrics: Mapping[str, MetricStatistics]
    ) -> dict[str, MetricStatistics]:
        """Return figures of the history with the merged values and totals as they are now."""
        states = self.states()
        with self._lock:
            current, numbers = self._current(states), dict(self._numbers)
        self._warn_once()
        found = dict(metrics)
        for name, each in metrics.items():
            if name in current:
                found[name] = replace(each, last=current[name], smoothed=current[name])
            elif name in numbers:
                total, weight, not_finite = numbers[name]
                found[name] = replace(each, total=total, weight=weight, not_finite=not_finite)
        return found

    def _current(self, states: MetricStates) -> Mapping[str, float]:
        """Return the values of the epoch; of large states, those of some time ago."""
        changes, values, at, cost = self._computed
        begun = monotonic()
        if changes == self._changes or (cost > _QUICK and begun < at + _REST * cost):
            return values
        values = self._results(self._of_epoch(states))
        now = monotonic()
        self._computed = self._changes, values, now, now - begun
        return values

    def _of_epoch(self, states: MetricStates) -> MetricStates:
        news = states.since(self._begun)
        both = united(self._earlier, news)
        return MetricStates({name: both[name] for name in news})

    def _merge(self) -> MetricStates:
        arrived: dict[tuple[str, MergeableMetric], list[MetricState]] = {}
        while self._arrived:
            try:
                numbers, found = pickle.loads(self._arrived.popleft())
            except Exception as error:  # a module for a metric of the user's may be missing
                self._complain(f"what a closure reported could not be unpickled: {text_of(error)}")
                continue
            for name in numbers.keys() & self._latest.keys():
                self._complain(
                    f"psnb.report({truncate(name, NAME)}=...): numbers are left out of what was "
                    f"reported as {self._latest[name]} before: give them another name"
                )
            for name, (total, weight, not_finite) in numbers.items():
                if name in self._numbers or len(self._numbers) < MOST_METRICS:
                    before = self._numbers.get(name, (0.0, 0.0, 0))
                    added = before[0] + total, before[1] + weight, before[2] + not_finite
                    self._numbers[name] = added
            for name, state in found.items():
                try:
                    arrived.setdefault((name, state.metric), []).append(state)
                except TypeError as error:  # a metric of the user's that has no hash
                    self._complain(
                        f"{name}: what closures reported could not be merged: {text_of(error)}"
                    )
        self._changes += bool(arrived)
        for (name, metric), states in arrived.items():
            key = name, metric
            if self._begun is not _NOTHING and self._of_one.setdefault(name, metric) != metric:
                self._complain(
                    f"psnb.report({truncate(name, NAME)}=...): in one epoch reported as "
                    f"{self._of_one[name]} and as {metric}: its value is of some examples only; "
                    "give each a name of its own"
                )
            if key in self._merged:
                states = [self._merged[key], *states]
            elif len(self._merged) >= MOST_METRICS:
                self._complain(
                    f"psnb.report({truncate(name, NAME)}=...): {MOST_METRICS} metrics are merged, "
                    "and there are more; new ones are dropped"
                )
                continue
            try:
                self._merged[key], self._latest[name] = joined(states), metric
            except Exception as error:  # a metric of the user's, or counts beyond 2**43
                self._complain(
                    f"{name}: what closures reported could not be merged: {text_of(error)}"
                )
        return MetricStates({name: self._merged[name, each] for name, each in self._latest.items()})

    def _results(self, states: MetricStates) -> dict[str, float]:
        results = {}
        for name, state in states.items():
            try:
                results[name] = state.result()
                if part := sampled(name, state):
                    self._complain(part)
            except Exception as error:  # a metric of the user's
                self._complain(f"{name}: {state.metric} has no value: {text_of(error, repr)}")
        return results

    def _keep_slices(self, states: MetricStates) -> None:
        for name, state in states.items():
            try:
                if table := state.slices:
                    self._history.set_slices(name, table)
            except Exception as error:  # a metric of the user's
                self._complain(f"{name}: {state.metric} has no slices: {text_of(error, repr)}")

    def _complain(self, text: str) -> None:
        if self._complaint is None:
            self._complaint = truncate(text)

    def _warn_once(self) -> None:
        # Without the lock: handlers of users may ask for metrics.
        if self._complaint is not None and not self._complained:
            self._complained = True
            logger.warning("%s", self._complaint)
