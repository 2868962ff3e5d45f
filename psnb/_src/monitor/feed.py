"""Feed: turns a coordinator's records into the updates for one view. Pure.

It remembers what it has sent, so that every update carries only changes. Not thread-safe: only its
publisher's thread uses it.
"""

from __future__ import annotations

import base64
import math
from collections import deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, cast

import numpy as np

from psnb._src.metrics.slice_table import SliceRow, SliceTable
from psnb._src.monitor import protocol
from psnb._src.monitor.branches import Cut, cuts
from psnb._src.monitor.history import EXAMPLES
from psnb._src.monitor.states import RUNNING, SERVER_TONES, WORKER_TONES, coordinator_tone, meaning
from psnb._src.monitor.statistics import ServerStatistics, Statistics, WorkerStatistics
from psnb._src.monitor.updates import plain
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.text import NAME, printable, truncate

DEPTH_SECONDS = 60.0
"""Seconds of queue depth in a full update."""

MOST_EVENTS = 200
"""Events in a full update: the latest."""

MOST_ROWS = 25
"""Workers whose rows are in every update while only their figures change."""

MOST_SLICES = 20
"""Slices of a metric in an update: the worst."""

MOST_TABLES = 20
"""Metrics whose slices are in an update."""

_READ_SECONDS = 5.0
"""Seconds for which a sentence with a figure stays as it is."""

_EVEN_IF_STILL = 15.0
"""Seconds without any change after which an idle coordinator's clock is sent."""


_NOTABLE = attrgetter("name", "address", "state", "failed", "activity")
"""What of a worker does not change all the time."""


COLUMNS = {"steps": "step", "times": "time", "values": "value", "averages": "smoothed"}
"""Of a `Metric`, and what they are called in a history."""


