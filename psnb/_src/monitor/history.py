"""Bounded history of the metrics that closures report: thousands of points, constant memory.

The coordinator's event loop writes it, the notebook's and the widget's threads read it, and add
merged metrics when they do. One lock guards the series, and no callback runs while it is held.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Literal, NamedTuple, TypedDict

import numpy as np

from psnb._src.utils.profiling import PhaseStatistics, Stages, merged_chains, starved
from psnb._src.utils.text import NAME, truncate
from psnb._src.utils.threads import Lock

# Timeline: when which worker ran closures, over the last minute. Thread-safe.
#
# The coordinator's event loop writes it, the views' threads read it. A worker may run ten thousand
# closures a second, too many to see each: consecutive short ones become one span.

MINUTE = 60.0
"""How far back the timeline goes, in seconds."""

_SHORT = 0.1  # seconds; shorter closures are merged
_GAP = 0.05  # seconds; shorter pauses are merged too
_LONGEST = 1.0  # seconds of a merged span, so that old spans need not be sent again
_MOST = 600  # spans a worker


class Span(TypedDict):
    """Consecutive closures on one worker, without a visible gap.

    A span replaces the one with the same worker and start that a view has. Views drop spans that
    ended more than a minute ago.
    """

    worker: int  # index
    start: float  # seconds since the epoch
    end: float
    closures: int
    failed: int


class Timeline:
    """Spans of closures by worker."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the spans, which must not change while copied
        self._spans: dict[int, deque[Span]] = {}

    def add(
        self, worker: int, seconds: Sequence[float], failed: int, threads: int, now: float
    ) -> None:
        """Note closures whose outcomes arrived together.

        Parameters
        ----------
        worker : int
            Its index.
        seconds : sequence of float
            How long each took.
        failed : int
            How many raised.
        threads : int
            How many ran side by side at most.
        now : float
            When they came, in seconds since the epoch.
        """
        length = max(max(seconds), sum(seconds) / threads)
        start, count = now - length, len(seconds)
        with self._lock:
            spans = self._spans.setdefault(worker, deque(maxlen=_MOST))
            last = spans[-1] if spans else None
            if (
                last is not None
                and start - last["end"] < _GAP
                and length / count < _SHORT
                and (last["end"] - last["start"]) / last["closures"] < _SHORT
                and now - last["start"] < _LONGEST
            ):
                last["end"] = max(now, last["end"])
                last["closures"] += count
                last["failed"] += failed
            else:
                spans.append(
                    Span(worker=worker, start=start, end=now, closures=count, failed=failed)
                )
            while spans[0]["end"] < now - MINUTE:
                spans.popleft()

    def since(self, when: float) -> list[Span]:
        """Return copies of the spans that have ended, or grown, later than that."""
        found: list[Span] = []
        with self._lock:
            for spans in self._spans.values():
                for span in reversed(spans):
                    if span["end"] <= when:
                        break
                    found.append(span.copy())
        return found


# Rate: the recent amount of something per second. Pure.

SECONDS = 5
"""The length of the window."""


class Rate:
    """Counts over a sliding window of whole seconds.

    Not thread-safe for writers; a reader in another thread may get a slightly old value.
    """

    __slots__ = ("_counts", "_first", "_newest")

    def __init__(self) -> None:
        self._counts = [0.0] * (SECONDS + 1)  # of the current second, and of those before
        self._newest = -1
        self._first = -1.0  # when counting began

    def add(self, amount: float, now: float) -> None:
        """Count something that happened now.

        Parameters
        ----------
        amount : float
            How much.
        now : float
            Seconds by a monotonic clock, always the same one.
        """
        if self._first < 0:
            self._first = now
        self._move(int(now))
        self._counts[int(now) % len(self._counts)] += amount

    def value(self, now: float) -> float:
        """Return the amount per second over the last seconds; 0 before the first `add`."""
        if self._first < 0:
            return 0.0
        second = int(now)
        # It writes nothing, so any thread may call it. Counts that are too old are skipped.
        if second == self._newest:
            total = sum(self._counts)
        else:
            total = sum(
                self._counts[each % len(self._counts)]
                for each in range(max(0, second - SECONDS), min(second, self._newest) + 1)
                if each > self._newest - len(self._counts)
            )
        return total / min(max(now - self._first, 0.25), SECONDS + now - second)

    def _move(self, second: int) -> None:
        size = len(self._counts)
        for each in range(max(self._newest + 1, second - size + 1), second + 1):
            self._counts[each % size] = 0.0
        self._newest = max(self._newest, second)


