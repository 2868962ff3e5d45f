"""ClosureRunner: runs the closures of a session, and commits what they have written.

Threads: `run`, `make` and `flush` are for closure threads, several at a time; the rest is for the
event loop, which may cancel what runs. A closure thread does not wait for its commit: it runs the
next closure, and the loop hands over the outcome of the last one. Whatever that next closure asks
the same server comes after the commit, on the same connection, and sees what the last one wrote. A
commit to several servers, which takes several messages, is waited for. (One that must be sent
again, as its shard moved or the connection broke, may come after that read; but the next closure's
commit waits for it.)
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec.structs import replace

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.commit import UndecidedError
from psnb._src.client.local_copies import LocalCopies
from psnb._src.client.requests import reaching_by
from psnb._src.client.updates import Round, Updates, buffered
from psnb._src.dask_compat import Comm
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.messages import (
    AnnounceStrategies,
    AskLease,
    Assignment,
    BeginLease,
    ClosureResult,
    ClosureResults,
    ClosureUndecided,
    CopiesFlushed,
    DefineResource,
    ElementsTaken,
    FlushUndecided,
    Inquiry,
    KeepResult,
    QuestionAsked,
    SessionOpening,
    TakeAnswer,
    Taken,
    ToNotebook,
    ToWorker,
    exchange_writer,
    held_seconds,
)
from psnb._src.protocol.packing import Nothing, dumps, loads, pack_error, shorten_call
from psnb._src.server.commit_log import Commit, Part
from psnb._src.transport.stream import MessageStream, message_stream
from psnb._src.utils.profiling import COMMIT, COMPUTE, PHASES, READ, start_clock, stop_clock
from psnb._src.utils.threads import Answer
from psnb._src.worker.context import (
    Activity,
    Cancellation,
    PeerMessages,
    ReportedStates,
    WorkerContext,
    end_printed_lines,
    entered,
    split_outcome,
    with_taken,
)
from psnb._src.worker.leasing import ASK_TIMEOUT, LeaseRequests, TakenElements, joined
from psnb._src.worker.resources import Resources
from psnb.errors import ClosureCancelledError

# ClosureThreads: the threads of a session that run its closures.
#
# Threads: ``psnb-closure`` threads run what is put, in the order in which it came. The rest belongs
# to the event loop.


class ClosureThreads:
    """As many threads as are wanted at the moment, with one line of work.

    Parameters
    ----------
    closed : callable
        Whether the session is over: what is put then is dropped.
    begin : callable
        What each thread does first.
    """

    def __init__(self, closed: Callable[[], bool], begin: Callable[[], None]) -> None:
        self._closed, self._begin = closed, begin
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._count = 0
        self._threads: list[threading.Thread] = []

    def use(self, count: int) -> None:
        """Have ``count`` threads; those beyond it end when the work before is taken."""
        self._threads = [each for each in self._threads if each.is_alive()]
        for _ in range(self._count, count):
            name = f"psnb-closure-{next(self._numbers)}"
            thread = threading.Thread(target=self._loop, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in range(count, self._count):
            self._work.put(None)
        self._count = count

    def put(self, work: Callable[[], None]) -> None:
        """Have one of the threads do work."""
        self._work.put(work)

    def idents(self) -> list[int | None]:
        """Return the identifiers of the threads."""
        return [thread.ident for thread in self._threads]

    def _loop(self) -> None:
        self._begin()
        while (work := self._work.get()) is not None:
            if not self._closed():
                work()
            del work  # not held while waiting for the next


class LoadedFunction:
    """A function from the coordinator, unpickled when it is first called.

    Not on arrival: it may hold per-worker values, which only closure threads may wait for.
    """

    def __init__(self, name: str, payload: bytes, resources: Resources) -> None:
        self.name = name
        self._short = name.rpartition("<locals>.")[2]
        self.activity = f"running {self._short}"
        self._payload, self._resources = payload, resources
        self._lock = threading.Lock()  # unpickle once, though two threads call at the same time
        self._function: Callable[..., Any] | None = None

    def get(self) -> Callable[..., Any]:
        """Return the function; for closure threads."""
        with self._lock:
            if self._function is None:
                with Activity(f"loading {self._short}"):  # with all the modules that it needs
                    self._function = loads(self._payload, self._resources.get)
            return self._function


# ClosureAttempt: one attempt at a closure, from its call to its result.
#
# It belongs to the closure's thread until its commit is sent, and then to what takes the answer.


class ClosureAttempt:
    """What an attempt was given, has taken and written, and its outcome.

    Parameters
    ----------
    function : LoadedFunction
        What is called.
    assignment : Assignment
        What the coordinator sent with it.
    updates : Updates
        Takes its writes.
    ask : callable
        Asks the coordinator for what it reads.
    report : callable
        Takes what it has read.

    Attributes
    ----------
    assignment, updates
        As given.
    clock : PhaseClock
        What its time goes to; begins at once.
    requests : LeaseRequests
        What it takes from datasets.
    states : ReportedStates
        The states of metrics that it reports.
    succeeded : bool
        False once `fail` was called.
    packed : bytes
        The pickled result, or the error that `fail` was given.
    staleness : int or None
        How stale its update was, as far as that is known.
    """

    def __init__(
        self,
        function: LoadedFunction,
        assignment: Assignment,
        updates: Updates,
        ask: Callable[[AskLease | BeginLease], Future[Any]],
        report: Callable[[Taken], object],
    ) -> None:
        self.clock = start_clock(READ)
        self.assignment, self.updates = assignment, updates
        number = assignment.number
        ranges = [each for each in assignment.ranges if each.closure == number]
        self.requests = LeaseRequests(number, ask, report, ranges, assignment.slot)
        self.states = ReportedStates()
        self.succeeded, self.packed = True, b""
        self.staleness: int | None = None
        self._function = function
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}

    def call(self, resources: Resources) -> Any:
        """Call the function and return what it returns; raises what it raises."""
        given = self.assignment
        if given.payload:
            self._args, self._kwargs = loads(given.payload, resources.get, given.inputs)
        self.clock.turn(COMPUTE)
        # Among it: the first call imports what the function needs, such as a framework. As reading
        # it would say that workers wait for data.
        function = self._function.get()
        try:
            return function(*self._args, **self._kwargs)
        except StopIteration:
            # From a dataset that has nothing left: the closure has nothing to do.
            if not self.requests.ended or self.updates:
                raise
            return Nothing(self._function.name)
        finally:
            end_printed_lines()

    def pack(self, value: Any) -> None:
        """Pickle the result."""
        self.clock.turn(COMMIT)
        packed = b"" if value is None else dumps(value, f"the result of {self._function.name}")
        self.packed = self.states.attach(packed)

    def fail(self, error: BaseException, worker: str) -> None:
        """Have the error as the outcome."""
        unread = self.assignment.payload and not (self._args or self._kwargs)
        call = "..." if unread else shorten_call(self._args, self._kwargs)
        where = (
            f"in closure {self._function.name}({call}) on worker {worker!r}, "
            f"attempt {self.assignment.attempt}"
        )
        self.succeeded, self.packed = False, pack_error(error, where)

    def release(self) -> None:
        """Let go of what it has taken, was given and has written."""
        self._args, self._kwargs = (), {}
        self.requests.taken = TakenElements()
        del self.updates

    @property
    def pushed(self) -> bool:
        """Whether it has sent gradients, and succeeded."""
        return self.succeeded and self.updates.pushed

    def result(self) -> ClosureResult:
        """Return the outcome."""
        return ClosureResult(
            self.assignment.closure,
            True,
            1,
            self.succeeded,
            self.packed,
            sum(self.clock.seconds),
            self.pushed,
            () if self.staleness is None else (self.staleness,),
            (),
        )


# Run: a run that is under way in a closure thread.


class Run:
    """Ends when its thread has, and the commits of its steps; thread-safe.

    Parameters
    ----------
    cancellation : Cancellation
        Says when it must not go on.
    end : callable
        Called once, with the run, when it has ended.

    Attributes
    ----------
    found_end : bool
        Whether a step has found nothing to take.
    last : sequence of ToNotebook
        If a step had no effect, or it is not known: what says so. Then no later one has any.
    """

    def __init__(self, cancellation: Cancellation, end: Callable[[Run], None]) -> None:
        self.found_end = False
        self.last: Sequence[ToNotebook | ClosureResult] = ()
        self._cancellation, self._end = cancellation, end
        self._lock = threading.Lock()  # guards the number, for a moment each
        self._parts = 1  # its thread, and the steps whose outcome is to come

    def goes_on(self) -> bool:
        """Return whether it may do another step."""
        stop = self._cancellation.requested or self._cancellation.recalled
        return not (stop or self.found_end or self.last)

    def begin_part(self) -> None:
        """Note that a step begins."""
        with self._lock:
            self._parts += 1

    def end_part(self) -> None:
        """Note that a step's outcome is handed over, or that the thread does no more of them."""
        with self._lock:
            self._parts -= 1
            over = not self._parts
        if over:
            self._end(self)


