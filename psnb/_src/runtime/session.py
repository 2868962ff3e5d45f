"""Session: one coordinator's closures on one worker, for as long as the connection lasts.

The coordinator opens a connection to the worker's Dask server with the operation `HANDLER`. From
then on messages go both ways over it: closures and results travel in batches of whatever is there,
and neither waits for the other. Everything that belongs to the coordinator (functions, per-worker
values, threads) belongs to the session and ends with it.

Messages from the coordinator::

    {"op": "define", "id": int, "payload": bytes}                        make a per-worker value
    {"op": "release", "ids": [int]}                                      forget such values
    {"op": "run", "settled_below": int,                      run closures; functions come once;
     "closures": [(id, function id, attempt, commit number,  closures below that commit number have
                   round, payload, [payload of an input],    all ended; for portions
                   [portion taken before])],                 see `psnb._src.runtime.leasing`
     "functions": {id: (name, payload)}, "forget": [id],
     "workers": int, "layout": list or None}                 how many there are now; a new layout
    {"op": "recall", "ids": [int]}                           return those that are not begun
    {"op": "cancel", "ids": [int]}                           likewise, and tell the others to stop
    {"op": "flush"}                                          send servers the updates kept here
    {"op": "told", "number": int, "answer": object}          the answer to a question

and back, at least every ``beat`` seconds as a sign of life::

    {"results": [(closure id, ending, payload, seconds,      whether it pushed gradients, and how
                  pushed, staleness)],                       stale its update was, if there is one
     "reports": [(time, {name: value})],
     "returned": [closure id],                               not begun, and not going to be
     "leaving": bool}                                        Dask closes the worker: send no more
    {..., "flushed": (error, staleness)}                     servers have these updates, or why not
    {..., "undecided": (writer, number)}                     unknown whether this flush is applied
    {..., "memory": int}                                     bytes that the process takes
    {..., "asks": (number, question)}                        what a closure asks the coordinator

The *ending* of a closure is True if it has a value, False if it raised, and None if the worker
cannot tell whether its commit is applied. In the last case the message has the value, and in the
place of the staleness the ``(writer, number)`` of that commit; the notebook then asks the servers.
Besides those about leased datasets, two questions come before a commit:
``("keep", closure id, attempt, payload)`` hands over a value that is too large for servers to
remember, and ``("writes to", [strategy])`` names other strategies whose parameters are written.

Threads: the event loop reads the connection; ``psnb-closure`` threads, as many as the Dask worker
has, run the work in the order in which it came. They send results through `ResultSender`. A closure
belongs to whoever takes it out of `_unstarted`: the thread that runs it, or the loop that returns
it. A session that ends tells running closures to stop early, lets them finish, drops their results
and starts no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import psutil
from distributed import Worker

from psnb._src.dask_internals import Comm, threads_of
from psnb._src.parameters import (
    CommServerClient,
    LocalCopies,
    Round,
    UndecidedError,
    Updates,
    buffered,
)
from psnb._src.placement import unpacked
from psnb._src.runtime.leasing import ASK_TIMEOUT, LeaseRequests
from psnb._src.runtime.mail import Mail
from psnb._src.runtime.packing import dumps, loads, pack_error, shorten_call
from psnb._src.runtime.resources import Resources
from psnb._src.runtime.result_sender import ResultSender
from psnb._src.runtime.worker_context import Cancellation, WorkerContext, entered
from psnb._src.server import Commit
from psnb._src.transport import MessageStream, message_stream
from psnb.errors import CancelledError

HANDLER = "psnb_session"
"""The name of the handler on each Dask worker."""

LARGE_RESULT = 1 << 13
"""Bytes of a pickled result above which servers do not remember it beside the commit."""


class _LoadedFunction:
    """A function from the coordinator, unpickled when it is first called.

    Not on arrival: it may hold per-worker values, which only closure threads may wait for.
    """

    def __init__(self, name: str, payload: bytes, resources: Resources) -> None:
        self.name = name
        self._payload, self._resources = payload, resources
        self._lock = threading.Lock()  # unpickle once, though two threads call at the same time
        self._function: Callable[..., Any] | None = None

    def get(self) -> Callable[..., Any]:
        with self._lock:
            if self._function is None:
                self._function = loads(self._payload, self._resources.get)
            return self._function


class Session:
    """Runs the closures of one coordinator on this worker.

    Parameters
    ----------
    worker : distributed.Worker
        The Dask worker.
    comm : distributed.comm.Comm
        The coordinator's connection.
    transport : CommServerClient
        The worker's way to the servers.
    mail : Mail
        The worker's way to other workers.
    coordinator : str
        Its name, unique in the cluster; closures commit under it.
    worker_index, num_workers : int
        What closures see in their context.
    beat : float
        Seconds between signs of life.
    drain : float
        Seconds that closures get to end when the worker leaves.
    strategy : str
        The strategy whose updates go by rounds or local copies, if the mode has such.
    exchange : int or None
        If closures work on local copies: after how many closures the worker sends the changes.
    session : int
        Unique among the coordinator's sessions.
    """

    def __init__(
        self,
        worker: Worker,
        comm: Comm,
        transport: CommServerClient,
        mail: Mail,
        coordinator: str,
        worker_index: int,
        num_workers: int,
        beat: float,
        drain: float,
        strategy: str,
        exchange: int | None,
        session: int,
    ) -> None:
        self._worker, self._comm = worker, comm
        self._stream: MessageStream | None = None  # set when the coordinator was answered
        self._coordinator, self._strategy, self._settled_below = coordinator, strategy, 0
        # The same that handles use: arrays that they have written to its memory are sent from
        # there.
        self._transport, self._mail = transport, mail
        self._copies = (
            None
            if exchange is None
            else LocalCopies(
                transport, exchange, coordinator, exchange_writer(coordinator, session)
            )
        )
        self._written_to = {strategy}  # the strategies that the coordinator knows of
        self._index, self._num_workers = worker_index, num_workers
        self._resources = Resources()
        self._functions: dict[str, _LoadedFunction] = {}
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Closures in `_work`; each operation on a dict is atomic.
        self._unstarted: dict[int, None] = {}
        self._outbox = ResultSender(asyncio.get_running_loop(), self._unstarted, self._send)
        self._beat, self._drain = beat, drain
        self._closed = self._leaving = False
        # Of closures that have not ended: the loop adds, closure threads remove. All per-worker
        # values that are made share one.
        self._cancellations: dict[int, Cancellation] = {}
        self._making = Cancellation()
        self._questions = itertools.count()
        self._asked: dict[int, Future[Any]] = {}  # each operation on a dict is atomic
        self._ended = asyncio.Event()
        self._threads = [
            threading.Thread(target=self._loop, name=f"psnb-closure-{i}", daemon=True)
            for i in range(threads_of(worker))
        ]

    async def serve(self) -> None:
        """Talk to the coordinator until the connection ends."""
        for thread in self._threads:
            thread.start()
        beats: asyncio.Task[None] | None = None
        try:
            await self._comm.write({"status": "OK", "threads": len(self._threads)})
            self._stream = message_stream(self._comm)
            beats = asyncio.create_task(self._give_signs_of_life())
            while True:
                self._receive(await self._stream.receive())
        except OSError:  # the coordinator closed or died
            pass
        finally:
            if beats is not None:
                beats.cancel()
            self.close()

    async def drain(self) -> None:
        """Tell the coordinator that the worker leaves, and let it finish what it has sent.

        The coordinator closes the session when it has all results; this waits for ``drain`` seconds
        at most.
        """
        self._leaving = True
        self._outbox.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain):
                await self._ended.wait()

    def close(self) -> None:
        """Start no more closures; running ones end by themselves, and their results are dropped."""
        self._closed = True
        for cancellation in (self._making, *list(self._cancellations.values())):
            cancellation.requested = True
        self._ended.set()
        for number in list(self._asked):
            self._answer(number, _out_of_reach())
        self._resources.clear()
        self._functions.clear()
        for _ in self._threads:
            self._work.put(None)
        if self._stream is not None:
            self._stream.abort()
        self._comm.abort()

    async def _give_signs_of_life(self) -> None:
        process = psutil.Process()
        while True:
            await asyncio.sleep(self._beat)
            self._outbox.flush(memory=process.memory_info().rss)

    def _send(
        self,
        results: list[Any],
        reports: list[Any],
        returned: Sequence[int] = (),
        **more: Any,
    ) -> None:
        if self._stream is not None:
            self._stream.send(
                {
                    "results": results,
                    "reports": reports,
                    "returned": returned,
                    "leaving": self._leaving,
                    **more,
                }
            )

    def _receive(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "run":
                self._settled_below = message["settled_below"]
                if message["layout"] is not None:
                    self._transport.learn(unpacked(message["layout"]))
                if self._copies is not None:
                    self._copies.workers = message["workers"]
                    self._copies.ended_below = message["settled_below"]
                for function_id in message["forget"]:
                    self._functions.pop(function_id, None)
                for function_id, (name, payload) in message["functions"].items():
                    self._functions[function_id] = _LoadedFunction(name, payload, self._resources)
                self._outbox.expect(len(message["closures"]))
                for closure_id, function_id, *rest in message["closures"]:
                    function = self._functions[function_id]
                    self._cancellations[closure_id] = Cancellation()
                    self._unstarted[closure_id] = None
                    self._work.put(partial(self._start, closure_id, function, *rest))
            case "recall":
                self._return(message["ids"])
            case "cancel":
                self._return(message["ids"])
                for closure_id in message["ids"]:
                    if (cancellation := self._cancellations.get(closure_id)) is not None:
                        cancellation.requested = True
            case "told":
                self._answer(message["number"], message["answer"])
            case "flush":
                self._work.put(self._flush)
            case "define":
                self._resources.define(message["id"])
                self._work.put(partial(self._define, message["id"], message["payload"]))
            case "release":
                for resource_id in message["ids"]:
                    self._resources.discard(resource_id)

    def _return(self, closure_ids: Iterable[int]) -> None:
        returned = [each for each in closure_ids if self._claim(each)]
        for closure_id in returned:
            del self._cancellations[closure_id]
        self._outbox.expect(-len(returned))
        self._send([], [], returned)

    def _claim(self, closure_id: int) -> bool:
        return self._unstarted.pop(closure_id, self) is None

    def _start(self, closure_id: int, *rest: Any) -> None:
        if self._claim(closure_id):
            self._run(closure_id, *rest)

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            if not self._closed:
                work()
            del work  # not held while waiting for the next

    def _ask(self, question: tuple[Any, ...]) -> Future[Any]:
        number, future = next(self._questions), Future[Any]()
        self._asked[number] = future
        if self._closed:  # checked after the future is stored; `close` does it in the other order
            self._answer(number, _out_of_reach())
        else:
            self._send([], [], asks=(number, question))
        return future

    def _answer(self, number: int, answer: Any) -> None:
        future = self._asked.pop(number, None)
        if future is None:
            return
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _context(
        self, attempt: int, cancellation: Cancellation, taking: LeaseRequests | None = None
    ) -> WorkerContext:
        return WorkerContext(
            self._index,
            self._num_workers,
            str(self._worker.name),
            attempt,
            self._outbox.add_report,
            cancellation,
            taking,
            self._mail,
        )

    def _define(self, resource_id: int, payload: bytes) -> None:
        def make() -> Any:
            function, args, kwargs = loads(payload, self._resources.get)
            with entered(self._context(1, self._making)):
                return function(*args, **kwargs)

        self._resources.make(resource_id, make)

    def _run(
        self,
        closure_id: int,
        function: _LoadedFunction,
        attempt: int,
        commit: int,
        round_number: int | None,
        payload: bytes,
        inputs: Sequence[bytes],
        portions: Sequence[Sequence[Any]],
    ) -> None:
        start = time.perf_counter()
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        copies, packed = self._copies, b""
        staleness: int | tuple[str, int] | None = None
        turn = None if round_number is None else Round(self._strategy, round_number)
        updates = Updates(counted=copies is None, turn=turn, way=copies)
        taking = LeaseRequests(closure_id, self._ask, portions)
        try:
            context = self._context(attempt, self._cancellations[closure_id], taking)
            with entered(context), buffered(updates):
                if payload:
                    args, kwargs = loads(payload, self._resources.get, inputs)
                value = self._call(function, args, kwargs, updates, taking)
            taking.settle()
            packed = b"" if value is None else dumps(value, f"the result of {function.name}")
            if updates:
                if self._closed:
                    raise _out_of_reach()
                small = self._announce(closure_id, attempt, updates, packed)
                # Last: from here on the closure has happened, even if its result gets lost.
                identity = Commit(
                    self._coordinator,
                    commit,
                    attempt,
                    self._settled_below,
                    closures=((commit, small),),
                    coordinator=self._coordinator,
                    ended_below=self._settled_below,
                    pushed=updates.pushed,
                )
                staleness = updates.commit(copies or self._transport, identity)
            if copies is not None and not self._closed:  # else what runs again would count twice
                staleness = copies.closure_ended()
            ending: bool | None = True
        except UndecidedError as error:
            ending, staleness = None, error.commit[:2]
        except BaseException as error:  # a boundary: every exception goes to the notebook
            ending = False
            call = f"{function.name}({shorten_call(args, kwargs)})"
            where = f"in closure {call} on worker {self._worker.name!r}, attempt {attempt}"
            packed = pack_error(error, [where])
        seconds = time.perf_counter() - start
        del self._cancellations[closure_id]
        pushed = ending is not False and updates.pushed
        self._outbox.add_result((closure_id, ending, packed, seconds, pushed, staleness))

    def _announce(
        self, closure_id: int, attempt: int, updates: Updates, packed: bytes
    ) -> bytes | None:
        """Tell the coordinator what it must know before a commit; return the result for servers."""
        others = {shard.strategy for shard in updates.shards} - self._written_to
        large = len(packed) > LARGE_RESULT
        told = []
        if others:
            told.append(self._ask(("writes to", sorted(others))))
        if large:
            told.append(self._ask(("keep", closure_id, attempt, packed)))
        for answer in told:
            if not answer.result(ASK_TIMEOUT):
                raise _out_of_reach()
        self._written_to |= others
        return None if large else packed

    def _call(
        self,
        function: _LoadedFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        updates: Updates,
        taking: LeaseRequests,
    ) -> Any:
        try:
            return function.get()(*args, **kwargs)
        except StopIteration:
            # From a dataset that has nothing left: the closure has nothing to do.
            if not taking.ended or updates:
                raise
            return None

    def _flush(self) -> None:
        error, staleness = b"", None
        more: dict[str, Any] = {}
        try:
            if self._copies is not None:
                staleness = self._copies.exchange()
        except UndecidedError as raised:
            more["undecided"] = raised.commit[:2]
        except BaseException as raised:  # a boundary, too
            where = f"while worker {self._worker.name!r} sent what it had learned"
            error = pack_error(raised, [where])
        self._send([], [], flushed=(error, staleness), **more)


def exchange_writer(coordinator: str, session: int) -> str:
    """Return the name under which a session commits the updates of several closures."""
    return f"{coordinator}/{session}"


def _out_of_reach() -> CancelledError:
    return CancelledError("the coordinator has closed, or is out of reach")
