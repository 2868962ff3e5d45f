"""ClosureQueue: the coordinated queue. Pure, without Dask; bounded and thread-safe.

After TensorFlow's ``_CoordinatedClosureQueue``. Callers `put` and `join`; connections `take`,
`settle` and `put_back`. The outcome of closures is in `ScheduledClosures`, what callers wait for
and what is raised to them in `Waiters`; the queue adds the lock, and publishes what happened.

One lock guards everything, also the outcomes of remote values. Two conditions share it: ``room``
for callers that wait to put, ``settled`` for those that wait for outcomes. While it is held no user
code runs, only psnb's own callbacks, which put something into a queue or wake a loop. An interrupt
of the main thread comes before or after what a method does, or while it waits.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psnb._src.coordinator.closures import Closure, Pin, ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.in_flight import Gate, Step
from psnb._src.coordinator.remote_value import ClosureStatus, RemoteValue, Signal
from psnb._src.coordinator.scheduled import QueueStatistics, ScheduledClosures, nobody_steps
from psnb._src.monitor.events import EventLog
from psnb._src.monitor.history import WorkerStatistics
from psnb._src.protocol.packing import PerWorkerReference, pack_error
from psnb._src.utils.text import counted, timed_out
from psnb._src.utils.threads import Condition, Lock, uninterrupted
from psnb._src.worker.context import worker_index
from psnb.errors import CoordinatorClosedError, ServerUnresponsiveError

# Callers: the threads that wait for a queue's closures, and what is raised to them.
#
# It has no lock of its own: all is called under the queue's lock, which the two conditions share
# and which a thread that waits gives up meanwhile.
#
# After the first failure the running closures are waited for; then the next caller that puts, joins
# or asks whether all is done gets the first error once, with the other errors so far attached
# (`FailedClosures`). After that the queue is as new. Who puts a closure after `RemoteValue.fetch`
# has raised all errors gets none: in a notebook, a cell that is right would fail for an earlier
# one. When all that is left waits for a server that does not respond, waiting callers get an error
# that changes nothing.


class Waiters:
    """Those who wait for room, for outcomes, or for the end of all.

    Parameters
    ----------
    closures : ScheduledClosures
        What they wait for.
    room : Condition
        For callers that wait to put a closure.
    settled : Condition
        For callers that wait for outcomes.
    ended : callable
        Returns why what it schedules for cannot be used any more, and what to do; None if it can.

    Attributes
    ----------
    idle_callbacks : list of callable
        Called whenever nothing waits or runs any more.
    """

    def __init__(
        self,
        closures: ScheduledClosures,
        room: Condition,
        settled: Condition,
        ended: Callable[[], CoordinatorClosedError | None],
    ) -> None:
        self._closures, self._room, self._settled = closures, room, settled
        self._ended = ended
        self.idle_callbacks: list[Callable[[], None]] = []

    def notify_all(self) -> None:
        """Wake callers that may have got what they wait for; after closures have ended or moved."""
        closures = self._closures
        if not closures.closed:
            closures.go_on()
        self._settled.notify_all()
        if closures.errors or closures.closed:
            self._room.notify_all()
        if self.idle_callbacks and self._is_over():
            for callback in self.idle_callbacks:
                callback()

    def require_open(self) -> None:
        """Raise CoordinatorClosedError if the queue is closed."""
        if self._closures.closed:
            ended = self._ended()
            if ended is None:
                raise CoordinatorClosedError(
                    "the coordinator is closed: make a new one with "
                    "psnb.ClusterCoordinator(strategy)"
                )
            if type(ended) is CoordinatorClosedError:
                raise CoordinatorClosedError(f"{ended}, and a coordinator of it")
            raise ended

    def wait_for_room(self, max_size: int) -> None:
        """Wait until fewer closures than ``max_size`` are queued; raise a pending error."""
        while True:
            self.require_open()
            if self._closures.errors:
                self._wait_for_running()
                if self._closures.errors.fetched():
                    self._closures.clear_errors()
                else:
                    self._closures.errors.throw()
                continue
            if self._closures.queued() < max_size:
                return
            self._room.wait()

    def wait_for_rest(self, timeout: float | None) -> None:
        """Wait until nothing runs; see `ClosureQueue.wait_until_nothing_runs`."""
        closures = self._closures

        def ended() -> bool:
            return closures.closed or closures.at_rest() or self._stuck(closures.begins())

        if not self._settled.wait_for(ended, timeout):
            left = counted(len(closures.in_flight), "closure")
            raise timed_out(f"after {timeout} s: {left} in flight; all goes on")
        if not closures.closed and not closures.at_rest():
            self._raise_blocked()

    def is_over_within(self, seconds: float) -> bool:
        """Wait until all is over, for so long at most, and return whether it is; raises nothing."""
        return self._settled.wait_for(self._is_over, seconds)

    def end_join(self, timeout: float | None) -> None:
        """Raise what there is, or that it is not over after ``timeout`` seconds."""
        if not self._is_over():
            queued, in_flight = self._closures.queued(), len(self._closures.in_flight)
            left = f"{counted(queued, 'closure')} queued and {in_flight} in flight"
            if not queued and not in_flight:
                left = "what closures pushed is not applied yet"
            raise timed_out(f"after {timeout} s: {left}; all goes on")
        self.require_open()
        self._raise_what_there_is()

    def done(self) -> bool:
        """Return whether all is over, and raise what there is; see `ClosureQueue.done`."""
        self.require_open()
        if not self._is_over():
            return False
        self._raise_what_there_is()
        return True

    def _is_over(self) -> bool:
        # Whether callers that wait for all should stop: nothing is left, or the rest is blocked.
        # Who holds dispatch does so for a moment: then it goes on.
        closures = self._closures
        return closures.closed or self._finished() or self._stuck(not closures.paused)

    def _finished(self) -> bool:
        return not self._closures.queued() and self._closures.at_rest()

    def _stuck(self, begins: bool) -> bool:
        # Whether nothing runs, and what is left waits for a server that does not respond.
        closures = self._closures
        goes_on = closures.waiting and begins and closures.gate.open()
        in_flight = closures.in_flight
        return bool(in_flight.blocked_by) and not goes_on and not in_flight.running()

    def _wait_for_running(self) -> None:
        # A caller of put comes here while closures still run. Another thread may raise the errors
        # meanwhile, and go on.
        closures = self._closures
        self._settled.wait_for(
            lambda: (
                closures.closed
                or not closures.errors
                or not closures.in_flight
                or self._stuck(not closures.paused)
            )
        )

    def _raise_what_there_is(self) -> None:
        if self._closures.errors:
            self._wait_for_running()
        if self._closures.errors:
            self._closures.errors.throw()
        if not self._finished():
            self._raise_blocked()

    def _raise_blocked(self) -> None:
        # Once; if it is blocked still, callers that wait again get the error again.
        in_flight = self._closures.in_flight
        text, in_flight.blocked_by = in_flight.blocked_by, ""
        raise ServerUnresponsiveError(
            f"{text}. {counted(in_flight.open(), 'closure')} waiting for its answer, to go on then"
        )


_LOOK_AGAIN, _LOOK_AGAIN_ASYNC = 0.1, 1.0
"""Seconds between two calls of what looks after something else while a thread, and a coroutine,
waits for all."""


def _nobody_works() -> None:
    """Do nothing: no connection takes closures yet."""


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
        Called with each closure that has ended for good, and whether it returned; under
        the lock.
    on_states : callable, optional
        Called with the packed metrics of each closure that has returned; under the lock.
    on_failure : callable, optional
        Called with worker, closure and pickled exception of each failure; without the lock.
    ended : callable, optional
        Returns why it cannot be used any more, nor a new one be made, and what to do; else None.
    """

    def __init__(
        self,
        max_size: int,
        events: EventLog | None = None,
        gate: Gate | None = None,
        on_failure: Callable[[str, Closure, bytes], None] = lambda worker, closure, error: None,
        on_end: Callable[[Closure, bool], None] = lambda closure, succeeded: None,
        on_states: Callable[[bytes], None] = lambda packed: None,
        ended: Callable[[], CoordinatorClosedError | None] = lambda: None,
    ) -> None:
        self._max_size = max_size
        self._on_failure = on_failure
        self._on_work: Callable[[], object] = _nobody_works
        self._events = EventLog() if events is None else events
        lock = Lock()  # guards all fields and the outcomes of all remote values
        self._room = Condition(lock)
        self.settled = Condition(lock)
        # Held while events and failures are written down, in their order: a reader waits
        # for what another thread is writing. Taken before the other lock, in sections only. It is
        # re-entrant: the garbage collector may run in the middle, and close the queue.
        self._publishing = threading.RLock()
        self._closures = ScheduledClosures(gate or Gate(), on_end, on_states)
        self._callers = Waiters(self._closures, self._room, self.settled, ended)
        self.name = uuid.uuid4().hex  # unique: the writer of its closures' commits

    def attach(
        self,
        on_work: Callable[[], object] = _nobody_works,
        on_step: Callable[[Step], object] = nobody_steps,
    ) -> None:
        """Set what takes closures and carries out steps; once, before the first is put.

        Parameters
        ----------
        on_work : callable, optional
            Called without the lock, by any thread, when a connection that got too few closures may
            take more.
        on_step : callable, optional
            Called under the lock with a step that the gate asks for: it must neither block nor
            raise.
        """
        self._on_work, self._closures.on_step = on_work, on_step

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
                waiting = self._closures.waiting
                if worker is None or not waiting.pinned():  # nearly always
                    return self._take(admit, ())
                choosers, queues = waiting.choosers(), waiting.queues_begun
            who = worker()
            chosen: list[Pin] = [who.name, who.index, *self._ask(choosers, who)]
            with self._room:
                if queues == waiting.queues_begun:
                    return self._take(admit, chosen)
            # Meanwhile a closure came with a new choosing function, which was not asked.

    def has_work(self) -> bool:
        """Return whether a closure waits for a worker; if not, ``on_work`` will be called."""
        with self._room:
            return self._closures.has_work()

    def awaited(self) -> list[object]:
        """Return the names and indices of the workers that closures wait for."""
        with self._room:
            return self._closures.waiting.awaited()

    def pause(self) -> None:
        """Hand out no closures until `resume`; idempotent."""
        with self._changing():
            self._callers.require_open()
            self._closures.pause()

    def resume(self) -> None:
        """Undo `pause`; idempotent."""
        with self._changing():
            self._callers.require_open()
            self._closures.resume()

    @contextmanager
    def barrier(self) -> Iterator[None]:
        """Hand out no closures while the block runs, but for the rest of a round that has begun.

        This is not `pause`: what a `pause` or `resume` sets meanwhile holds after the block.
        Barriers may nest and overlap. To be used in a section (`uninterrupted`): one that an
        interrupt leaves behind would never end.
        """
        with self.settled:
            self._closures.hold()
        try:
            yield
        finally:
            with self._changing():
                self._closures.let_go()

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Keep a round open while the block puts its closures, one after the other.

        To be used in a section, like `barrier`.
        """
        with self.settled:
            self._closures.filling += 1
        try:
            yield
        finally:
            with self._changing():
                self._closures.filling -= 1

    def cancel_queued(self) -> int:
        """Cancel the closures that wait, and return how many; running ones go on."""
        with self._changing():
            self._callers.require_open()
            return len(self._closures.cancel_queued("the queue was emptied"))

    def cancel(self, remote: RemoteValue, in_flight: bool) -> Closure | None:
        """Cancel one closure; see `ScheduledClosures.cancel`."""
        with self._changing():
            return self._closures.cancel(remote, in_flight)

    def wait_until_nothing_runs(self, timeout: float | None) -> None:
        """Wait until no closure runs and all have had their effect, whatever is queued.

        Raises
        ------
        TimeoutError
            If that takes longer than ``timeout`` seconds; it goes on.
        ServerUnresponsiveError
            If no closure runs, but a server that does not respond must say whether lost ones had
            their effect.
        """
        with self.settled:
            self._callers.wait_for_rest(timeout)

    def settle(
        self,
        outcomes: Iterable[tuple[Closure, bool, bytes, bool]],
        worker: str = "",
        *,
        certain: bool = True,
    ) -> None:
        """Record how running or open closures ended.

        Parameters
        ----------
        outcomes : iterable of tuple
            Closure, whether it returned, its pickled value (after the metrics that it reported) or
            exception, and whether it has pushed gradients. Outcomes of closures that do not run any
            more (the queue was closed) are dropped.
        worker : str
            Where they ran.
        certain : bool
            Whether those that have failed have written nothing. If it is not known, they fail also
            if they were cancelled: then they must not count as cancelled.
        """
        with self._changing():
            for closure, succeeded, outcome, pushed in outcomes:
                if not self._closures.in_flight.take_back(closure):
                    continue
                if succeeded:
                    self._closures.complete(closure, outcome, pushed)
                else:
                    self._closures.fail(closure, outcome, worker, certain)

    def stepped(self, error: Exception | None) -> None:
        """Note that the gate's step was done, or why it failed."""
        failed = None
        if error is not None:
            failed = RemoteValue(self.settled)
            failed.set_status(ClosureStatus.FAILED, pack_error(error))
        with self._changing():
            self._closures.stepped(failed)

    def lose(self, closures: Iterable[Closure]) -> list[Closure]:
        """Note that the outcome of running closures is unknown; return those that were running."""
        with self.settled:
            return self._closures.in_flight.lose(closures)

    def block(self, error: Exception) -> None:
        """Note that closures wait for a server that does not respond.

        Those who wait for closures get an error when nothing else is left to wait for. To be called
        again for as long as it lasts.
        """
        with self._changing():
            self._closures.in_flight.block(str(error))

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
        with self._changing():
            self._closures.put_back(closures, executing, lost, worker)
        self._on_work()

    def give_back(self, closures: Sequence[Closure]) -> None:
        """Queue closures again that their worker has not begun, before others of their priority."""
        with self._changing():
            self._closures.give_back(closures)

    def fail_waiting(self, reason: str) -> None:
        """Fail all waiting closures with `WorkerLostError`: there is no worker to run them."""
        with self._changing():
            if self._closures.waiting:
                self._closures.fail_waiting(reason)

    def join(self, timeout: float | None = None, look: Callable[[], object] = bool) -> None:
        """Wait until no closure waits or runs, and all have had their effect.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.
        look : callable, optional
            Called at once and ten times a second meanwhile, without the lock; quick.

        Raises
        ------
        Exception
            The pending error, once; nothing runs any more then.
        ServerUnresponsiveError
            If all that is left waits for a server that does not respond; it goes on.
        TimeoutError
            If that takes longer than ``timeout`` seconds; everything is as it was.
        CoordinatorClosedError
            If the queue is closed, before or meanwhile.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            look()
            with self.settled:
                left = end - time.monotonic()
                if self._callers.is_over_within(min(left, _LOOK_AGAIN)) or left <= _LOOK_AGAIN:
                    self._callers.end_join(timeout)
                    return

    async def join_async(
        self, timeout: float | None = None, look: Callable[[], object] = bool
    ) -> None:
        """Do what `join` does, on any event loop; may be cancelled, and needs no thread.

        ``look`` is called once a second.
        """
        signal, limit = Signal(), asyncio.timeout(timeout)
        self.add_idle_callback(signal.set)
        try:
            async with limit:
                look()
                while not self.done():
                    await signal.wait(_LOOK_AGAIN_ASYNC)
                    look()
        except TimeoutError:
            if not limit.expired():
                raise  # a closure's own
            self.join(0)  # raises, saying what goes on; or returns, if all has just ended
        finally:
            self.remove_idle_callback(signal.set)

    def done(self) -> bool:
        """Return whether no closure waits or runs, and all have had their effect; never blocks.

        Raises
        ------
        Exception
            The pending error, once, as soon as nothing runs any more.
        ServerUnresponsiveError
            As for `join`, once.
        CoordinatorClosedError
            If the queue is closed.
        """
        with self.settled:
            return self._callers.done()

    def close(self) -> None:
        """Cancel all that waits or runs and refuse more; idempotent."""
        with self._changing():
            self._closures.close()

    def withdraw(self, chooser: WorkerPredicate, reason: str) -> None:
        """Cancel what waits for a worker that this very function chooses."""
        with self._changing():
            self._closures.withdraw(chooser, reason)

    @property
    def limited(self) -> bool:
        """Whether closures may have to wait though workers are free: then send none ahead."""
        return self._closures.gate.limits

    def check_open(self) -> None:
        """Raise CoordinatorClosedError if it is closed."""
        with self.settled:
            self._callers.require_open()

    @property
    def completed(self) -> int:
        """How many closures have returned; takes no lock."""
        return self._closures.completed

    def failing(self) -> bool:
        """Return whether an error waits to be raised: then running closures should stop early."""
        return bool(self._closures.errors)

    def add_idle_callback(self, callback: Callable[[], None]) -> None:
        """Call back, under the lock, whenever nothing waits or runs any more.

        For psnb only: the callback must neither block nor raise.
        """
        with self.settled:
            self._callers.idle_callbacks.append(callback)

    def remove_idle_callback(self, callback: Callable[[], None]) -> None:
        """Undo `add_idle_callback`."""
        with self.settled:
            self._callers.idle_callbacks.remove(callback)

    def settled_below(self) -> int:
        """Return the commit number below which every closure has ended, in whatever order."""
        with self.settled:
            return self._closures.in_flight.settled_below()

    def closed_attempts(self) -> tuple[int, dict[int, int]]:
        """Return the commit number below which all have ended, and the attempts of those above.

        These are the attempts that were begun: servers must accept no commit of them any more. To
        be called while nothing runs.
        """
        with self.settled:
            in_flight, waiting = self._closures.in_flight, self._closures.waiting
            return in_flight.settled_below(), in_flight.closed_attempts(waiting)

    def statistics(self) -> QueueStatistics:
        """Return a snapshot."""
        with self.settled:
            return self._closures.statistics()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change closures under the lock; then wake waiting callers, and publish what happened.

        It is a section: an interrupt comes before all of that or after it. `_put` and `_take` do
        less, as they are called for each closure.
        """
        with uninterrupted:
            with self.settled:
                queued = self._closures.queued()
                yield
                self._room.notify(queued - self._closures.queued())
                self._callers.notify_all()
            self._publish()

    def _publish(self) -> None:
        # Called without the lock after news or work was added: settling must stay cheap.
        if self._closures.news:
            self.publish_events()
        if self._closures.wake:
            self._closures.wake = False
            self._on_work()

    def publish_events(self) -> None:
        """Write down what has happened until now: all that `join` and `fetch` may have raised."""
        with uninterrupted, self._publishing:
            with self.settled:
                news = self._closures.news.take()
            news.publish(self._events, self._on_failure)

    def _ask(
        self, choosers: Sequence[WorkerPredicate], worker: WorkerStatistics
    ) -> list[WorkerPredicate]:
        # Without the lock: these are users' functions. If one raises, that is its closures' error.
        chosen = []
        for chooser in choosers:
            try:
                if chooser(worker):
                    chosen.append(chooser)
            except Exception as error:  # the users' functions may raise anything
                packed = pack_error(error, f"raised by worker={chooser!r}, asked for {worker}")
                with self._changing():
                    self._closures.fail_pinned(chooser, packed)
        return chosen

    @uninterrupted  # to the end: what was put without waking a connection might wait for ever
    def _put(self, closure: Closure) -> tuple[int, RemoteValue] | None:
        # Returns an input whose value must be pickled again first; None if the closure was put.
        with self._room:
            self._callers.wait_for_room(self._max_size)
            for place, remote in closure.call.missing():
                if remote.status is ClosureStatus.COMPLETED:
                    packed = remote.packed()
                    if packed is None:
                        return place, remote
                    closure.call.inputs[place] = packed
            if not self._closures.add(closure):
                self._callers.notify_all()
        self._publish()
        return None

    def _take(self, admit: Callable[[Closure], bool], pins: Sequence[Pin]) -> list[Closure]:
        # Under the lock.
        taken = self._closures.take(admit, pins)
        if taken:
            self._room.notify(len(taken))
        return taken