class _StepsDone:
    """The steps of a run that were done since they were last sent."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.seconds = 0.0
        self.pushed = self.ended = False
        self.staleness: list[int] = []
        self._attempts: list[ClosureAttempt] = []

    def add(self, attempt: ClosureAttempt) -> None:
        self.numbers.append(attempt.assignment.number)
        self.seconds += sum(attempt.clock.seconds)
        self.pushed |= attempt.pushed
        if attempt.staleness is not None:
            self.staleness.append(attempt.staleness)
        attempt.release()  # batches and gradients: it waits here for up to five seconds
        self._attempts.append(attempt)

    def results(self, run: int) -> list[ClosureResult]:
        """Return them as results of a run; may run what users have written."""
        states, results = ReportedStates(), list[ClosureResult]()
        for each in self._attempts:
            try:
                states.absorb(each.states)
            except Exception:  # of another metric by the same name, or a user's that fails
                results.append(self._reported(run, each))
        try:
            payload = states.attach(b"")
        except Exception:  # likewise: each of them was pickled before
            results, payload = [self._reported(run, each) for each in self._attempts], b""
        wanted = [each.packed for each in self._attempts if each.assignment.results]
        values = [split_outcome(each)[0] for each in wanted]
        done = len(self.numbers), True, payload, self.seconds, self.pushed, self.staleness
        return [*results, ClosureResult(run, self.ended, *done, values)]

    def _reported(self, run: int, attempt: ClosureAttempt) -> ClosureResult:
        return ClosureResult(run, False, 0, True, attempt.packed, 0.0, False, (), ())


# ResultSender: results and reports on their way from the closure threads to the coordinator.
#
# A result is sent at once if no more closures wait. Otherwise results are gathered until they are
# as many as the closures that still wait, so that the coordinator can send more in time, or for
# `HELD_SECONDS`. What steps of runs have done and reported is held for `held_seconds`.

HELD_SECONDS = 0.015
"""Seconds that a result waits at most for others to be sent with it."""

_NO_TIME = [0.0] * len(PHASES)


class ResultSender:
    """Gathers what closure threads hand over; `expect` belongs to the event loop.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The loop whose timer sends.
    unstarted : collection
        The closures that wait to be run; only its length is used.
    send : callable
        Sends them; called by any thread.
    ticked : callable
        Called with each tick, while results are expected.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unstarted: Sized,
        send: Callable[[ClosureResults], None],
        ticked: Callable[[], object] = bool,
    ) -> None:
        self._loop, self._unstarted, self._send, self._ticked = loop, unstarted, send, ticked
        # Keeps messages in order. While it is held, a message is pickled, and a socket is written
        # that does not block.
        self._sending = threading.Lock()
        self._lock = threading.Lock()  # guards the next eight, used by several threads
        self._steps: dict[int, _StepsDone] = {}  # by run
        self.workers = 1  # of the coordinator
        self._hurry = False  # something is here that is not of a run's step
        self._sent_at = time.monotonic()
        self._taken: list[Taken] = []
        self._results: list[ClosureResult] = []
        self._reports: list[tuple[float, dict[str, float]]] = []
        self._phases: list[list[float]] = [_NO_TIME]  # of these results, in seconds
        self._expected = 0  # results that are still to come
        self._ticking = False  # the loop's alone

    def expect(self, count: int) -> None:
        """Expect this many more results."""
        with self._lock:
            self._expected += count
        if not self._ticking and self._expected:
            self._ticking = True
            self._loop.call_later(HELD_SECONDS, self._tick)

    def expect_fewer(self, count: int) -> None:
        """Expect this many results less; any thread."""
        with self._lock:
            self._expected -= count

    def add_result(self, result: ClosureResult, phases: list[float]) -> None:
        """Hand a result over, and how long its closure was in each phase, in seconds."""
        with self._lock:
            self._expected -= 1
            self._phases.append(phases)
            self._results.append(result)
            enough = len(self._results) >= len(self._unstarted)
            self._hurry = True
        if enough:
            self.flush()

    def add_step(self, attempt: ClosureAttempt) -> None:
        """Hand over a step of a run that has had its effect; any thread."""
        with self._lock:
            run = attempt.assignment.closure
            self._steps.setdefault(run, _StepsDone()).add(attempt)
            # What it has used up, such as a partition that Dask holds for it, is let go then.
            self._hurry |= any(each.ended for each in attempt.requests.used)
            self._phases.append(attempt.clock.seconds)

    def end_run(self, run: int) -> None:
        """Note that a run has ended well: no more steps of it come."""
        with self._lock:
            self._expected -= 1
            self._steps.setdefault(run, _StepsDone()).ended = True
            idle = not self._unstarted
        if idle:
            self.flush()

    def add_report(self, when: float, values: dict[str, float], *, hurry: bool = True) -> None:
        """Hand metrics over; they go with the next results, or after `HELD_SECONDS`.

        Without hurry: after `held_seconds`.
        """
        with self._lock:
            self._reports.append((when, values))
            self._hurry |= hurry

    def add_taken(self, taken: Taken, *, hurry: bool = True) -> None:
        """Hand over what a closure has taken, likewise."""
        with self._lock:
            self._taken.append(taken)
            self._hurry |= hurry

    def flush(self) -> None:
        """Send all there is, if there is anything; any thread."""
        with self._sending:
            with self._lock:
                taken, self._taken = self._taken, []
                results, self._results = self._results, []
                reports, self._reports = self._reports, []
                phases, self._phases = self._phases, [_NO_TIME]
                steps, self._steps = self._steps, {}
                self._hurry, self._sent_at = False, time.monotonic()
            if taken or results or reports or steps:
                together = [float(sum(each)) for each in zip(*phases, strict=True)]
                done = [result for run, each in steps.items() for result in each.results(run)]
                effective = {number for each in steps.values() for number in each.numbers}
                taken = joined(taken, effective)
                self._send(ClosureResults(taken, reports, together, [*done, *results]))

    def end(self) -> None:
        """Expect nothing any more."""
        with self._lock:
            self._expected = 0

    def _tick(self) -> None:
        with self._lock:
            self._ticking = self._expected > 0
            hold = held_seconds(self.workers)
            due = self._hurry or time.monotonic() - self._sent_at >= hold
        try:
            if due or not self._ticking:
                self.flush()
        finally:  # without memory for it, the next tick may have some
            self._ticked()
            if self._ticking:
                self._loop.call_later(HELD_SECONDS, self._tick)