# Staleness: how many other updates came between a closure's read and its update. Thread-safe.
#
# The coordinator's event loop writes it, the notebook's and the widget's threads read it. One lock
# guards the counts.


@dataclass(frozen=True, slots=True)
class StalenessStatistics:
    """The staleness of all updates so far.

    The staleness of a closure's update is the number of updates by other closures that a shard has
    applied between the closure's first read there and its own commit. With several shards the
    largest number counts. A closure that read nothing has staleness 0; one that wrote nothing made
    no update.

    Attributes
    ----------
    count : int
        Updates.
    mean : float
        NaN before the first.
    max : int
        0 before the first.
    histogram : tuple of int
        How many had staleness 0, 1, 2 to 3, 4 to 7, and so on by powers of two; as long as needed.
    """

    count: int
    mean: float
    max: int
    histogram: tuple[int, ...]


class Staleness:
    """Counts updates by their staleness."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the fields below, for a moment each
        self._count = self._total = self._max = 0
        self._histogram: list[int] = []

    def add(self, staleness: int) -> None:
        """Count one update."""
        self.add_all([staleness])

    def add_all(self, several: Sequence[int]) -> None:
        """Count updates."""
        with self._lock:
            self._count += len(several)
            self._total += sum(several)
            self._max = max(self._max, *several)
            self._histogram += [0] * (self._max.bit_length() + 1 - len(self._histogram))
            for staleness in several:
                self._histogram[staleness.bit_length()] += 1

    def statistics(self) -> StalenessStatistics:
        """Return a snapshot."""
        with self._lock:
            mean = self._total / self._count if self._count else float("nan")
            return StalenessStatistics(self._count, mean, self._max, tuple(self._histogram))


# How far training is, and how long it takes yet.
#
# The thread that trains begins epochs and ends; any thread asks. One lock guards what they share,
# and no count is asked for while it is held.


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far training is: of a `Trainer`, of Keras's ``fit``, or of one ``run_epoch``.

    Attributes
    ----------
    epoch, epochs : int or None
        The epoch, from 1 on, and how many there are to be; None in ``run_epoch``, which is one.
    batch : int
        Batches that were used in it.
    batches : int or None
        How many it has; None until that is known.
    left : float or None
        Estimated seconds until all epochs are over; None if unknown, or if training has ended.
    """

    epoch: int | None
    epochs: int | None
    batch: int
    batches: int | None = None
    left: float | None = None


class EpochCount(NamedTuple):
    """How much of an epoch was used.

    Attributes
    ----------
    batch : int
        Batches that were used.
    batches : int or None
        How many it has; None if that is not known.
    parts : tuple of int
        Parts of the dataset that are done, and how many there are; zeros if it has none.
    """

    batch: int
    batches: int | None = None
    parts: tuple[int, int] = (0, 0)

    @property
    def share(self) -> float | None:
        """How much of the epoch is done, 0 to 1; None if unknown."""
        done, of = self.parts if self.batches is None else (self.batch, self.batches)
        return min(1.0, done / of) if of else None


_EARLY = 0.25
"""The share of an epoch within which its first batch is seen to have ended, or else it counts."""


class _Mark(NamedTuple):
    time: float
    place: float  # in epochs


