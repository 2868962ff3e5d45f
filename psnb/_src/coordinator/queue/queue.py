"""ClosureQueue: the coordinated queue. Pure, without Dask; bounded and thread-safe.

After TensorFlow's ``_CoordinatedClosureQueue``. Callers `put` and `join`; connections `take`,
`settle` and `put_back`. After the first failure every queued closure is cancelled and the running
ones are waited for; then the next `put`, `join` or `done` raises the first error once, with the
other errors so far attached (`FailedClosures`). After that the queue is as new.

A closure that was lost with its worker is *open* until it is known whether it has had its effect
(`psnb._src.coordinator.queue.fates` asks the servers): it still counts as running. If it has, it
has completed; if not, it is queued again, as if it had never been taken. A server that does not
respond may hold that up for any time. When nothing else is left, those who wait get an error that
changes nothing.

A `Gate` tells which closures may begin, by the update mode. It asks for steps through ``on_step``,
and `stepped` says that one is done; nothing is over before that.

A queued closure waits for a worker (`Waiting` knows the order) or for the results of other closures
(`Dependents`). When one of those fails, its dependents fail with it; their errors are not
collected, as they would only repeat the first.

One lock guards everything, also the outcomes of remote values. Two conditions share it: ``room``
for callers that wait to put, ``settled`` for those that wait for outcomes. While it is held no user
code runs, only psnb's own callbacks, which put something into a queue or wake a loop. An interrupt
of the main thread comes before or after what a method does, or while it waits.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from psnb._src.coordinator.closures import (
    NOT_TAKEN,
    Chooser,
    Closure,
    ClosureStatus,
    Dependents,
    Execution,
    FailedClosures,
    Pin,
    RemoteValue,
)
from psnb._src.coordinator.queue.gate import Gate, Step
from psnb._src.coordinator.queue.waiting import Waiting
from psnb._src.monitor import EventKind, EventLog, WorkerStatistics
from psnb._src.runtime import pack_error
from psnb._src.server import ENDED
from psnb._src.threads import Condition, Lock, uninterrupted
from psnb._src.watermark import Watermark
from psnb.errors import CoordinatorClosedError, ServerSilentError, WorkerLostError


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A queue at one moment: numbers of closures, and whether an error waits to be raised."""

    queued: int
    in_flight: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    failing: bool
    paused: bool
    closed: bool


def _nobody_works() -> None:
    """Nobody takes closures yet."""


def _nobody_steps(step: Step) -> None:
    """Nobody carries out steps yet."""