class Feed:
    """Makes the updates for one view of a coordinator."""

    def __init__(self) -> None:
        self._sequence = 0
        self._sent: dict[str, tuple[int, int, int]] = {}  # metric: count, stride, points
        self._workers: dict[int, WorkerStatistics] = {}
        self._turn = 0
        self._failures = 0
        self._events = 0.0
        self._timeline = -math.inf
        self._parts: dict[str, Any] = {}  # the parts that are always sent whole, as last sent
        self._depth: deque[tuple[float, int, int]] = deque()
        self._still: tuple[Any, ...] = ()
        self._at = self._starved_at = -math.inf

    def next(self, viewed: Viewed, now: float, full: bool = False) -> protocol.Update | None:
        """Return the changes.

        Parameters
        ----------
        viewed : Viewed
            The coordinator.
        now : float
            Seconds since the epoch.
        full : bool
            Whether to send everything. The first update is always full.

        Returns
        -------
        protocol.Update or None
            None if nothing has changed.
        """
        full = full or not self._sequence
        if full:
            self._sent, self._workers, self._parts = {}, {}, {}
            self._failures, self._events, self._timeline = 0, 0.0, -math.inf
        statistics = viewed.statistics()
        self._depth.append((now, statistics.queued, statistics.in_flight))
        while self._depth[0][0] < now - DEPTH_SECONDS:
            self._depth.popleft()
        news = self._news(viewed, statistics, now, full)
        still = (statistics.state, statistics.queued, statistics.in_flight, statistics.completed)
        quiet = statistics.state != RUNNING and still == self._still and not news
        if quiet and now - self._at < _EVEN_IF_STILL and not full:
            return None
        self._still, self._at = still, now
        update = protocol.Update(
            type="update",
            version=protocol.VERSION,
            coordinator=viewed.id,
            sequence=self._sequence,
            full=full,
            summary=_summary(statistics, now),
        )
        if full:
            update["identity"] = viewed.identity()
            update["depth"] = list(self._depth)
            update["notice"] = ""
        update.update(news)  # type: ignore[typeddict-item] # parts of an update, by their names
        self._sequence += 1
        return cast(protocol.Update, plain(update))

    def _news(
        self, viewed: Viewed, statistics: Statistics, now: float, full: bool
    ) -> dict[str, Any]:
        records = viewed.records
        workers = self._changed_workers(statistics.workers)
        metrics = self._metrics(viewed, statistics)
        timeline = records.timeline.since(self._timeline)
        self._timeline = max((span["end"] for span in timeline), default=self._timeline)
        failures = records.failures.since(self._failures)
        self._failures = failures[-1].number + 1 if failures else self._failures
        events = viewed.events(self._events)[-MOST_EVENTS:]
        self._events = events[-1].time if events else self._events
        news: dict[str, Any] = {
            "workers": workers,
            "metrics": metrics,
            "timeline": timeline,
            "failures": [protocol.row(protocol.FailureRow, each) for each in failures],
            "events": [
                protocol.row(protocol.EventRow, each, kind=each.kind.value) for each in events
            ],
        }
        if not full:
            news = {part: rows for part, rows in news.items() if rows}
        whole = {
            "servers": [_server(each) for each in statistics.servers],
            "optimizers": [
                protocol.row(
                    protocol.OptimizerRow,
                    each,
                    parameter=truncate(name, NAME),
                    optimizer=truncate(each.optimizer, NAME),
                    schedule=truncate(each.schedule),
                )
                for name, each in viewed.optimizers().items()
            ],
            "tables": [truncate(name, NAME) for name in viewed.tables()],
            "checkpoint": protocol.row(protocol.CheckpointRow, statistics.checkpoint),
            "epochs": [each._asdict() for each in records.history.epochs()],
            "rewinds": rewind_marks(cuts(records.history.rewinds())),
            "slices": _slices(records.history.slices()),
            "controls": viewed.controls(),
            "starved": self._starved(statistics, now, full),
        }
        for part, figures in whole.items():
            value = plain(figures)  # in this form NaN equals itself, so it is sent once
            if full or self._parts.get(part) != value:
                news[part] = self._parts[part] = value
        return news

    def _starved(self, statistics: Statistics, now: float, full: bool) -> str:
        """Return for what workers wait; figures change all the time, but people read it."""
        sentence, before = statistics.starved, self._parts.get("starved", "")
        if sentence and before and not full and now - self._starved_at < _READ_SECONDS:
            return cast(str, before)
        if sentence != before:
            self._starved_at = now
        return sentence

    def _changed_workers(self, workers: Sequence[WorkerStatistics]) -> list[protocol.WorkerRow]:
        # With very many workers, rows with small changes take turns: people do not read a hundred
        # rows four times a second, and sending them would take the kernel longer than all the rest.
        turns = max(1, len(workers) // MOST_ROWS)
        self._turn += 1
        rows = []
        for each in workers:
            before = self._workers.get(each.index)
            if before == each:
                continue
            turn = each.index % turns == self._turn % turns
            if turn or before is None or _NOTABLE(before) != _NOTABLE(each):
                rows.append(_worker(each))
                self._workers[each.index] = each
        return rows

    def _metrics(self, viewed: Viewed, statistics: Statistics) -> list[protocol.Metric]:
        news = []
        for name, metric in statistics.metrics.items():
            count, stride, before = self._sent.get(name, (-1, 0, 0))
            # Examples are sent as a rate, in the summary: a chart of batch sizes is useless.
            if count == metric.count or name == EXAMPLES:
                continue
            found = viewed.records.history.points(name, stride, before)
            points = found.points
            self._sent[name] = metric.count, found.stride, found.start + len(points)
            series = {part: pack(points[field]) for part, field in COLUMNS.items()}
            news.append(
                protocol.row(protocol.Metric, metric, name=name, start=found.start, **series)
            )
        return news


def rewind_marks(cut_at: Sequence[Cut]) -> list[protocol.RewindMark]:
    """Return where curves are cut, for views."""
    return [protocol.row(protocol.RewindMark, each) for each in cut_at]


def pack(array: np.ndarray) -> str:
    """Return numbers of any dtype as base64 of little-endian float64."""
    return base64.b64encode(array.astype("<f8").data).decode("ascii")


def _summary(statistics: Statistics, now: float) -> protocol.Summary:
    training = statistics.training
    return protocol.row(
        protocol.Summary,
        statistics,
        time=now,
        tone=coordinator_tone(statistics.state),
        meaning=meaning(statistics.state),
        elapsed=round(statistics.elapsed, 3),
        training=None if training is None else protocol.row(protocol.Training, training),
        closures_per_second=round(statistics.closures_per_second, 3),
        staleness_mean=statistics.staleness.mean,
        staleness_max=statistics.staleness.max,
        phases=_shares(statistics.phase_shares),
    )


def _worker(worker: WorkerStatistics) -> protocol.WorkerRow:
    return protocol.row(
        protocol.WorkerRow,
        worker,
        name=truncate(str(worker.name), NAME),  # Dask names a worker of a LocalCluster by a number.
        tone=WORKER_TONES[worker.state],
        closures_per_second=round(worker.closures_per_second, 2),
        busy=round(worker.busy, 3),
        examples_per_second=_rounded(worker.examples_per_second, 1),
        cpu=_rounded(worker.cpu, 2),
        activity=truncate(worker.activity, NAME),
        phases=_shares(worker.phases_lately.shares),
    )


def _slices(tables: Mapping[str, SliceTable]) -> list[protocol.Slices]:
    return [
        protocol.Slices(
            metric=truncate(name, NAME),
            count=len(table),
            rows=[_slice(row) for row in table.rows[:MOST_SLICES]],
            others=None if table.others is None else _slice(table.others),
        )
        for name, table in [*tables.items()][:MOST_TABLES]
    ]


def _slice(row: SliceRow) -> protocol.SliceRow:
    name = "" if row.slice is None else printable(truncate(str(row.slice), NAME)) or '""'
    return protocol.SliceRow(slice=name, value=row.value, examples=row.examples)


def _shares(shares: Mapping[str, float]) -> list[float]:
    return [round(each, 3) for each in shares.values()]


def _server(server: ServerStatistics) -> protocol.ServerRow:
    return protocol.row(
        protocol.ServerRow,
        server,
        tone=SERVER_TONES[server.state],
        pulls_per_second=round(server.pulls_per_second, 1),
        pushes_per_second=round(server.pushes_per_second, 1),
        staleness=round(server.staleness, 2),
        cpu=_rounded(server.cpu, 2),
    )


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