class TrainingClock:
    """Estimates how long training takes yet, by its speed in the last epoch and the present one.

    Of the speed since the beginning, the first batch would be a part, which compiles: a hundred
    short epochs would seem to take minutes for long.

    Parameters
    ----------
    epochs : int, optional
        How many there are to be; None of ``run_epoch``.
    now : callable
        Returns seconds.
    """

    def __init__(
        self, epochs: int | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._epochs, self._now = epochs, now
        self._lock = Lock()  # guards all that follows
        self._epoch: int | None = None
        self._count: Callable[[], EpochCount] | None = None
        self._marks: tuple[_Mark, ...] = ()  # of the last epoch and the present one
        self._began = 0  # batches, when the first epoch began here
        self._warm = False  # whether a batch has ended
        self._ended: TrainingProgress | None = None

    def begin(self, epoch: int | None, count: Callable[[], EpochCount]) -> None:
        """Note that an epoch begins; any thread may call ``count``."""
        now, found = self._now(), count()
        with self._lock:
            if not self._marks:
                self._began = found.batch
            mark = _Mark(now, (epoch or 1) - 1 + (found.share or 0.0))
            self._marks = (*self._marks[-1:], mark)
            self._epoch, self._count = epoch, count

    def end(self) -> None:
        """Note that training has ended where it is."""
        found = self.progress()
        with self._lock:
            self._ended = None if found is None else replace(found, left=None)
            self._count = None

    def progress(self) -> TrainingProgress | None:
        """Return how far training is; None before the first epoch."""
        with self._lock:
            epoch, count, ended = self._epoch, self._count, self._ended
        if count is None:
            return ended
        now, found = self._now(), count()
        with self._lock:
            left = None if self._epoch != epoch else self._left(now, found)
        return TrainingProgress(epoch, self._epochs, found.batch, found.batches, left)

    def _left(self, now: float, found: EpochCount) -> float | None:
        if found.share is None:
            return None
        place = (self._epoch or 1) - 1 + found.share
        first = self._marks[0]
        if not self._warm and found.batch > self._began:
            self._warm = True
            if place - first.place < _EARLY:
                first = _Mark(now, place)
                self._marks = (first,)
        gone, ahead = place - first.place, (self._epochs or 1) - place
        return (now - first.time) / gone * max(0.0, ahead) if gone > 1e-9 else None


# Immutable snapshots of a coordinator, read by the widget, the progress line and tests.
#
# A snapshot is plain data. It is made under the owners' locks and never changes, so any thread may
# keep it.

_NO_TIME = PhaseStatistics()


@functools.lru_cache(1024)  # views ask four times a second for each of a hundred workers
def _host(address: str) -> str:
    return address.rpartition("//")[2].rpartition(":")[0].strip("[]")


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker as the coordinator sees it.

    Attributes
    ----------
    name : str
        Its name in the Dask cluster; ``worker-0`` or the like if it has none there but its address.
    address : str
        Its Dask address.
    index : int
        What `psnb.worker_index` returns in its closures.
    state : str
        ``"connecting"``, ``"ready"``, ``"draining"`` (it leaves), ``"retired"`` (it has left),
        ``"lost"`` or, once the coordinator is closed, ``"released"``.
    in_flight : int
        Closures sent to it whose outcome is not known yet.
    completed, failed : int
        Closures that ended there.
    busy_seconds : float
        Time that its threads have spent in closures, in seconds.
    closures_per_second : float
        Closures that ended there, over the last seconds.
    busy : float
        Share of its threads' time spent inside closures over the last seconds, 0 to 1.
    memory : int or None
        Memory of its process in bytes; None until it is known.
    last_error : str
        The error of the last closure that failed there, in one line; empty if none failed.
    activity : str
        What it does since half a second or longer: ``"loading per-worker data"``, ``"compiling f"``
        or ``"running f"``, for example; empty if nothing takes that long.
    running_since : float or None
        Since when, in seconds since the epoch.
    phases : PhaseStatistics
        What the time of its closures that have ended went to; `busy_seconds` in all.
    phases_lately : PhaseStatistics
        The same over the last seconds, in seconds per second.
    stages : mapping of str to Stages
        The parts of the datasets that its closures read, by the kind of their chain; as of the
        last second.
    """

    name: str
    address: str
    index: int
    state: str
    in_flight: int
    completed: int
    failed: int
    busy_seconds: float
    closures_per_second: float = 0.0
    busy: float = 0.0
    memory: int | None = None
    last_error: str = ""
    activity: str = ""
    running_since: float | None = None
    phases: PhaseStatistics = _NO_TIME
    phases_lately: PhaseStatistics = _NO_TIME
    stages: Mapping[str, Stages] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The host that it runs on."""
        return _host(self.address)

    @property
    def ended(self) -> bool:
        """Whether it has left, or is lost."""
        return self.state in ("retired", "lost")


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """One parameter server, as of the last time it was asked.

    Attributes
    ----------
    name : str
        Its name among the strategy's servers.
    address : str
        Its Dask address.
    state : str
        ``"unknown"`` (not asked yet), ``"serving"``, ``"unreachable"``, ``"lost"`` until all
        shards have a server again, or ``"released"`` once the coordinator is closed.
    shards : int
        Shards that it serves, and copies that it keeps.
    bytes : int
        Of parameters, optimizer state and index.
    pulls_per_second, pushes_per_second : float
        Reads and writes of variables and embeddings lately.
    staleness : float
        Mean staleness of the latest updates; NaN if there were none.
    """

    name: str
    address: str
    state: str = "unknown"
    shards: int = 0
    bytes: int = 0
    pulls_per_second: float = 0.0
    pushes_per_second: float = 0.0
    staleness: float = math.nan


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """The newest checkpoint of a coordinator's `CheckpointManager`.

    Attributes
    ----------
    state : str
        ``"none"``, ``"saving"``, ``"saved"`` or ``"failed"``.
    path : str
        Where it is; empty until it is saved.
    share : float
        The fraction of the parameters that is written, 0 to 1.
    error : str
        Why it failed; empty if it did not fail.
    held : float
        Seconds for which closures were held, so that it is consistent: those that ran had to
        end, and the servers had to take note of it. They were not held while it was written.
    """

    state: Literal["none", "saving", "saved", "failed"] = "none"
    path: str = ""
    share: float = 0.0
    error: str = ""
    held: float = 0.0


@dataclass(frozen=True, slots=True)
class MetricStatistics:
    """One metric that closures report with `psnb.report`.

    Of one that they report as states of a metric, the values are the points of its chart. It is of
    the epoch: of all examples since the last epoch began, of a trainer or of ``run_epoch``.

    Attributes
    ----------
    count : int
        Values reported so far.
    last : float
        The newest value; of states, that of all merged of the epoch, as of now.
    smoothed : float
        Exponential moving average over about the last hundred values; of states the same as
        ``last``.
    total : float
        Of numbers in closures that have returned, each of which counts once: the sum of the finite
        ones, each times the ``examples`` that were reported with it. Those themselves, and numbers
        without them, count as they are.
    weight : float
        The sum of what they were multiplied by: ``total / weight`` is their mean.
    not_finite : int
        How many of them are NaN or infinite.
    """

    count: int
    last: float
    smoothed: float
    total: float = 0.0
    weight: float = 0.0
    not_finite: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """A coordinator at one moment.

    Attributes
    ----------
    state : str
        ``"idle"`` (nothing scheduled), ``"running"``, ``"no workers"`` (closures wait, and none
        can run them), ``"draining"`` (no closure begins any more, some still run), ``"paused"``
        (nothing runs), ``"parameters lost"`` (``strategy.recover`` is needed), ``"failing"`` (an
        error waits to be raised) or ``"closed"``. The first that holds of ``"closed"``,
        ``"failing"``, ``"parameters lost"``, ``"draining"``, ``"paused"``, ``"no workers"``,
        ``"running"``, ``"idle"``.
    elapsed : float
        Seconds since the coordinator was made; stops at ``close``.
    queued, in_flight : int
        Closures that wait, and closures that workers have; of `run_epoch`, runs of many steps.
    completed, failed, cancelled : int
        Closures, and steps of `run_epoch`, that ended, by how.
    retried : int
        How often a closure went back to the queue because its worker was lost.
    workers_lost, servers_lost : int
        How often a worker, or a parameter server, was lost so far: also those that are back.
    workers : tuple of WorkerStatistics
        Workers known so far, including lost ones, by index.
    servers : tuple of ServerStatistics
        The parameter servers. Their figures are updated only while a view is open.
    metrics : mapping of str to MetricStatistics
        What closures reported.
    staleness : StalenessStatistics
        How far behind the updates of closures were.
    closures_per_second : float
        Closures that ended over the last seconds.
    eta : float or None
        Estimated seconds until all epochs of training are over; without training, until all queued
        and running closures have ended, at the present rate. None if unknown.
    examples : float or None
        The sum of the metric ``examples`` that closures reported; None if none did.
    examples_per_second : float or None
        The same per second, over the last seconds.
    checkpoint : CheckpointStatistics
        The newest checkpoint.
    training : TrainingProgress or None
        How far the present training is, or the last one was; None if there was none.
    """

    state: str
    elapsed: float
    queued: int
    in_flight: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    workers: tuple[WorkerStatistics, ...]
    servers: tuple[ServerStatistics, ...]
    metrics: Mapping[str, MetricStatistics]
    staleness: StalenessStatistics
    closures_per_second: float = 0.0
    eta: float | None = None
    examples: float | None = None
    examples_per_second: float | None = None
    checkpoint: CheckpointStatistics = CheckpointStatistics()
    workers_lost: int = 0
    servers_lost: int = 0
    training: TrainingProgress | None = None

    @property
    def phases(self) -> PhaseStatistics:
        """What the time of all workers' closures went to."""
        return PhaseStatistics.sum(each.phases for each in self.workers)

    @property
    def phase_shares(self) -> dict[str, float]:
        """The share of each phase in the time of all closures that have ended in the last seconds.

        Of all closures so far, if none has ended in them.
        """
        lately = PhaseStatistics.sum(each.phases_lately for each in self.workers)
        return (lately if lately.total else self.phases).shares

    @property
    def stages(self) -> Stages:
        """The parts of the datasets that closures read, of all workers together.

        As of the last second. Datasets whose chains have the same kinds of parts count together.
        """
        return merged_chains(each.stages for each in self.workers)

    @property
    def starved(self) -> str:
        """For what workers wait rather than compute; empty if they do not wait for data.

        Such as "workers wait 38% of their time for map(parse)": the share is that of reading in
        `phase_shares`, and the stage is that with the most time of its own in `stages`.
        """
        return starved(self.phase_shares["read"], self.stages)


logger = logging.getLogger("psnb")

SMOOTHING = 0.02
"""Weight of a new value in the moving average: about the last hundred values count."""

MOST_METRICS = 500
"""Metrics that are kept, each of 313 KiB at most; further ones are dropped, with one warning."""

EXAMPLES = "examples"
"""The metric that counts training examples: ``psnb.report(examples=len(batch))``."""

NO_METRICS = (EXAMPLES, "programs")
"""What steps report that says nothing of the model; views have it last."""

VALIDATION = "val_"
"""What begins the name of what validation gave of a metric."""

_POINT = np.dtype([("step", "i8"), ("time", "f8"), ("value", "f8"), ("smoothed", "f8")])
"""One point; arrays of points are copied in microseconds, so a reader holds the lock only
briefly."""


@dataclass(frozen=True, slots=True)
class Points:
    """Points of a series from a start on; each array has the shape ``(points,)``.

    Attributes
    ----------
    start : int
        The number of points before these.
    thinnings : int
        How often the series was thinned out; each time, its points get new numbers.
    steps : numpy.ndarray
        int64: how many values had been reported by then; of validation, how many of its metric.
    times : numpy.ndarray
        float64, seconds since the epoch.
    values, averages : numpy.ndarray
        float64; the second is smoothed.
    """

    start: int
    thinnings: int
    steps: np.ndarray
    times: np.ndarray
    values: np.ndarray
    averages: np.ndarray


@dataclass
class _Series:
    stride: int = 1
    thinnings: int = 0
    count: int = 0
    last: float = float("nan")
    smoothed: float = float("nan")
    length: int = 0
    points: np.ndarray = field(default_factory=lambda: np.empty(0, _POINT))


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
        self._examples = Rate()
        self._lock = Lock()  # guards _series and everything in it
        self._full = False  # whether the warning of too many was given

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
        dropped = None
        with self._lock:
            examples = [values[EXAMPLES] for _, values in reports if EXAMPLES in values]
            if examples:
                self._examples.add(sum(examples), monotonic())
            by_name: dict[str, list[tuple[float, float]]] = {}
            for time, values in reports:
                for name, value in values.items():
                    by_name.setdefault(name, []).append((time, value))
            for name, several in by_name.items():
                if not self._append(name, several, averaged):
                    dropped = name
        self._warn(dropped)

    def add_validation(self, time: float, values: Mapping[str, float]) -> None:
        """Record what validation gave of metrics, beside the values that they had by then.

        Parameters
        ----------
        time : float
            When, in seconds since the epoch.
        values : mapping of str to float
            By the names of the metrics; here they begin with `VALIDATION`.
        """
        dropped = None
        with self._lock:
            for name, value in values.items():
                beside = self._series.get(name)
                place = None if beside is None else beside.count
                if not self._append(VALIDATION + name, [(time, value)], False, place):
                    dropped = VALIDATION + name
        self._warn(dropped)

    def _append(
        self,
        name: str,
        several: Sequence[tuple[float, float]],
        averaged: bool,
        place: int | None = None,
    ) -> bool:
        """Append values, each with its time, in the place of their number or another.

        Returns whether there is room.
        """
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= MOST_METRICS:
                return False
            series = self._series[name] = _Series(points=np.empty(self._capacity, _POINT))
        count, smoothed, rows = series.count, series.smoothed, []
        for when, value in several:
            count += 1
            # A plain mean until there are enough values, then exponential: no slow start from the
            # first value. A NaN does not spoil the average for ever.
            if not averaged or math.isnan(smoothed):
                smoothed = value
            elif not math.isnan(value):
                smoothed += max(SMOOTHING, 1.0 / count) * (value - smoothed)
            if count % series.stride == 0:
                rows.append((count if place is None else place, when, value, smoothed))
                if series.length + len(rows) >= self._capacity:
                    self._keep(series, rows)
                    rows = []
        series.count, series.last, series.smoothed = count, several[-1][1], smoothed
        if rows:
            self._keep(series, rows)
        return True

    def _keep(self, series: _Series, rows: list[tuple[int, float, float, float]]) -> None:
        """Append points for which there is room; drop every second one if it is full then."""
        end = series.length + len(rows)
        series.points[series.length : end] = rows
        series.length = end
        if end >= self._capacity:
            kept = series.points[1::2].copy()  # The two sides overlap.
            series.length = len(kept)
            series.points[: series.length] = kept
            series.stride *= 2
            series.thinnings += 1

    def _warn(self, dropped: str | None) -> None:
        if dropped is not None and not self._full:
            self._full = True
            logger.warning(
                "psnb.report(%s=...): %d metrics are kept, and there are more; new ones are "
                "dropped. Report what varies as a value, not as a name",
                truncate(dropped, NAME),
                MOST_METRICS,
            )

    def examples_per_second(self) -> float | None:
        """Return how many `EXAMPLES` were reported per second lately; None if there were none."""
        with self._lock:
            return self._examples.value(monotonic()) if EXAMPLES in self._series else None

    def metrics(self) -> dict[str, MetricStatistics]:
        """Return the newest figures of each metric, by name; without totals.

        Each is followed by its validation, and what is not a metric of the model comes last.
        """
        with self._lock:
            found = {
                name: MetricStatistics(s.count, s.last, s.smoothed)
                for name, s in self._series.items()
            }
        first = {name: number for number, name in enumerate(found)}

        def place(name: str) -> tuple[bool, int, int]:
            beside = name.removeprefix(VALIDATION)
            return name in NO_METRICS, first.get(beside, first[name]), first[name]

        return {name: found[name] for name in sorted(found, key=place)}

    def points(self, name: str, thinnings: int = 0, start: int = 0) -> Points:
        """Return one metric's points from ``start`` on; all of them if it was thinned since.

        Parameters
        ----------
        name : str
            A name that closures report.
        thinnings, start : int
            The position after earlier points: the two attributes of an earlier `Points`, with its
            length added to ``start``.

        Raises
        ------
        KeyError
            If no metric with that name was reported yet.
        """
        with self._lock:
            series = self._series[name]
            if series.thinnings != thinnings:
                start = 0
            points = series.points[start : series.length].copy()
            thinnings = series.thinnings
        return Points(start, thinnings, *(points[field] for field in _POINT.names or ()))

    def series(self, name: str) -> dict[str, np.ndarray]:
        """Return one metric's points.

        Parameters
        ----------
        name : str
            A name that closures report.

        Returns
        -------
        dict of str to numpy.ndarray
            ``step`` (int64: how many values had been reported; of validation, how many of its
            metric), ``time`` (float64, seconds since the epoch), ``value`` and ``smoothed``
            (float64), each of shape ``(points,)``.

        Raises
        ------
        KeyError
            If no metric with that name was reported yet.
        """
        with self._lock:
            series = self._series[name]
            points = series.points[: series.length].copy()
        return {field: np.ascontiguousarray(points[field]) for field in _POINT.names or ()}