# NotebookLink: a session's way to its coordinator, and what closures ask over it.
#
# Threads: any thread sends and asks. The event loop opens and closes the link, receives, and hands
# answers to the waiting threads.


class NotebookLink:
    """Carries messages between a session and its coordinator.

    Parameters
    ----------
    comm : distributed.comm.Comm
        The coordinator's connection.

    Attributes
    ----------
    closed : bool
        Whether the coordinator has closed, or is out of reach.
    """

    def __init__(self, comm: Comm) -> None:
        self.closed = False
        self._comm = comm
        self._stream: MessageStream | None = None  # set when the coordinator was answered
        self._numbers = itertools.count()
        self._asked: dict[int, Future[Any]] = {}  # each operation on a dict is atomic

    async def open(self, threads: int) -> None:
        """Tell the coordinator that the session is ready, with ``threads`` closure threads."""
        await self._comm.write({"status": "OK", "threads": threads})
        self._stream = message_stream(self._comm)

    async def receive(self) -> ToWorker:
        """Return the next message of an open link; raises OSError when the connection ends."""
        assert self._stream is not None
        return await self._stream.receive(ToWorker)

    def send(self, message: ToNotebook) -> None:
        """Send a message, if the link is open; returns at once."""
        if self._stream is not None:
            self._stream.send(message)

    def ask(self, inquiry: Inquiry) -> Future[Any]:
        """Ask the coordinator; the answer is a `ClosureCancelledError` if it is out of reach."""
        number, future = next(self._numbers), Future[Any]()
        self._asked[number] = future
        if self.closed:  # checked after the future is stored; `close` does it in the other order
            self._give_up(number)
        else:
            self.send(QuestionAsked(number, inquiry))
        return future

    def take_answer(self, message: TakeAnswer) -> None:
        """Hand an answer to the thread that waits for it."""
        if (future := self._asked.pop(message.number, None)) is not None:
            future.set_result(message.answer)

    def close(self) -> None:
        """Close the connection; waits for an answer raise `ClosureCancelledError`."""
        self.closed = True
        for number in list(self._asked):
            self._give_up(number)
        if self._stream is not None:
            self._stream.abort()
        self._comm.abort()

    def _give_up(self, number: int) -> None:
        if (future := self._asked.pop(number, None)) is not None:
            future.set_exception(out_of_reach())


