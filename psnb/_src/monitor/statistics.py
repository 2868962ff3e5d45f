"""Statistics: immutable snapshots of a coordinator, read by views, users and tests.

A snapshot is plain data. It is made under the owners' locks and never changes, so any thread may
keep it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from psnb._src.utils.phases import PhaseStatistics
from psnb._src.utils.stages import Stages, merged_chains, starved


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
    validating : tuple of int or None
        While an epoch's validation goes on: parts of its dataset that are done, and how many there
        are; zeros until that is known. None at any other time.
    """

    epoch: int | None
    epochs: int | None
    batch: int
    batches: int | None = None
    left: float | None = None
    validating: tuple[int, int] | None = None


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
    examples_per_second : float or None
        Examples that its closures have reported, over the last seconds; None if they report none.
    cpu : float or None
        CPU time of its process over the last seconds, in seconds per second: 2 if two cores are
        busy. None until it is known. Workers of one process have all the same.
    memory : int or None
        Memory of its process in bytes; None until it is known.
    gpu_memory : int or None
        Memory of GPUs in bytes: what PyTorch's allocator has, or what ``pynvml`` says if someone
        has initialized it there. None if it uses none, or none is known.
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
    examples_per_second: float | None = None
    cpu: float | None = None
    memory: int | None = None
    gpu_memory: int | None = None
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
    cpu : float or None
        CPU time of its process lately, in seconds per second; None until it is known.
    memory : int or None
        Bytes that its process has; None until it is known.
    memory_limit : int or None
        Bytes that it may have, as far as others leave them: the nearest of Dask's ``memory_limit``
        with a nanny, ``ulimit``, the cgroup's, and the machine's.
    """

    name: str
    address: str
    state: str = "unknown"
    shards: int = 0
    bytes: int = 0
    pulls_per_second: float = 0.0
    pushes_per_second: float = 0.0
    staleness: float = math.nan
    cpu: float | None = None
    memory: int | None = None
    memory_limit: int | None = None


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
        Seconds for which closures were held, so that it is consistent: running closures had to end,
        and the servers had to note the moment. They were not held while it was written.
    """

    state: Literal["none", "saving", "saved", "failed"] = "none"
    path: str = ""
    share: float = 0.0
    error: str = ""
    held: float = 0.0


@dataclass(frozen=True, slots=True)
class MetricStatistics:
    """One metric that closures report with `psnb.report`.

    If they report states of a metric, the values are the points of its chart, each over all
    examples of the epoch so far, of a trainer or of ``run_epoch``.

    Attributes
    ----------
    count : int
        Values reported so far.
    last : float
        The newest value; for states, that of all of the epoch merged, as of now.
    smoothed : float
        Exponential moving average over about the last hundred values; for states the same as
        ``last``.
    total : float
        For numbers in closures that have returned, each of which counts once: the sum of the finite
        ones, each times the ``examples`` that were reported with it. ``examples``, and numbers
        without them, count as they are.
    weight : float
        The sum of these factors: ``total / weight`` is their mean.
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
        How often a worker, or a parameter server, was lost so far, even if it is back.
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

        Over all closures so far, if none has ended in them.
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

        Such as "workers wait 38% of their time for map(parse)": the percentage is that of reading
        in `phase_shares`, and the stage is the one with the most time of its own in `stages`.
        """
        return starved(self.phase_shares["read"], self.stages)
