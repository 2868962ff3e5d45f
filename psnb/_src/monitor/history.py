"""History: the metrics that closures report, thousands of points of each in constant memory.

The coordinator's event loop writes it, the notebook's and the widget's threads read it, and add
merged metrics when they do. One lock guards the series, and no callback runs while it is held.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import numpy as np

from psnb._src.metrics.slice_table import SliceTable
from psnb._src.monitor.counters import Rate
from psnb._src.monitor.statistics import MetricStatistics
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.text import NAME, truncate

logger = logging.getLogger("psnb")

SMOOTHING = 0.02
"""Weight of a new value in the moving average: about the last hundred values count."""

MOST_METRICS = 500
"""Metrics that are kept, each of 391 KiB at most; further ones are dropped, with one warning."""

EXAMPLES = "examples"
"""The metric that counts training examples: ``psnb.report(examples=len(batch))``."""

NO_METRICS = (EXAMPLES, "programs")
"""What steps report that says nothing of the model; views have it last."""

MOST_EPOCHS = 200
"""Epochs whose begin is kept; when there are more, every second one goes."""

MOST_REWINDS = 200
"""Rewinds that are kept; when there are more, the oldest goes."""

VALIDATION = "val_"
"""The prefix of a validation metric's name."""

POINT = np.dtype(
    [("step", "<i8"), ("time", "<f8"), ("value", "<f8"), ("smoothed", "<f8"), ("examples", "<f8")]
)
"""One point; arrays of points are copied in microseconds, so a reader holds the lock only
briefly."""


class EpochBegin(NamedTuple):
    """Where an epoch began: at which step, and when, in seconds since the epoch of clocks."""

    epoch: int
    step: int
    time: float


class Rewind(NamedTuple):
    """Where parameters went back: the step, the moment, and the examples by then.

    ``back`` is the moment to which they went. All points before a moment have its time or an
    earlier one, all behind it a later one.
    """

    step: int
    time: float
    examples: float
    back: float


@dataclass(frozen=True, slots=True)
class Points:
    """Points of a series from a start on.

    Attributes
    ----------
    start : int
        The number of points before these.
    stride : int
        Of how many values each is one; when it doubles, points get new numbers.
    points : numpy.ndarray
        Each has its ``step`` (how many values the metric that is reported most often had by then,
        so that all metrics share an axis), its ``time`` (seconds since the epoch), its ``value``,
        that ``smoothed``, and how many ``examples`` had been reported by then.
    """

    start: int
    stride: int
    points: np.ndarray


_Value = tuple[int, float, float, float]
"""The step, the time, the value, and the examples so far."""


@dataclass
class _Series:
    stride: int = 1
    count: int = 0
    last: float = float("nan")
    smoothed: float = float("nan")
    length: int = 0
    points: np.ndarray = field(default_factory=lambda: np.empty(0, POINT))


