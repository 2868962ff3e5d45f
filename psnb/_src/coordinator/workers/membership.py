"""Membership: which workers are here, and a connection for each of them.

One task on the Dask client's event loop asks the scheduler once a second which workers there are,
starts a connection to each new one and drains the connections of those that Dask retires. A
connection that breaks ends by itself, so a lost worker is noticed at once. With each question the
task reports the demand to the scheduler, for adaptive scaling (see `psnb._src.cluster.scaling`).
The list of connections is changed on the loop only; other threads read a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

import dask
from distributed import Client

from psnb._src.cluster.scaling import DEMAND, Demand
from psnb._src.coordinator.scheduling.events import (
    Close,
    CountWorkers,
    FailWaiting,
    LookAgain,
    SetThreads,
)
from psnb._src.coordinator.scheduling.states import ConnectionState
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.coordinator.workers.absences import Backoff, MissingWorkers
from psnb._src.coordinator.workers.connection import WorkerConnection
from psnb._src.coordinator.workers.services import Services
from psnb._src.coordinator.workers.workload import Workload
from psnb._src.dask_compat.reach import (
    ask_scheduler,
    connect_separately,
    event_loop,
    has_ended,
    is_connected,
    parse_timedelta,
)
from psnb._src.monitor.events import EventKind
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.errors import unpack_error
from psnb._src.transport.questions import INTERVAL, WORKERS, next_beat, questions_of
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.threads import run_on_loop, runs_here
from psnb.errors import PsnbError, ServerLostError, WorkerLostError

logger = logging.getLogger("psnb")


_CLOSE_TIMEOUT = 10.0


_WITHDRAW_TIMEOUT = 2.0


_MOST_NAMED = 3


class Membership:
    """Keeps one connection for each worker of the cluster that may run closures.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    workers : callable
        Takes the scheduler's description of the cluster, and the addresses of workers that are
        still connected; returns name by address of the workers that may run closures.
    services : Services
        What connections need.
    """

    def __init__(
        self,
        client: Client,
        workers: Callable[[dict[str, Any], Collection[str]], dict[str, str]],
        services: Services,
    ) -> None:
        self._client, self._workers, self._services = client, workers, services
        self._scheduler, self._records = services.scheduler, services.records
        self._timeouts = services.timeouts
        self._sessions = itertools.count()
        self._backoff, self._absences = Backoff(), MissingWorkers(self._timeouts.heartbeat)
        unknown = dask.config.get("distributed.scheduler.unknown-task-duration")
        self._workload = Workload(parse_timedelta(unknown))
        self._demands = False  # the scheduler has a demand of ours, or gets it now
        self._questions = questions_of(client)
        self._version: list[Any] | None = None  # of the next
        self._cluster: dict[str, Any] = {"workers": {}}  # as the scheduler describes it
        self._waits_since: float | None = None  # since when work waits and there is no worker
        self._loop = event_loop(client)
        self._connections: list[WorkerConnection] = []  # by worker index
        self._by_worker: dict[WorkerState, WorkerConnection] = {}
        self._tasks: dict[WorkerConnection, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}  # by address, why
        self._none_fits = False  # all workers that are here are refused
        self._watch: Future[None] | None = None

    def start(self) -> None:
        """Begin to look for workers; once."""
        self._watch = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def of(self, worker: WorkerState) -> WorkerConnection:
        """Return the connection of a session; on the event loop."""
        return self._by_worker[worker]

    def look_again(self) -> None:
        """Let idle workers look for work, as functions may choose others by now; any thread."""
        self.soon(partial(self._services.handle, LookAgain()))

    def send_resources(self) -> None:
        """Have all connections send their workers what per-worker values to make; any thread."""

        def send() -> None:
            for connection in self._connections:
                connection.send_resources()

        self.soon(send)

    def use_threads(self, count: int | None) -> None:
        """Have each worker run ``count`` closures at the same time, or as many as it has threads.

        Any thread may call.
        """
        self.soon(partial(self._services.handle, SetThreads(count)))

    @uninterrupted
    def soon(self, callback: Callable[[], None]) -> None:
        """Call back on the event loop; any thread."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("the Dask client is closed; what was scheduled cannot run")

    async def flush(self) -> None:
        """Have workers send the updates that they have kept; on the event loop.

        Updates of workers that are lost meanwhile are lost with them.

        Raises
        ------
        Exception
            The error of the first worker that could not.
        """
        answers = await asyncio.gather(*(connection.flush() for connection in list(self._tasks)))
        for answer in answers:
            if answer:
                raise unpack_error(answer)

    @property
    def idle(self) -> bool:
        """Whether a worker has threads without work; any thread."""
        return any(each.worker.has_free_threads() for each in list(self._connections))

    @property
    def count(self) -> int:
        """How many workers there are; any thread."""
        return len(self._connections)

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """Return a snapshot of the workers, by index; any thread."""
        return tuple(each.worker.statistics() for each in list(self._connections))

    def close(self) -> None:
        """End all connections and wait for them; idempotent. After this no closure is sent.

        Call it in a section (`uninterrupted`): an interrupt ends only the waiting.
        """
        self._stop()
        if self._loop.is_closed() or not self._loop.is_running():
            return
        if runs_here(self._loop):  # the garbage collector called, which may run in any thread
            self.give_up()
            return
        try:
            run_on_loop(self._loop, self._end_connections, _CLOSE_TIMEOUT, goes_on=True)
        except TimeoutError:
            logger.warning("the Dask client's event loop did not answer while closing")

    def give_up(self) -> None:
        """End all, as there is no strategy any more to work for; on the event loop."""
        self._stop()
        for task in self._tasks.values():
            task.cancel()

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _end_connections(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._demands and is_connected(self._client):
            # If it cannot be withdrawn, the demand expires.
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_WITHDRAW_TIMEOUT):
                    await ask_scheduler(self._client, DEMAND, **self._reported(Demand()))

    async def _run(self) -> None:
        polls, looks = (LoopErrors("Looking for workers") for _ in range(2))
        try:
            while not has_ended(self._client):
                with polls:
                    await self._poll()
                with looks:
                    self._fail_what_waited_too_long()
                    self._report_missing()
        finally:
            # The client was closed, or `close` was called, or `give_up`: end all waits.
            self._services.handle(Close())

    async def _poll(self) -> None:
        # A plugin of the scheduler could report who comes and goes, but would not replace the
        # questions: they bring the demand to it, and find out that a connection to it was lost and
        # who came meanwhile.
        first = self._version is None
        try:
            (self._version, changed), _ = await asyncio.gather(
                self._questions.ask(WORKERS, lambda: {"known": self._version}, at_once=first),
                self._questions.ask(DEMAND, self._demand),
            )
        except OSError as error:
            if not has_ended(self._client):  # as it may in the very moment that it is asked
                logger.warning("the Dask scheduler does not answer: %s", error)
            await next_beat(INTERVAL)  # what fails at once does so again
            return
        self._cluster = self._cluster if changed is None else {"workers": changed}
        connected = {connection.worker.address for connection in self._tasks}
        self._follow(self._workers(self._cluster, connected))
        beat = self._timeouts.beat if self._services.watched() else self._timeouts.rare_beat
        for connection in self._tasks:
            connection.beat_every(beat)

    def _demand(self) -> dict[str, Any] | None:
        """Return what the scheduler scales the cluster by; an idle coordinator sends nothing."""
        demand = self._measure()
        had, self._demands = self._demands, bool(demand)
        return self._reported(demand) if demand or had else None

    def _measure(self) -> Demand:
        now = self._loop.time()
        return self._workload.measure(self._scheduler.statistics, self.statistics(), now)

    def _reported(self, demand: Demand) -> dict[str, Any]:
        return {
            "coordinator": self._scheduler.name,
            "closures": demand.closures,
            "occupancy": demand.occupancy,
            "holding": list(demand.holding),
        }

    def _follow(self, names: dict[str, str]) -> None:
        for connection, task in self._tasks.items():
            if connection.worker.address not in names:
                if connection.worker.state is ConnectionState.CONNECTING:
                    task.cancel()
                # Retired, or dead: then the connection breaks or falls unresponsive.
                connection.drain("is not in the Dask cluster any more")
        served = {connection.worker.address for connection in self._tasks}
        now = self._loop.time()
        self._backoff.keep(set(names))
        self._refused = {a: why for a, why in self._refused.items() if a in names}
        self._none_fits = bool(names) and len(self._refused) == len(names)
        newcomers = [a for a in names if a not in served and self._backoff.ready(a, now)]
        count = sum(connection.worker.address in names for connection in self._tasks) + len(
            newcomers
        )
        for connection in self._tasks:
            connection.num_workers = count
        if count != self._scheduler.dispatcher.num_workers:
            self._services.handle(CountWorkers(count))
        for address in newcomers:
            index = self._free_index(names[address])
            connection = WorkerConnection(
                self._services.opening(names[address], index, count, next(self._sessions)),
                address,
                self._services,
                partial(connect_separately, self._client),
            )
            connection.refusal = self._refused.get(address, "")
            self._connections[index : index + 1] = [connection]
            self._by_worker[connection.worker] = connection
            task = asyncio.create_task(connection.run(), name=f"psnb connection to {address}")
            self._tasks[connection] = task
            task.add_done_callback(partial(self._ended, connection))

    def _free_index(self, name: str) -> int:
        # Preferably that of an earlier worker of this name: a view shows no name twice.
        ended = [connection for connection in self._connections if connection.worker.state.ended]
        ended.sort(key=lambda connection: connection.worker.name != name)
        return ended[0].worker.index if ended else len(self._connections)

    def _ended(self, connection: WorkerConnection, task: asyncio.Task[None]) -> None:
        del self._tasks[connection], self._by_worker[connection.worker]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error(
                "the connection to worker %r failed", connection.worker.name, exc_info=error
            )
        # A later poll makes a new connection if the worker is there still: not at once, so that one
        # that is frozen or refuses is not asked without pause.
        if connection.was_ready:
            self._backoff.succeeded(connection.worker.address)
        self._refused.pop(connection.worker.address, None)
        if connection.refusal:
            self._refused[connection.worker.address] = connection.refusal
        self._backoff.failed(connection.worker.address, self._loop.time())

    def _fail_what_waited_too_long(self) -> None:
        now, limit = self._loop.time(), self._timeouts.worker
        usable = any(
            connection.worker.state in (ConnectionState.READY, ConnectionState.DRAINING)
            for connection in self._tasks
        )
        queue = self._scheduler.statistics
        waits = not usable and queue.queued
        # While they are made again the queue is paused.
        lost = self._services.lost() if waits and not queue.paused else ""
        if lost:  # a worker would help as little
            limit = min(self._timeouts.heartbeat, math.inf if limit is None else limit)
        if waits and self._none_fits:
            # Waiting does not help: something must be installed.
            refused = "; ".join(islice(self._refused.values(), _MOST_NAMED))
            self._services.handle(FailWaiting(WorkerLostError(refused)))
        elif limit is None or not waits:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since >= limit:
            self._waits_since = None
            error: PsnbError
            if lost:
                text = f"there was no worker for {limit:g} s, and parameters are lost"
                error = ServerLostError(f"{text}: {lost}")
            else:
                text = f"there was no worker for {limit:g} s (worker_timeout)"
                error = WorkerLostError(
                    f"{text}: start one, for example with `dask worker ADDRESS`"
                )
            self._records.events.add(EventKind.NO_WORKERS, f"{text}: what was queued has failed")
            self._services.handle(FailWaiting(error))

    def _report_missing(self) -> None:
        here: set[object] = set()
        for connection in self._tasks:
            here |= {connection.worker.name, connection.worker.index}
        awaited = self._scheduler.dispatcher.waiting.awaited()
        for absent in self._absences.due(awaited, here, self._loop.time()):
            known = ", ".join(sorted(repr(connection.worker.name) for connection in self._tasks))
            self._records.events.add(
                EventKind.WORKER_AWAITED,
                f"closures wait for worker {absent!r} (worker=), which is not here. They run when "
                f"it comes; remote.cancel() gives one up. Here are: {known or 'none'}",
            )
