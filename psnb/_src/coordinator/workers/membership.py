"""Membership: which workers are here, and a lane for each of them.

One task on the Dask client's event loop asks the scheduler twice a second who is there, starts a
lane for every newcomer and drains the lanes of those that Dask retires; a lane whose connection
breaks reports itself, so a lost worker is noticed at once. With each poll it tells the scheduler
how much there is to do, which adaptive scaling goes by (see `psnb._src.cluster.scaling`). The
lanes' list is changed on the loop only; other threads read a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client
from distributed.comm import Comm, connect

from psnb._src.cluster import DEMAND, Demand
from psnb._src.coordinator.datasets import LeaseRegistry, ResourceRegistry
from psnb._src.coordinator.queue import ClosureQueue, Resolver
from psnb._src.coordinator.workers.backoff import Backoff
from psnb._src.coordinator.workers.connection_state import ConnectionState
from psnb._src.coordinator.workers.load import RECALL_SECONDS
from psnb._src.coordinator.workers.start_delay import StartDelay
from psnb._src.coordinator.workers.timeouts import Timeouts
from psnb._src.coordinator.workers.worker_connection import WorkerConnection
from psnb._src.coordinator.workers.workload import Workload
from psnb._src.modes import Mode
from psnb._src.monitor import EventKind, Records, WorkerStatistics
from psnb._src.runtime import unpack_error
from psnb._src.threads import on_loop, uninterrupted

logger = logging.getLogger("psnb")

_POLL_SECONDS = 0.5
_POLL_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 10.0
_WITHDRAW_TIMEOUT = 2.0


class Membership:
    """Keeps one lane for each worker of the cluster that may run closures.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    workers : callable
        Takes the scheduler's description of the cluster, returns name by address of the workers
        that may run closures.
    queue, resources, records, desk, resolver, timeouts, start_delay, mode, strategy
        Handed to the lanes.
    """

    def __init__(
        self,
        client: Client,
        workers: Callable[[dict[str, Any]], dict[str, str]],
        queue: ClosureQueue,
        resources: ResourceRegistry,
        records: Records,
        desk: LeaseRegistry,
        resolver: Resolver,
        timeouts: Timeouts,
        start_delay: StartDelay,
        mode: Mode,
        strategy: str,
    ) -> None:
        self._client, self._workers = client, workers
        self._queue, self._resources, self._records = queue, resources, records
        self._desk, self._resolver = desk, resolver
        self._sessions = itertools.count()
        self._timeouts, self._mode, self._strategy = timeouts, mode, strategy
        self._start_delay = start_delay
        self._backoff = Backoff()
        unknown = dask.config.get("distributed.scheduler.unknown-task-duration")
        self._workload = Workload(parse_timedelta(unknown))
        self._demands = False  # the scheduler has a demand of ours
        self._waits_since: float | None = None  # since when work waits and no worker is there
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self._lanes: list[WorkerConnection] = []  # by worker index
        self._idle: dict[WorkerConnection, None] = {}  # those that could do more, the latest last
        self._balancing = False
        self._tasks: dict[WorkerConnection, asyncio.Task[None]] = {}
        self._watch = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def wake_lanes(self) -> None:
        """Let as many idle lanes look for work as there is work for; any thread."""
        self.soon(self._wake_lanes)

    def wake_all_lanes(self) -> None:
        """Let all lanes tell their workers what per-worker values to make; any thread."""
        self.soon(self._wake_all_lanes)

    def call_back(self) -> None:
        """Let workers return what they have not begun; any thread."""
        self.soon(self._call_back)

    @uninterrupted
    def soon(self, callback: Callable[[], None]) -> None:
        """Call back on the event loop; any thread."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("the Dask client is closed; nobody can run what was scheduled")

    async def flush(self) -> None:
        """Have workers send what they hold of their own; on the event loop.

        What those hold that are lost meanwhile is lost with them.

        Raises
        ------
        Exception
            What the first worker raised that could not.
        """
        answers = await asyncio.gather(*(lane.flush() for lane in list(self._tasks)))
        for answer in answers:
            if answer:
                raise unpack_error(answer)

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """Return a snapshot of the workers, by index; any thread."""
        return tuple(lane.statistics() for lane in list(self._lanes))

    def close(self) -> None:
        """End all lanes and wait for them; idempotent. After this no closure is sent.

        In a section: an interrupt ends the waiting only.
        """
        self._watch.cancel()
        if self._loop.is_closed() or not self._loop.is_running():
            return
        try:
            on_loop(self._loop, self._end_lanes, _CLOSE_TIMEOUT, goes_on=True)
        except TimeoutError:
            logger.warning("the Dask client's event loop did not answer while closing")

    def _wake_lanes(self) -> None:
        if self._queue.failing():
            self._wake_all_lanes()
        # No more of them than there is work for: there may be hundreds. The latest first, which are
        # busy with a little: work that is done in no time is not worth spreading.
        for lane in reversed(list(self._idle)):
            if not self._queue.has_work():
                break
            del self._idle[lane]
            lane.pump()

    def _wake_all_lanes(self) -> None:
        for lane in self._lanes:
            lane.pump()

    def _others_starve(self) -> bool:
        # The longest idle one, for all: a lane that pumps is not among them.
        first = next(iter(self._idle), None)
        return first is not None and first.starves()

    def _call_back(self) -> None:
        for lane in self._lanes:
            lane.call_back()

    def _on_idle(self, lane: WorkerConnection) -> None:
        self._idle.pop(lane, None)
        self._idle[lane] = None  # as the latest
        if not self._balancing:
            self._balancing = True
            self._loop.call_later(RECALL_SECONDS, self._balance)

    def _balance(self) -> None:
        # Something that was sent ahead as short work may wait behind what turned out to be long.
        self._balancing = False
        if any(lane.starves() for lane in self._idle) and not self._queue.has_work():
            busy = [lane for lane in self._lanes if lane.recall()]
            if busy:
                self._balancing = True
                self._loop.call_later(RECALL_SECONDS, self._balance)

    async def _end_lanes(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client.status == "running":
            # If it cannot be withdrawn, the demand expires.
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_WITHDRAW_TIMEOUT):
                    await self._report(Demand())

    async def _run(self) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(_POLL_TIMEOUT):
                        identity = await self._client.scheduler.identity(n_workers=-1)
                        self._follow(self._workers(identity))
                        await self._report(self._measure())
                except OSError as error:
                    logger.warning("the Dask scheduler does not answer: %s", error)
                self._fail_what_waited_too_long()
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            # The client was closed under us, or `close` was called: whoever waits must not for
            # ever.
            self._queue.close()

    def _measure(self) -> Demand:
        now = self._loop.time()
        return self._workload.measure(self._queue.statistics(), self.statistics(), now)

    async def _report(self, demand: Demand) -> None:
        # To the scheduler, which scales the cluster by it; an idle coordinator says nothing.
        if not demand and not self._demands:
            return
        self._demands = True  # or maybe, if this is cancelled
        await getattr(self._client.scheduler, DEMAND)(
            coordinator=self._queue.name,
            closures=demand.closures,
            occupancy=demand.occupancy,
            holding=list(demand.holding),
        )
        self._demands = bool(demand)

    def _follow(self, names: dict[str, str]) -> None:
        for lane, task in self._tasks.items():
            if lane.address not in names:
                if lane.state is ConnectionState.CONNECTING:
                    task.cancel()
                # Retired, or dead: then the connection breaks or falls silent.
                lane.drain("is not in the Dask cluster any more")
        served = {lane.address for lane in self._tasks}
        now = self._loop.time()
        self._backoff.keep(set(names))
        newcomers = [a for a in names if a not in served and self._backoff.ready(a, now)]
        count = sum(lane.address in names for lane in self._tasks) + len(newcomers)
        for lane in self._tasks:
            lane.num_workers = count
        for address in newcomers:
            index = next(
                (lane.index for lane in self._lanes if lane.state is ConnectionState.LOST),
                len(self._lanes),
            )
            lane = WorkerConnection(
                names[address],
                address,
                index,
                count,
                self._queue,
                self._resources,
                self._records,
                self._desk,
                self._resolver,
                next(self._sessions),
                self._timeouts,
                self._start_delay,
                self._mode,
                self._strategy,
                self._connect,
                self._on_idle,
                self._others_starve,
            )
            self._lanes[index : index + 1] = [lane]
            task = asyncio.create_task(lane.run(), name=f"psnb lane to {address}")
            self._tasks[lane] = task
            task.add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: WorkerConnection, task: asyncio.Task[None]) -> None:
        del self._tasks[lane]
        self._idle.pop(lane, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the lane to worker %r failed", lane.name, exc_info=error)
        # A later poll makes a new lane if the worker is there still: not at once, so that one that
        # is frozen or refuses is not asked without pause.
        if lane.was_ready:
            self._backoff.succeeded(lane.address)
        self._backoff.failed(lane.address, self._loop.time())

    def _fail_what_waited_too_long(self) -> None:
        now, limit = self._loop.time(), self._timeouts.worker
        usable = any(
            lane.state in (ConnectionState.READY, ConnectionState.DRAINING) for lane in self._tasks
        )
        if limit is None or usable or not self._queue.statistics().queued:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since >= limit:
            self._waits_since = None
            text = f"there was no worker for {limit:g} s (worker_timeout)"
            self._records.events.add(EventKind.NO_WORKERS, f"{text}: what was queued has failed")
            self._queue.fail_waiting(f"{text}: start one, for example with `dask worker ADDRESS`")

    async def _connect(self, address: str) -> Comm:
        return await connect(address, **self._client.connection_args)