class ClosureQueue:
    """Closures that wait or run.

    Parameters
    ----------
    max_size : int
        How many may wait; `put` blocks beyond that.
    events : EventLog, optional
        Records retries, failures and cancellations; written without the lock.
    gate : Gate, optional
        Decides which closures may begin; the queue's own from now on.
    on_end : callable, optional
        Called with the id of each closure that has ended for good, and whether it returned; under
        the lock.
    on_failure : callable, optional
        Called with worker, closure and pickled exception of each failure; without the lock.
    """

    def __init__(
        self,
        max_size: int,
        events: EventLog | None = None,
        gate: Gate | None = None,
        on_failure: Callable[[str, str, bytes], None] = lambda worker, closure, error: None,
        on_end: Callable[[int, bool], None] = lambda closure, succeeded: None,
    ) -> None:
        self._max_size = max_size
        self._gate = gate or Gate()
        self._on_failure, self._on_end = on_failure, on_end
        self._on_work: Callable[[], object] = _nobody_works
        self._on_step: Callable[[Step], object] = _nobody_steps
        self._events = EventLog() if events is None else events
        # Not reported yet:
        self._news: list[tuple[EventKind, str, list[Closure]]] = []
        self._failures: list[tuple[str, str, bytes]] = []
        lock = Lock()  # guards all fields and the outcomes of all remote values
        self._room = Condition(lock)
        self.settled = Condition(lock)
        self._waiting = Waiting()
        self._dependents = Dependents()
        self._running: dict[int, Closure] = {}
        self._open: dict[int, Closure] = {}  # not known yet whether they had their effect
        self._held_up = ""  # by what, if that was not raised yet
        self._errors = FailedClosures()
        self._idle_callbacks: list[Callable[[], None]] = []
        self._commits = itertools.count()
        self._watermark = Watermark()
        self.name = uuid.uuid4().hex  # unique: the writer of its closures' commits
        self._hungry = False  # a connection got fewer closures than it had room for
        self._wake = False  # the connections are to be woken once the lock is free
        self._closed = self._paused = False
        self._completed = self._failed = self._cancelled = self._retried = 0

    def attach(
        self,
        on_work: Callable[[], object] = _nobody_works,
        on_step: Callable[[Step], object] = _nobody_steps,
    ) -> None:
        """Set who takes closures and carries out steps; once, before the first is put.

        Parameters
        ----------
        on_work : callable, optional
            Called without the lock, by any thread, when a connection that got too few closures may
            take more.
        on_step : callable, optional
            Called under the lock with a step that the gate asks for: it must neither block nor
            raise.
        """
        self._on_work, self._on_step = on_work, on_step

    def put(self, closure: Closure) -> None:
        """Append a closure, waiting while the queue is full.

        A closure with an input that failed, or was cancelled, fails at once.

        Raises
        ------
        Exception
            The pending error of earlier closures, once all of them have ended; the closure is not
            queued.
        SerializationError
            If the value of an input was fetched, and cannot be pickled any more.
        CoordinatorClosedError
            If the queue is closed.
        """
        while (fetched := self._put(closure)) is not None:
            place, remote = fetched
            closure.call.inputs[place] = remote.pack_again()

    def take(
        self,
        admit: Callable[[Closure], bool],
        worker: Callable[[], WorkerStatistics] | None = None,
    ) -> list[Closure]:
        """Take closures to run; never blocks.

        If all were admitted, ``on_work`` is called when there are more.

        Parameters
        ----------
        admit : callable
            Called for each in turn, under the lock, until it refuses one.
        worker : callable, optional
            Returns the worker that takes them; without it, no pinned closure is taken.
        """
        while True:
            with self._room:
                if worker is None or not self._waiting.pinned():  # nearly always
                    return self._take(admit, ())
                choosers, lines = self._waiting.choosers(), self._waiting.lines
            who = worker()
            chosen: list[Pin] = [who.name, who.index, *self._ask(choosers, who)]
            with self._room:
                if lines == self._waiting.lines:
                    return self._take(admit, chosen)
            # Meanwhile a closure came with a new choosing function, which was not asked.

    def has_work(self) -> bool:
        """Return whether a closure waits for a worker; if not, ``on_work`` tells when one does."""
        with self._room:
            # A pinned closure may be psnb's own, which no gate holds up.
            open_ = self._gate.open() or self._waiting.pinned()
            if self._waiting and not self._paused and open_:
                return True
            self._hungry = True
            return False

    @uninterrupted
    def pause(self) -> None:
        """Hand out no closures until `resume`; idempotent."""
        with self.settled:
            self._require_open()
            if not self._paused:
                self._paused = True
                text = f"paused: {self._queued()} closures wait"
                self._news.append((EventKind.COORDINATOR_PAUSED, text, []))
        self._tell()

    @uninterrupted
    def resume(self) -> None:
        """Undo `pause`; idempotent."""
        with self.settled:
            self._require_open()
            if self._paused:
                self._paused = False
                text = f"resumed: {self._queued()} closures wait"
                self._news.append((EventKind.COORDINATOR_RESUMED, text, []))
                self._wake = True
        self._tell()

    @uninterrupted
    def cancel_queued(self) -> int:
        """Cancel the closures that wait, and return how many; running ones go on."""
        with self.settled:
            self._require_open()
            before = self._cancelled
            self._cancel_queued("the queue was emptied")
            self._announce()
            self._room.notify_all()
            count = self._cancelled - before
        self._tell()
        return count

    def wait_until_nothing_runs(self, timeout: float | None) -> None:
        """Wait until no closure runs and all have had their effect, whatever is queued.

        Raises
        ------
        TimeoutError
            If that takes longer than ``timeout`` seconds; it goes on.
        ServerSilentError
            If no closure runs, but a server that does not respond must say whether lost ones had
            their effect.
        """

        def ended() -> bool:
            return self._closed or self._at_rest() or (self._stuck() and not self._running)

        with self.settled:
            if not self.settled.wait_for(ended, timeout):
                raise TimeoutError(
                    f"after {timeout} s {self._in_flight()} closures are in flight; they go on"
                )
            if not self._closed and not self._at_rest():
                self._raise_held_up()

    def settle(
        self, outcomes: Iterable[tuple[Closure, bool, bytes, bool]], worker: str = ""
    ) -> None:
        """Record how running or open closures ended.

        Parameters
        ----------
        outcomes : iterable of tuple
            Closure, whether it returned, its pickled value or exception, and whether it has pushed
            gradients. Outcomes of closures that do not run any more (the queue was closed) are
            dropped.
        worker : str
            Where they ran.
        """
        with self.settled:
            for closure, succeeded, outcome, pushed in outcomes:
                if not self._take_back(closure):
                    continue
                if succeeded:
                    self._completed += 1
                    self._end(closure, pushed=pushed, succeeded=True)
                    closure.remote.set_status(ClosureStatus.COMPLETED, outcome)
                    if self._dependents:
                        for ready in self._dependents.complete(closure.remote, outcome):
                            self._wait(ready)
                else:
                    self._fail(closure, outcome, worker)
            self._announce()
        self._tell()

    def stepped(self, error: Exception | None) -> None:
        """Note that the gate's step was done, or why it failed."""
        with self.settled:
            self._gate.stepped()
            self._held_up = ""
            if error is not None and not self._closed:
                remote = RemoteValue(self.settled)
                remote.set_status(ClosureStatus.FAILED, pack_error(error, []))
                self._errors.add(remote)
                self._cancel_queued("what was pushed could not be applied")
            self._announce()
        self._tell()

    def lose(self, closures: Iterable[Closure]) -> list[Closure]:
        """Note that the outcome of running closures is unknown; return those that were running."""
        with self.settled:
            open_ = [each for each in closures if self._running.pop(each.id, None) is not None]
            self._open |= {each.id: each for each in open_}
        return open_

    def hold_up(self, error: Exception) -> None:
        """Note that closures wait for a server that does not respond.

        Those who wait for closures get an error when nothing else is left to wait for. To be called
        again for as long as it lasts.
        """
        with self.settled:
            self._held_up = str(error)
            for closure in self._open.values():
                closure.remote.hold_up(self._held_up)
            self._announce()
        self._tell()

    def put_back(
        self, closures: Sequence[Closure], executing: int, lost: str, worker: str = ""
    ) -> None:
        """Queue lost closures again that have had no effect, before others of their priority.

        Parameters
        ----------
        closures : sequence of Closure
            In the order in which the worker got them.
        executing : int
            How many of the first ones were probably running: they lose one of their retries. One
            without retries left fails with `WorkerLostError`. (The others cannot have killed the
            worker. They may have ended all the same, as results leave it in batches.)
        lost : str
            What happened to the worker, for the message.
        worker : str
            The worker's name.
        """
        with self.settled:
            again = []
            for position, closure in enumerate(closures):
                if not self._take_back(closure):
                    continue
                if position < executing:
                    closure.run.deaths += 1
                    retries = closure.options.retries
                    if closure.run.deaths > retries:
                        error = WorkerLostError(
                            f"closure {closure.function.name} was running when its worker was "
                            f"lost, {closure.run.deaths} times in a row (retries={retries}); "
                            f"the last time: {lost}. If it does not kill its workers, for example "
                            "by their memory limit, schedule it with more retries"
                        )
                        self._fail(closure, pack_error(error, []), worker)
                        continue
                if self._errors:
                    self._cancel(closure, "another closure failed before it could run again")
                    continue
                closure.run.attempt += 1
                again.append(closure)
            for closure in reversed(again):
                self._requeue(closure)
            self._retried += len(again)
            if again:
                text = f"{len(again)} closures run again: {lost}"
                self._news.append((EventKind.CLOSURES_RETRIED, text, again))
            self._announce()
        self._tell()
        self._on_work()

    def give_back(self, closures: Sequence[Closure]) -> None:
        """Queue closures again that their worker has not begun, before others of their priority."""
        with self.settled:
            for closure in reversed(closures):
                if self._running.pop(closure.id, None) is None:
                    continue
                if self._errors:
                    self._cancel(closure, "another closure failed before it was begun")
                else:
                    self._requeue(closure)
            self._announce()
        self._tell()

    def fail_waiting(self, reason: str) -> None:
        """Fail all waiting closures with `WorkerLostError`: there is no worker to run them."""
        with self.settled:
            waiting = self._waiting.take_all()
            if not waiting:
                return
            error = pack_error(WorkerLostError(reason), [])
            # One error for all of them: as many copies would only hide it.
            self._errors.add(waiting[0].remote)
            for closure in waiting:
                self._end_failed(closure, error)
            self._cancel_queued("there was no worker")
            self._announce()
        self._tell()

    def join(self, timeout: float | None = None) -> None:
        """Wait until no closure waits or runs, and all have had their effect.

        Raises
        ------
        Exception
            The pending error, once; nothing runs any more then.
        ServerSilentError
            If all that is left waits for a server that does not respond; it goes on.
        TimeoutError
            If that takes longer than ``timeout`` seconds; everything is as it was.
        CoordinatorClosedError
            If the queue is closed, before or meanwhile.
        """
        with self.settled:
            if not self.settled.wait_for(self._is_over, timeout):
                left = f"{self._queued()} closures are queued and {self._in_flight()} in flight"
                if not self._queued() and not self._in_flight():
                    left = "what closures pushed is not applied yet"
                raise TimeoutError(f"after {timeout} s {left}; they go on")
            self._require_open()
            self._raise_what_there_is()

    def done(self) -> bool:
        """Return whether no closure waits or runs, and all have had their effect; never blocks.

        Raises
        ------
        Exception
            The pending error, once, as soon as nothing runs any more.
        ServerSilentError
            As for `join`, once.
        CoordinatorClosedError
            If the queue is closed.
        """
        with self.settled:
            self._require_open()
            if not self._is_over():
                return False
            self._raise_what_there_is()
            return True

    @uninterrupted
    def close(self) -> None:
        """Cancel all that waits or runs and refuse more; idempotent."""
        with self.settled:
            if not self._closed:
                self._news.append((EventKind.COORDINATOR_CLOSED, "the coordinator was closed", []))
            self._closed = True
            reason = "the coordinator was closed"
            self._cancel_queued(reason)
            for closure in (*self._running.values(), *self._open.values()):
                self._cancel(closure, reason)
            self._running.clear()
            self._open.clear()
            self._announce()
        self._tell()

    def withdraw(self, chooser: Chooser, reason: str) -> None:
        """Cancel what waits for a worker that this very function chooses."""
        with self.settled:
            for closure in self._waiting.take_pinned(chooser):
                self._cancel(closure, reason)
            self._room.notify_all()
            self._announce()

    @property
    def limited(self) -> bool:
        """Whether closures may have to wait though workers are free: then send none ahead."""
        return self._gate.limits

    def failing(self) -> bool:
        """Return whether an error waits to be raised: then running closures should stop early."""
        return bool(self._errors)

    def add_idle_callback(self, callback: Callable[[], None]) -> None:
        """Call back, under the lock, whenever nothing waits or runs any more.

        For psnb only: the callback must neither block nor raise.
        """
        with self.settled:
            self._idle_callbacks.append(callback)

    def remove_idle_callback(self, callback: Callable[[], None]) -> None:
        """Undo `add_idle_callback`."""
        with self.settled:
            self._idle_callbacks.remove(callback)

    def settled_below(self) -> int:
        """Return the commit number below which every closure has ended, in whatever order."""
        with self.settled:
            return self._watermark.low

    def closed_attempts(self) -> tuple[int, dict[int, int]]:
        """Return the commit number below which all have ended, and the attempts of those above.

        These are the attempts that were begun: servers must accept no commit of them any more. To
        be called while nothing runs.
        """
        with self.settled:
            attempts = dict.fromkeys(self._watermark.ended(), ENDED)
            for closure in self._waiting:
                if closure.run is not NOT_TAKEN:
                    attempts[closure.run.commit] = closure.run.attempt - 1
            for closure in self._open.values():
                attempts[closure.run.commit] = closure.run.attempt
            return self._watermark.low, attempts

    def statistics(self) -> QueueStatistics:
        """Return a snapshot."""
        with self.settled:
            return QueueStatistics(
                queued=self._queued(),
                in_flight=self._in_flight(),
                completed=self._completed,
                failed=self._failed,
                cancelled=self._cancelled,
                retried=self._retried,
                failing=bool(self._errors),
                paused=self._paused,
                closed=self._closed,
            )

    def _tell(self) -> None:
        # Called without the lock after news or work was added: settling must stay cheap.
        if self._news or self._failures:
            with self.settled:
                news, self._news = self._news, []
                failures, self._failures = self._failures, []
            for kind, text, closures in news:
                self._events.add(kind, text, closures=closures)
            for failure in failures:
                self._on_failure(*failure)
        if self._wake:
            self._wake = False
            self._on_work()

    def _ask(self, choosers: Sequence[Chooser], worker: WorkerStatistics) -> list[Chooser]:
        # Without the lock: these are users' functions. If one raises, that is its closures' error.
        chosen = []
        for chooser in choosers:
            try:
                if chooser(worker):
                    chosen.append(chooser)
            except Exception as error:  # the users' functions may raise anything
                packed = pack_error(error, [f"raised by worker={chooser!r}, asked for {worker}"])
                with self.settled:
                    for closure in self._waiting.take_pinned(chooser):
                        self._fail(closure, packed)
                    self._room.notify_all()
                    self._announce()
                self._tell()
        return chosen

    @uninterrupted  # to the end: what was put without waking a connection might wait for ever
    def _put(self, closure: Closure) -> tuple[int, RemoteValue] | None:
        # Returns an input whose value must be pickled again first; None if the closure was put.
        with self._room:
            self._wait_for_room()
            for place, remote in closure.call.missing():
                if remote.status is ClosureStatus.COMPLETED:
                    packed = remote.packed()
                    if packed is None:
                        return place, remote
                    closure.call.inputs[place] = packed
            if not closure.call.missing():
                self._wait(closure)
            elif failed := _first(closure, (ClosureStatus.FAILED, ClosureStatus.CANCELLED)):
                self._fail(closure, failed)
                self._announce()
            else:
                self._dependents.add(closure)
        self._tell()
        return None

    # What follows runs under the lock.

    def _take(self, admit: Callable[[Closure], bool], pins: Sequence[Pin]) -> list[Closure]:
        gate = self._gate

        def begin(closure: Closure) -> bool:
            if closure.options.detached:
                return admit(closure)
            if not gate.admits(closure) or not admit(closure):
                return False
            gate.begin(closure)
            return True

        taken = self._waiting.take(begin, pins) if not self._paused else []
        for closure in taken:
            closure.remote.set_status(ClosureStatus.RUNNING)
            self._running[closure.id] = closure
            if closure.run is NOT_TAKEN:
                closure.run = Execution(next(self._commits))
            closure.run.round = gate.round
        # Also if one was refused: others may be waiting for another worker.
        self._hungry = True
        if taken:
            self._room.notify(len(taken))
        return taken

    def _requeue(self, closure: Closure) -> None:
        closure.remote.set_status(ClosureStatus.QUEUED)
        if not closure.options.detached:
            self._gate.put_back(closure)
        self._waiting.add_first(closure)
        self._call_when_hungry()

    def _take_back(self, closure: Closure) -> bool:
        """Remove a closure from the running or open ones; return whether it was among them."""
        closure.remote.hold_up("")
        found = self._running.pop(closure.id, None) or self._open.pop(closure.id, None)
        if not self._open:
            self._held_up = ""
        return found is not None

    def _call_when_hungry(self) -> None:
        if self._hungry:
            self._hungry, self._wake = False, True

    def _wait(self, closure: Closure) -> None:
        self._waiting.add(closure)
        self._call_when_hungry()

    def _queued(self) -> int:
        return len(self._waiting) + len(self._dependents)

    def _wait_for_room(self) -> None:
        while True:
            self._require_open()
            if self._errors:
                self._raise_errors()
            if self._queued() < self._max_size:
                return
            self._room.wait()

    def _in_flight(self) -> int:
        return len(self._running) + len(self._open)

    def _finished(self) -> bool:
        return not self._queued() and self._at_rest()

    def _is_over(self) -> bool:
        # Whether those who wait for all should stop: nothing is left, or the rest is held up.
        return self._closed or self._finished() or (self._stuck() and not self._running)

    def _stuck(self) -> bool:
        # Whether what is left, except what runs, waits for a server that does not respond.
        goes_on = self._waiting and not self._paused and self._gate.open()
        return bool(self._held_up) and not goes_on

    def _at_rest(self) -> bool:
        # Whether no closure runs and all have had their effect; if they have not, start that.
        if self._running or self._open:
            return False
        if self._gate.complete():
            return True
        self._gate.finish()
        self._go_on()
        return self._gate.complete()

    def _go_on(self) -> None:
        # Where closures have ended or were put back, others may begin, or a step is due.
        if (step := self._gate.due()) is not None:
            self._on_step(step)
        if self._gate.limits and self._waiting:
            self._call_when_hungry()

    def _require_open(self) -> None:
        if self._closed:
            raise CoordinatorClosedError(
                "the coordinator is closed: make a new one with psnb.ClusterCoordinator(strategy)"
            )

    def _fail(self, closure: Closure, error: bytes | RemoteValue, worker: str = "") -> None:
        self._end_failed(closure, error)
        if isinstance(error, bytes):  # else it failed because of an input, which was reported
            self._failures.append((worker, str(closure), error))
        self._news.append((EventKind.CLOSURE_FAILED, f"closure {closure} failed", [closure]))
        if not closure.options.detached:
            self._wake = self._wake or not self._errors  # connections ask what runs to stop early
            self._errors.add(closure.remote)
            self._cancel_queued("an earlier closure failed")

    def _end_failed(self, closure: Closure, error: bytes | RemoteValue) -> None:
        self._failed += 1
        self._end(closure)
        closure.remote.set_status(ClosureStatus.FAILED, error)

    def _end(self, closure: Closure, *, pushed: bool = False, succeeded: bool = False) -> None:
        if closure.run is not NOT_TAKEN:
            self._on_end(closure.id, succeeded)
            self._watermark.end(closure.run.commit)
            if not closure.options.detached:
                self._gate.end(closure, pushed=pushed)

    def _cancel_queued(self, reason: str) -> None:
        cancelled = self._waiting.take_all()
        for closure in self._dependents.clear():
            failed = _first(closure, (ClosureStatus.FAILED,))
            if failed is None:
                cancelled.append(closure)
            else:
                self._end_failed(closure, failed)
        if cancelled:
            text = f"{len(cancelled)} queued closures were cancelled: {reason}"
            self._news.append((EventKind.CLOSURES_CANCELLED, text, cancelled))
        for closure in cancelled:
            self._cancel(closure, reason)

    def _cancel(self, closure: Closure, reason: str) -> None:
        self._cancelled += 1
        self._end(closure)
        text = f"closure {closure.function.name} was cancelled: {reason}; schedule it again"
        closure.remote.set_status(ClosureStatus.CANCELLED, text)

    def _announce(self) -> None:
        if not self._closed:
            self._go_on()
        self.settled.notify_all()
        if self._errors or self._closed:
            self._room.notify_all()
        if self._idle_callbacks and self._is_over():
            for callback in self._idle_callbacks:
                callback()

    def _raise_errors(self) -> None:
        # A caller of put comes here while closures still run. Another thread may raise the errors
        # meanwhile, and go on.
        self.settled.wait_for(
            lambda: (
                self._closed
                or not self._errors
                or not self._in_flight()
                or (self._stuck() and not self._running)
            )
        )
        if self._errors:
            self._errors.throw()

    def _raise_what_there_is(self) -> None:
        if self._errors:
            self._raise_errors()
        if not self._finished():
            self._raise_held_up()

    def _raise_held_up(self) -> None:
        # Once; if it is held up still, those who wait again get the error again.
        text, self._held_up = self._held_up, ""
        raise ServerSilentError(
            f"{text}. {len(self._open)} closures wait for what it says; they go on when it does"
        )


def _first(closure: Closure, statuses: tuple[ClosureStatus, ...]) -> RemoteValue | None:
    """Return the first input of a closure that has ended in one of these ways."""
    missing = closure.call.missing()
    return next((remote for _, remote in missing if remote.status in statuses), None)