# BroadcastCalls: calls to given workers, before all queued closures, each once at most.

_PATIENCE = 1.0
"""Seconds between two looks at whether the workers that are waited for are still there."""

_FIRST = 1 << 62

Call = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""A worker's name, a function and its arguments."""


class BroadcastCalls:
    """Makes calls on given workers and waits for them. Thread-safe.

    A call that fails cancels nothing, and `join` does not raise its error. Calls that are no longer
    waited for are cancelled.

    Parameters
    ----------
    schedule : callable
        Schedules a function with arguments and options.
    worker_names : callable
        Returns which workers there are at the moment.
    queue : ClosureQueue
        Where they wait.
    """

    def __init__(
        self,
        schedule: Callable[[Callable[..., Any], tuple[Any, ...], ScheduleOptions], RemoteValue],
        worker_names: Callable[[], set[str]],
        queue: ClosureQueue,
    ) -> None:
        self._schedule, self.worker_names, self._queue = schedule, worker_names, queue

    def withdraw(self, chooser: WorkerPredicate, reason: str) -> None:
        """Cancel the closures that wait for a worker chosen by this function object."""
        self._queue.withdraw(chooser, reason)

    def run(
        self, calls: Sequence[Call], timeout: float | None = None, *, all_or_none: bool = False
    ) -> list[RemoteValue | None]:
        """Make calls and wait until all have ended.

        Parameters
        ----------
        calls : sequence of Call
            What to call.
        timeout : float, optional
            Seconds to wait at most.
        all_or_none : bool
            When one has failed, cancel those that have not begun.

        Returns
        -------
        list of RemoteValue or None
            In the order of the calls; None for those whose worker has left before they ended.

        Raises
        ------
        TimeoutError
            If it takes longer than ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        choosers = {worker: _chooser(worker) for worker, _, _ in calls}
        gone: set[str] = set()
        remotes: list[RemoteValue] = []
        try:
            for worker, function, args in calls:
                # No retries: a new worker has got new values.
                options = ScheduleOptions(0, _FIRST, choosers[worker], detached=True)
                remotes.append(self._schedule(function, args, options))
            while not self._all_ended(remotes, end):
                if all_or_none and any(each.status is ClosureStatus.FAILED for each in remotes):
                    for chooser in choosers.values():
                        self._queue.withdraw(chooser, "another call has failed")
                pairs = zip(calls, remotes, strict=True)
                missing = {call[0] for call, remote in pairs if not remote.done()}
                if end is not None and time.monotonic() >= end:
                    names = ", ".join(sorted(missing))
                    raise timed_out(f"not within {timeout} s: the values of workers {names}")
                for worker in missing - gone - self.worker_names():
                    gone.add(worker)
                    self._queue.withdraw(choosers[worker], f"worker {worker!r} has left")
        finally:
            for chooser in choosers.values():
                self._queue.withdraw(chooser, "it is not waited for any more")
        return [
            None if call[0] in gone and remote.status is not ClosureStatus.COMPLETED else remote
            for call, remote in zip(calls, remotes, strict=True)
        ]

    def _all_ended(self, remotes: list[RemoteValue], end: float | None) -> bool:
        left = _PATIENCE if end is None else min(_PATIENCE, max(0.0, end - time.monotonic()))
        settled = self._queue.settled
        with settled:
            return settled.wait_for(lambda: all(remote.done() for remote in remotes), left)


def _chooser(name: str) -> WorkerPredicate:
    def has_name(worker: WorkerStatistics) -> bool:
        return worker.name == name

    return has_name


# Reading per-worker values back: one closure pinned to each worker.


def fetch_per_worker(
    value: PerWorkerReference,
    question: Callable[[Any], Any],
    timeout: float | None,
    pinned: BroadcastCalls,
) -> list[Any]:
    """Return what a function says of the value of each worker, in the order of the workers' index.

    Parameters
    ----------
    value : PerWorkerReference
        What to read.
    question : callable
        What is called with it on each worker; errors name it.
    timeout : float or None
        Seconds to wait at most.
    pinned : BroadcastCalls
        Calls the workers.
    """
    calls = [(name, read_value, (value, question)) for name in sorted(pinned.worker_names())]
    pairs = [remote.fetch() for remote in pinned.run(calls, timeout) if remote is not None]
    return [each for _, each in sorted(pairs, key=lambda pair: pair[0])]


def read_value(value: Any, question: Callable[[Any], Any]) -> tuple[int, Any]:
    """Return the index of a worker and what a function says of its value."""
    return worker_index(), question(value)