def out_of_reach() -> ClosureCancelledError:
    """Return the error of closures whose coordinator is not there any more."""
    return ClosureCancelledError("the coordinator has closed, or is out of reach")


LARGE_RESULT = 1 << 13
"""Bytes of a pickled result above which servers do not remember it beside the commit."""


class ClosureRunner:
    """Runs closures, one in each closure thread.

    Parameters
    ----------
    opening : SessionOpening
        What the coordinator sent first.
    server_client : CommServerClient
        The worker's way to the servers. The same that handles use: arrays that they have written to
        its memory are sent from there.
    mail : Mail
        The worker's way to other workers.
    link : NotebookLink
        The way to the coordinator.
    results : ResultSender
        Takes results and reports.
    resources : Resources
        The per-worker values.
    """

    def __init__(
        self,
        opening: SessionOpening,
        server_client: CommServerClient,
        mail: PeerMessages,
        link: NotebookLink,
        results: ResultSender,
        resources: Resources,
    ) -> None:
        self._opening, self._worker = opening, opening.worker_name
        self._server_client, self._mail = server_client, mail
        self._link, self._results, self._resources = link, results, resources
        name = opening.coordinator
        writer = exchange_writer(name, opening.session)
        self._copies = (
            None
            if opening.exchange is None
            else LocalCopies(server_client, opening.exchange, name, writer)
        )
        self._settled_below = 0
        self._written_to = {opening.strategy}  # the strategies that the coordinator knows of
        # Of closures that have not ended: the loop adds, closure threads remove. All per-worker
        # values that are made share one.
        self._cancellations: dict[int, Cancellation] = {}
        self._making = Cancellation()
        self._last = (
            threading.local()
        )  # `commit`: an `Answer` when this thread's last one has ended

    def learn(self, settled_below: int, workers: int) -> None:
        """Note below which number all closures have ended, and how many workers there are."""
        self._settled_below, self._results.workers = settled_below, workers
        if self._copies is not None:
            self._copies.workers, self._copies.ended_below = workers, settled_below

    @property
    def busy(self) -> bool:
        """Whether closures are expected that have not ended."""
        return bool(self._cancellations)

    def expect(self, closure: int) -> None:
        """Note that a closure is going to be run."""
        self._cancellations[closure] = Cancellation()

    def forget(self, closure: int) -> None:
        """Note that it is not, after all."""
        del self._cancellations[closure]

    def cancel(self, closures: Iterable[int]) -> None:
        """Ask those of these closures that have not ended to stop early."""
        for closure in closures:
            if (cancellation := self._cancellations.get(closure)) is not None:
                cancellation.requested = True

    def recall(self, closures: Iterable[int]) -> None:
        """Have those of these closures that are runs end with the step that they do."""
        for closure in closures:
            if (cancellation := self._cancellations.get(closure)) is not None:
                cancellation.recalled = True

    def revoke(self, closure: int) -> None:
        """Ask a closure to stop early, and have it write nothing any more."""
        if (cancellation := self._cancellations.get(closure)) is not None:
            cancellation.revoked = cancellation.requested = True

    def cancel_all(self) -> None:
        """Ask everything that runs to stop early."""
        self._making.requested = True
        self.cancel(list(self._cancellations))

    def run(self, function: LoadedFunction, assignment: Assignment) -> None:
        """Run a closure that is expected; its result is handed over when its writes are made."""
        if assignment.steps is None:
            self._run_once(function, assignment, None)
            return
        closure = assignment.closure
        run = Run(self._cancellations[closure], partial(self._end_run, closure))
        for step in range(assignment.steps):
            run.begin_part()
            done, commit = assignment.done + step, assignment.commit + step
            self._run_once(function, replace(assignment, done=done, commit=commit), run)
            if not run.goes_on():
                break
        try:
            self._server_client.flush()  # nothing of this run is sent after its last commit
        finally:
            run.end_part()

    def _run_once(self, function: LoadedFunction, assignment: Assignment, run: Run | None) -> None:
        """Run a closure, or a step of a run."""
        number = assignment.round
        in_round = None if number is None else Round(self._opening.strategy, number)
        updates = Updates(
            counted=self._copies is None, sync_round=in_round, server_client=self._copies
        )
        report = partial(self._results.add_taken, hurry=run is None)
        attempt = ClosureAttempt(function, assignment, updates, self._ask_lease, report)
        under_way = False
        try:
            context = self._context(self._cancellations[assignment.closure], attempt, run)
            with (
                Activity(function.activity),
                entered(context),
                reaching_by(self._server_client),
                buffered(updates),
            ):
                value = attempt.call(self._resources)
            if run is not None:
                run.found_end = attempt.requests.ended and not updates
            attempt.pack(value if run is None or assignment.results else None)
            if not updates:
                self._require_unrevoked(assignment.closure)
            elif self._copies is None:
                self._begin_commit(attempt, run)
                under_way = True
            else:
                self._copies.commit(*self._commit_of(attempt))
            if self._copies is not None and not self._link.closed:
                # Not without the coordinator: what runs again would count twice.
                attempt.staleness = self._copies.closure_ended()
        except BaseException as error:  # a boundary: every exception goes to the notebook
            self._end_in_turn(attempt, run, error)
        else:
            if not under_way:
                self._end_in_turn(attempt, run)
        stop_clock()

    def _begin_commit(self, attempt: ClosureAttempt, run: Run | None) -> None:
        """Send a closure's writes; the closure ends when the servers have answered.

        Meanwhile this thread runs the next one, which waits here for the end of this one.
        """
        commit, parts = self._commit_of(attempt)
        self._await_last()
        if run is not None and run.last:
            raise ClosureCancelledError("a step before it had no effect")
        answered = Answer[None]()

        def ended(outcome: int | Exception | None) -> None:
            try:
                if isinstance(outcome, Exception):
                    self._end(attempt, run, outcome)
                else:
                    attempt.staleness = outcome
                    self._end(attempt, run)
            finally:
                answered.set_result(None)

        later = run is not None and run.goes_on()
        self._server_client.commit_soon(commit, parts, ended, later=later)
        self._last.commit = answered

    def _await_last(self) -> None:
        """Wait for the end of this thread's last commit."""
        before: Answer[None] | None = getattr(self._last, "commit", None)
        if before is not None:
            self._server_client.flush()
            before.result()  # ends, as every commit does

    def _end_in_turn(
        self, attempt: ClosureAttempt, run: Run | None, error: BaseException | None = None
    ) -> None:
        """Hand over an outcome here; that of a run's step after the one before it."""
        if run is not None:
            self._await_last()
        self._end(attempt, run, error)

    def _end(
        self, attempt: ClosureAttempt, run: Run | None, error: BaseException | None = None
    ) -> None:
        """Hand over the outcome of a closure, or of a step; any thread."""
        clock = attempt.clock
        clock.turn(COMMIT)
        if run is None:
            del self._cancellations[attempt.assignment.closure]
            if error is None:
                self._results.add_result(attempt.result(), clock.seconds)
            else:
                self._hand_over(self._without_effect(attempt, error), clock.seconds)
            return
        if not run.last:
            if error is None:
                self._results.add_step(attempt)
            else:
                run.last = self._without_effect(attempt, error)
        run.end_part()

    def _without_effect(
        self, attempt: ClosureAttempt, error: BaseException
    ) -> Sequence[ToNotebook | ClosureResult]:
        """Return what says that a closure or step has had no effect, or may have had none."""
        closure = attempt.assignment.closure
        if not isinstance(error, UndecidedError):
            attempt.fail(error, self._worker)
            taken = attempt.requests.taken.packed(self._resources.number_of)
            return ElementsTaken(closure, taken), attempt.result()
        result, seconds = attempt.result(), attempt.clock.seconds
        undecided = result.payload, result.seconds, seconds, result.pushed, error.commit[:2]
        return (ClosureUndecided(closure, *undecided),)

    def _hand_over(
        self, messages: Sequence[ToNotebook | ClosureResult], seconds: list[float]
    ) -> None:
        for each in messages:
            if isinstance(each, ClosureResult):
                self._results.add_result(each, seconds)
                continue
            if isinstance(each, ClosureUndecided):
                self._results.expect_fewer(1)
                self._results.flush()  # what it has taken comes first
            self._link.send(each)

    def _end_run(self, closure: int, run: Run) -> None:
        del self._cancellations[closure]
        if run.last:
            self._hand_over(run.last, _NO_TIME)
        else:
            self._results.end_run(closure)

    def make(self, definition: DefineResource) -> None:
        """Make a per-worker value."""

        def call() -> Any:
            function, args, kwargs = loads(definition.payload, self._resources.get)
            with entered(self._context(self._making)), reaching_by(self._server_client):
                try:
                    return function(*args, **kwargs)
                finally:
                    end_printed_lines()

        with Activity("loading per-worker data"):
            self._resources.make(definition.number, call)

    def flush(self) -> None:
        """Send the servers the updates that are kept here, and inform the coordinator."""
        error, staleness = b"", None
        try:
            if self._copies is not None:
                staleness = self._copies.exchange()
        except UndecidedError as raised:
            self._link.send(FlushUndecided(raised.commit[:2]))
            return
        except BaseException as raised:  # a boundary, too
            where = f"while worker {self._worker!r} sent what it had learned"
            error = pack_error(raised, where)
        self._link.send(CopiesFlushed(error, staleness))

    def _context(
        self,
        cancellation: Cancellation,
        attempt: ClosureAttempt | None = None,
        run: Run | None = None,
    ) -> WorkerContext:
        report = self._results.add_report
        return WorkerContext(
            self._opening.worker_index,
            self._opening.num_workers,
            self._worker,
            1 if attempt is None else attempt.assignment.attempt,
            report if run is None else partial(report, hurry=False),
            cancellation,
            None if attempt is None else attempt.requests,
            self._mail,
            -1 if attempt is None else attempt.assignment.number,
            None if attempt is None else attempt.states,
        )

    def _commit_of(self, attempt: ClosureAttempt) -> tuple[Commit, dict[ShardId, Part]]:
        """Return a closure's writes as a commit, which must happen from here on."""
        if self._link.closed:
            raise out_of_reach()
        assignment, updates = attempt.assignment, attempt.updates
        remembered = with_taken(attempt.packed, attempt.requests.used)
        small = self._announce(assignment, updates, remembered)
        # Only now: what servers are not asked to refuse, as the coordinator did not know of them
        # when it was cancelled, is written to after this answer.
        self._require_unrevoked(assignment.closure)
        # Last: from here on the closure has happened, even if its result gets lost.
        name = self._opening.coordinator
        commit = Commit(
            name,
            assignment.commit,
            assignment.attempt,
            self._settled_below,
            closures=((assignment.commit, small),),
            coordinator=name,
            ended_below=self._settled_below,
            pushed=updates.pushed,
            shards=updates.shards,
        )
        return commit, updates.parts()

    def _ask_lease(self, question: AskLease | BeginLease) -> Future[Any]:
        if isinstance(question, AskLease) and question.slot is not None:
            self._results.flush()  # what was taken before in this slot: the answer depends on it
        return self._link.ask(question)

    def _require_unrevoked(self, closure: int) -> None:
        if self._cancellations[closure].revoked:
            raise ClosureCancelledError("the closure was cancelled while it ran")

    def _announce(self, assignment: Assignment, updates: Updates, packed: bytes) -> bytes | None:
        """Tell the coordinator what it must know before a commit; return the result for servers."""
        others = {shard.strategy for shard in updates.shards} - self._written_to
        large = len(packed) > LARGE_RESULT
        asked = []
        if others:
            asked.append(self._link.ask(AnnounceStrategies(sorted(others))))
        if large:
            kept = KeepResult(assignment.closure, assignment.attempt, assignment.commit, packed)
            asked.append(self._link.ask(kept))
        for answer in asked:
            if not answer.result(ASK_TIMEOUT):
                raise out_of_reach()
        self._written_to |= others
        return None if large else packed
