"""Session: one coordinator's closures on one worker, for as long as the connection lasts.

The coordinator opens a connection to the worker's Dask server with the operation `HANDLER`. What
goes over it is in `psnb._src.protocol.messages`. Everything that belongs to the coordinator
(functions, per-worker values, threads) belongs to the session and ends with it.

Threads: the event loop reads the connection; `ClosureThreads`, ``psnb-closure``, run the work in
the order in which it came, as many as the Dask worker has unless the coordinator says otherwise.
They send results through `ResultSender`. A closure belongs to the thread that takes it out of
`_unstarted` to run it, or to the loop, which returns it. A session that ends tells running closures
to stop early, lets them finish, drops their results and starts no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import psutil
from distributed import Worker

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.server_client import reaching_by
from psnb._src.dask_compat.plugins import be_worker, threads_of
from psnb._src.dask_compat.reach import Comm
from psnb._src.data.stages import StageLog, log_stages
from psnb._src.protocol import messages
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.stages import Stages
from psnb._src.worker.activity import longest
from psnb._src.worker.attempt import LoadedFunction
from psnb._src.worker.context import Stop
from psnb._src.worker.gpu_memory import gpu_memory
from psnb._src.worker.link import NotebookLink
from psnb._src.worker.mail import PeerMessages
from psnb._src.worker.resources import Resources
from psnb._src.worker.results import ResultSender
from psnb._src.worker.runner import ClosureRunner, Unstarted

WORTH_TELLING = 0.5
"""Seconds after which views show what a worker does; short closures would only flicker."""


FAREWELL = 5.0
"""Seconds that a coordinator gets to take leave of a worker whose closures have all ended."""

_LOOK = 0.1

STAGES_SECONDS = 0.25
"""Seconds between two times that results come with what was read, at least."""


class ClosureThreads:
    """As many threads as are wanted at the moment, with one line of work.

    Parameters
    ----------
    closed : callable
        Whether the session is over: what is put then is dropped.
    being : callable
        Returns the context in which each thread works.

    Attributes
    ----------
    put : callable
        Has one of the threads do work.
    """

    def __init__(
        self, closed: Callable[[], bool], being: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._closed, self._being = closed, being
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.put: Callable[[Callable[[], None]], None] = self._work.put
        self._numbers = itertools.count()
        self._count = 0
        self._threads: list[threading.Thread] = []

    def use(self, count: int) -> None:
        """Have ``count`` threads; those beyond it end when the work before is taken.

        Without memory for one more it raises, and there are as many as before.
        """
        self._threads = [each for each in self._threads if each.is_alive()]
        before = self._count
        try:
            for _ in range(before, count):
                name = f"psnb-closure-{next(self._numbers)}"
                thread = threading.Thread(target=self._loop, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
                self._count += 1
        except (RuntimeError, MemoryError):
            self.use(before)
            raise
        for _ in range(count, self._count):
            self._work.put(None)
        self._count = count

    def idents(self) -> list[int | None]:
        """Return the identifiers of the threads."""
        return [thread.ident for thread in self._threads]

    def _loop(self) -> None:
        with self._being():
            while (work := self._work.get()) is not None:
                if not self._closed():
                    work()
                del work  # not held while waiting for the next


class Session:
    """Runs the closures of one coordinator on this worker.

    Parameters
    ----------
    worker : distributed.Worker
        The Dask worker.
    comm : distributed.comm.Comm
        The coordinator's connection.
    server_client : CommServerClient
        The worker's way to the servers.
    mail : PeerMessages
        The worker's way to other workers.
    opening : SessionOpening
        What the coordinator sent first.
    """

    def __init__(
        self,
        worker: Worker,
        comm: Comm,
        server_client: CommServerClient,
        mail: PeerMessages,
        opening: messages.SessionOpening,
    ) -> None:
        self._opening, self._server_client = opening, server_client
        self._link = NotebookLink(comm)
        self._resources = Resources()
        self._functions: dict[str, LoadedFunction] = {}
        self._stages = StageLog()
        self._threads = ClosureThreads(lambda: self._link.closed, partial(self._thread_of, worker))
        self._threads_there = threads_of(worker)
        self._unstarted: Unstarted = {}
        loop = asyncio.get_running_loop()
        # With its ticks, commits are sent that no further request has taken along.
        self._results = ResultSender(loop, self._unstarted, self._send_results, server_client.flush)
        self._runner = ClosureRunner(
            opening,
            server_client,
            mail,
            self._link,
            self._results,
            self._resources,
            self._unstarted,
        )
        self._sent_stages: dict[str, Stages] = {}
        self._sent_at = float("-inf")
        self._leaving = False
        self._ended = asyncio.Event()
        self._beat, self._other_beat = opening.beat, asyncio.Event()

    @contextlib.contextmanager
    def _thread_of(self, worker: Worker) -> Iterator[None]:
        """Be a closure thread of a worker."""
        log_stages(self._stages)
        be_worker(worker)
        with reaching_by(self._server_client):
            yield

    async def serve(self) -> None:
        """Talk to the coordinator until the connection ends."""
        self._threads.use(self._threads_there)
        beats: asyncio.Task[None] | None = None
        try:
            await self._link.open(self._threads_there)
            if self._leaving:
                self._link.send(messages.WorkerLeaves())
            beats = asyncio.create_task(self._give_signs_of_life())
            while True:
                self._receive(await self._link.receive())
        except OSError:  # the coordinator closed or died
            pass
        finally:
            if beats is not None:
                beats.cancel()
            self.close()

    async def drain(self) -> None:
        """Tell the coordinator that the worker leaves, and let it finish what it has sent.

        The coordinator closes the session when it has all results. This waits for as many seconds
        at most as the opening said, and for `FAREWELL` when no closure runs any more: a coordinator
        that cannot be reached closes nothing.
        """
        self._leaving = True
        self._link.send(messages.WorkerLeaves())
        self._results.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._opening.drain):
                while self._runner.busy and not self._ended.is_set():
                    await asyncio.sleep(_LOOK)
                async with asyncio.timeout(FAREWELL):
                    await self._ended.wait()

    def close(self) -> None:
        """Start no more closures; running ones end on their own, and their results are dropped."""
        self._link.close()
        self._runner.stop_all()
        self._results.close()
        self._ended.set()
        self._resources.clear()
        self._functions.clear()
        self._threads.use(0)

    async def _give_signs_of_life(self) -> None:
        process, errors = psutil.Process(), LoopErrors("Sending heartbeats to the notebook")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat):
                    await self._other_beat.wait()
            self._other_beat.clear()
            with errors:
                self._results.flush_due()
            with errors:
                activity, seconds = longest(self._threads.idents())
                if seconds < WORTH_TELLING:
                    activity, seconds = "", 0.0
                memory = process.memory_info().rss, gpu_memory()
                cpu = time.process_time()
                self._link.send(messages.SignOfLife(*memory, cpu, activity, seconds))
            with errors:
                self._send_stages()

    def _send_results(self, results: messages.ClosureResults) -> None:
        # Any thread. What was read comes first, so that it is there when the last result is; it is
        # large, so it does not come with every result.
        now = time.monotonic()
        if not self._unstarted and now - self._sent_at >= STAGES_SECONDS:
            self._sent_at = now
            self._send_stages()
        self._link.send(results)

    def _send_stages(self) -> None:
        # Two threads may send the same at the same time.
        now, sent = self._stages.statistics(), self._sent_stages
        self._sent_stages = now
        new = {kind: each for kind, each in now.items() if sent.get(kind) != each}
        if new:
            self._link.send(messages.ChainsRead(new))

    def _receive(self, message: messages.ToWorker) -> None:
        match message:
            case messages.RunClosures():
                self._take(message)
            case messages.RecallClosures():
                self._stop(message.closures, Stop.AFTER_STEP)
            case messages.CancelClosures():
                self._stop(message.closures, Stop.EARLY)
            case messages.RevokeClosure():
                self._stop([message.closure], Stop.UNWRITTEN)
            case messages.TakeAnswer():
                self._link.take_answer(message)
            case messages.FlushCopies():
                self._threads.put(self._runner.flush)
            case messages.BeatEvery():
                self._beat = message.seconds
                self._other_beat.set()
            case messages.UseThreads():
                self._threads.use(message.count or self._threads_there)
            case messages.DefineResource():
                self._resources.define(message.number)
                self._threads.put(partial(self._runner.make, message))
            case messages.ReleaseResources():
                for number in message.numbers:
                    self._resources.discard(number)

    def _take(self, message: messages.RunClosures) -> None:
        if message.layout is not None:
            self._server_client.layouts.learn(message.layout)
        self._runner.learn(message.workers)
        for function_id in message.forget:
            self._functions.pop(function_id, None)
        for function_id, (name, payload) in message.functions.items():
            self._functions[function_id] = LoadedFunction(name, payload, self._resources)
        self._results.expect(len(message.closures))
        for each in message.closures:
            function = self._functions[each.function]
            self._runner.expect(function, each)
            self._threads.put(partial(self._runner.run, each.closure))

    def _stop(self, closures: Iterable[int], how: Stop) -> None:
        """Return those that are not begun, and ask the others to stop."""
        if returned := self._runner.stop(closures, how):
            self._results.expect(-len(returned))
            self._link.send(messages.ClosuresReturned(returned))