class History:
    """Series of reported metrics, thinned out evenly once they are long.

    Thread-safe.

    Parameters
    ----------
    capacity : int
        Points kept for each metric. When a series is full, every second point is dropped and from
        then on only every second value is kept, so a series always spans the whole run.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._series: dict[str, _Series] = {}
        self._slices: dict[str, SliceTable] = {}
        self._examples, self._total = Rate(), 0.0
        self._steps = 0  # most values of any metric; validation aside
        self._epochs: list[EpochBegin] = []
        self._rewinds: list[Rewind] = []
        self._moment = self._newest = -math.inf  # the last one, and the latest time of a point
        self._lock = Lock()  # guards all of the above, and what is in it
        self._dropped = ""  # the first that was one too many
        self._warned = False

    def add(self, time: float, values: dict[str, float], *, averaged: bool = True) -> None:
        """Record one report.

        Parameters
        ----------
        time : float
            When it was reported, in seconds since the epoch.
        values : dict of str to float
            The reported metrics.
        averaged : bool
            Whether the smoothed value is an average of values. If not, it is the value itself, as
            for one that is a mean of all so far.
        """
        self.add_all([(time, values)], averaged=averaged)

    def add_all(
        self, reports: Sequence[tuple[float, dict[str, float]]], *, averaged: bool = True
    ) -> None:
        """Record reports, each with its time; cheaper than one by one."""
        with self._lock:
            examples = [values[EXAMPLES] for _, values in reports if EXAMPLES in values]
            if examples:
                self._examples.add(sum(examples), monotonic())
            by_name: dict[str, list[_Value]] = {}
            counts: dict[str, int] = {}
            steps = self._steps
            for time, values in reports:
                time = self._behind(time)
                more = values.get(EXAMPLES, 0.0)
                self._total += more if math.isfinite(more) else 0.0
                for name in values:
                    count = counts.get(name)
                    if count is None:
                        known = self._series.get(name)
                        count = 0 if known is None else known.count
                        by_name[name] = []
                    counts[name] = count = count + 1
                    if count > steps:
                        steps = count
                for name, value in values.items():
                    by_name[name].append((steps, time, value, self._total))
            self._steps = steps
            for name, several in by_name.items():
                self._append(name, several, averaged)
        self._warn()

    def add_validation(self, time: float, values: Mapping[str, float]) -> None:
        """Record validation metrics, at the step that training has reached.

        Parameters
        ----------
        time : float
            When, in seconds since the epoch.
        values : mapping of str to float
            By the names of the metrics; here they begin with `VALIDATION`.
        """
        with self._lock:
            time = self._behind(time)
            for name, value in values.items():
                self._append(VALIDATION + name, [(self._steps, time, value, self._total)], False)
        self._warn()

    def begin_epoch(self, time: float, epoch: int | None) -> None:
        """Note that an epoch begins, at seconds since the epoch of clocks; by default the next."""
        with self._lock:
            last = self._epochs[-1].epoch if self._epochs else 0
            self._epochs.append(EpochBegin(epoch or last + 1, self._steps, time))
            if len(self._epochs) > MOST_EPOCHS:
                del self._epochs[1::2]

    def epochs(self) -> tuple[EpochBegin, ...]:
        """Return where epochs began, in order."""
        with self._lock:
            return tuple(self._epochs)

    def rewinds(self) -> tuple[Rewind, ...]:
        """Return where parameters went back, in order."""
        with self._lock:
            return tuple(self._rewinds)

    def moment(self, now: float) -> float:
        """Return a time that divides all points until now from all later ones.

        Clocks of workers may differ from that of ``now``, in seconds since the epoch.
        """
        with self._lock:
            return self._divide(now)

    def cut(self, now: float, back: float) -> None:
        """Note that parameters went back to a moment; averages begin anew.

        Parameters
        ----------
        now, back : float
            Seconds since the epoch; the second is the moment, and 0 one before all points.
        """
        with self._lock:
            moment = self._divide(now)
            self._rewinds.append(Rewind(self._steps, moment, self._total, min(back, moment)))
            del self._rewinds[:-MOST_REWINDS]
            for series in self._series.values():
                series.smoothed = float("nan")

    def _divide(self, now: float) -> float:
        self._moment = max(now, self._newest, self._moment)
        return self._moment

    def _behind(self, time: float) -> float:
        """Return the time of a point, which is behind the last moment."""
        if time <= self._moment:
            time = math.nextafter(self._moment, math.inf)
        self._newest = max(self._newest, time)
        return time

    def set_slices(self, name: str, table: SliceTable) -> None:
        """Keep a metric's latest values by slice."""
        with self._lock:
            if name in self._slices or len(self._slices) < MOST_METRICS:
                self._slices[name] = table

    def slices(self) -> dict[str, SliceTable]:
        """Return the latest values by slice, by metric."""
        with self._lock:
            return dict(self._slices)

    def _append(self, name: str, several: Sequence[_Value], averaged: bool) -> None:
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= MOST_METRICS:
                self._dropped = self._dropped or name
                return
            series = self._series[name] = _Series(points=np.empty(self._capacity, POINT))
        count, smoothed, rows = series.count, series.smoothed, []
        for step, when, value, examples in several:
            count += 1
            # A plain mean until there are enough values, then exponential: no slow start from the
            # first value. A NaN does not spoil the average for ever.
            if not averaged or math.isnan(smoothed):
                smoothed = value
            elif not math.isnan(value):
                smoothed += max(SMOOTHING, 1.0 / count) * (value - smoothed)
            if count % series.stride == 0:
                rows.append((step, when, value, smoothed, examples))
                if series.length + len(rows) >= self._capacity:
                    self._keep(series, rows)
                    rows = []
        series.count, series.last, series.smoothed = count, several[-1][2], smoothed
        if rows:
            self._keep(series, rows)

    def _keep(self, series: _Series, rows: list[tuple[int, float, float, float, float]]) -> None:
        """Append points for which there is room; drop every second one if it is full then."""
        end = series.length + len(rows)
        series.points[series.length : end] = rows
        series.length = end
        if end >= self._capacity:
            kept = series.points[1::2].copy()  # The two sides overlap.
            series.length = len(kept)
            series.points[: series.length] = kept
            series.stride *= 2

    def _warn(self) -> None:
        # Without the lock: handlers of users may ask for metrics.
        if self._dropped and not self._warned:
            self._warned = True
            logger.warning(
                "psnb.report(%s=...): %d metrics are kept, and there are more; new ones are "
                "dropped. Report what varies as a value, not as a name",
                truncate(self._dropped, NAME),
                MOST_METRICS,
            )

    def examples_per_second(self) -> float | None:
        """Return how many `EXAMPLES` were reported per second lately; None if there were none."""
        with self._lock:
            return self._examples.value(monotonic()) if EXAMPLES in self._series else None

    def metrics(self) -> dict[str, MetricStatistics]:
        """Return the newest figures of each metric, by name; without totals.

        Each is followed by its validation; values that are no metrics of the model come last.
        """
        with self._lock:
            found = {
                name: MetricStatistics(s.count, s.last, s.smoothed)
                for name, s in self._series.items()
            }
        first = {name: number for number, name in enumerate(found)}

        def place(name: str) -> tuple[bool, int, int]:
            trained = name.removeprefix(VALIDATION)
            return name in NO_METRICS, first.get(trained, first[name]), first[name]

        return {name: found[name] for name in sorted(found, key=place)}

    def points(self, name: str, stride: int = 0, start: int = 0) -> Points:
        """Return one metric's points from ``start`` on; all of them if it was thinned since.

        Parameters
        ----------
        name : str
            A name that closures report.
        stride, start : int
            The position after earlier points: the two attributes of an earlier `Points`, with its
            length added to ``start``.

        Raises
        ------
        KeyError
            If no metric with that name was reported yet.
        """
        with self._lock:
            series = self._series[name]
            if series.stride != stride:
                start = 0
            return Points(start, series.stride, series.points[start : series.length].copy())

    def series(self, name: str) -> dict[str, np.ndarray]:
        """Return one metric's points.

        Parameters
        ----------
        name : str
            A name that closures report.

        Returns
        -------
        dict of str to numpy.ndarray
            ``step`` (int64: how many values the metric that is reported most often had by then),
            ``time`` (float64, seconds since the epoch), ``value``, ``smoothed`` and ``examples``
            (float64; how many had been reported), each of shape ``(points,)``.

        Raises
        ------
        KeyError
            If no metric with that name was reported yet.
        """
        points = self.points(name).points
        return {field: np.ascontiguousarray(points[field]) for field in POINT.names or ()}
