"""Frozen snapshots of a coordinator: what the widget, the progress line and tests all read.

A snapshot is plain data, made under the owners' locks and never changed afterwards, so any thread
may keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psnb.monitor.staleness import StalenessStatistics


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker as the coordinator sees it.

    Attributes
    ----------
    name : str
        Its name in the Dask cluster.
    address : str
        Its Dask address.
    index : int
        What `psnb.worker_index` returns in its closures.
    state : str
        ``"connecting"``, ``"ready"``, ``"draining"`` (it leaves) or ``"lost"``.
    in_flight : int
        Closures sent to it whose outcome is not known yet.
    completed, failed : int
        Closures that ended there.
    busy_seconds : float
        Time that its threads spent inside closures, in seconds.
    """

    name: str
    address: str
    index: int
    state: str
    in_flight: int
    completed: int
    failed: int
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class MetricStatistics:
    """One metric that closures report with `psnb.report`.

    Attributes
    ----------
    count : int
        Values reported so far.
    last : float
        The newest value.
    smoothed : float
        Exponential moving average over about the last hundred values.
    total : float
        Sum of all values.
    """

    count: int
    last: float
    smoothed: float
    total: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """A coordinator at one moment.

    Attributes
    ----------
    state : str
        ``"idle"`` (nothing scheduled), ``"running"``, ``"draining"`` (nothing is begun any more,
        some closures run still), ``"paused"`` (nothing runs), ``"failing"`` (an error waits to be
        raised)
        or ``"closed"``.
    elapsed : float
        Seconds since the coordinator was made; stands still after ``close``.
    queued, in_flight : int
        Closures that wait, and closures that workers hold.
    completed, failed, cancelled : int
        Closures that ended, by how.
    retried : int
        How often a closure went back to the queue because its worker was lost.
    workers : tuple of WorkerStatistics
        Workers known so far, the lost ones among them, by index.
    servers : tuple of str
        Addresses of the parameter servers.
    metrics : mapping of str to MetricStatistics
        What closures reported.
    staleness : StalenessStatistics
        How far behind the updates of closures were.
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
    servers: tuple[str, ...]
    metrics: Mapping[str, MetricStatistics]
    staleness: StalenessStatistics
