"""ScheduledClosures: all closures of a queue and their outcomes. Pure, without locks.

It is used under the queue's lock. A queued closure waits for a worker (`Waiting` knows the order)
or for the results of other closures (`Dependents`). When one of those fails, its dependents fail
with it; their errors are not collected, as they would only repeat the first. One that a worker has
taken is in flight (`InFlight`) until it is known how it has ended; or it is queued again, as if it
had never been taken. After the first failure every queued closure is cancelled.

A `Gate` decides by the update mode which closures may begin. It asks for steps through ``on_step``,
and `stepped` says that one is done; nothing is over before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psnb._src.coordinator.closures import NOT_TAKEN, Closure, Dependents, Pin, WorkerPredicate
from psnb._src.coordinator.in_flight import Gate, InFlight, Step, Waiting
from psnb._src.coordinator.remote_value import ClosureStatus, FailedClosures, RemoteValue
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.protocol.packing import pack_error
from psnb._src.utils.text import counted
from psnb._src.worker.context import split_outcome
from psnb.errors import WorkerLostError

# PendingEvents: what happened to closures and is not reported yet. Pure, without locks.
#
# The queue adds to it under its lock, takes it all, and reports it when the lock is free again.


class PendingEvents:
    """Events and failures that are not reported yet; true if there are any."""

    def __init__(self) -> None:
        self._events: list[tuple[EventKind, str, Sequence[Closure]]] = []
        self._failures: list[tuple[str, Closure, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._events or self._failures)

    def add(self, kind: EventKind, text: str, closures: Sequence[Closure] = ()) -> None:
        """Add an event, and the closures that it is about."""
        self._events.append((kind, text, closures))

    def add_failure(self, worker: str, closure: Closure, error: bytes) -> None:
        """Add what a closure raised, pickled, and where it ran."""
        self._failures.append((worker, closure, error))

    def take(self) -> PendingEvents:
        """Return all that was added, and forget it."""
        taken = PendingEvents()
        taken._events, self._events = self._events, taken._events
        taken._failures, self._failures = self._failures, taken._failures
        return taken

    def publish(self, events: EventLog, on_failure: Callable[[str, Closure, bytes], None]) -> None:
        """Write the events into a log and call back with each failure."""
        for kind, text, closures in self._events:
            events.add(kind, text, closures=closures)
        for failure in self._failures:
            on_failure(*failure)


# QueueStatistics: what statistics say of the queue. Pure.


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


def nobody_steps(step: Step) -> None:
    """Do nothing: nothing carries out steps yet."""


class ScheduledClosures:
    """Closures that wait or run, and how many have ended in which way.

    Parameters
    ----------
    gate : Gate
        Decides which closures may begin.
    on_end : callable
        Called with each closure that has ended for good, and whether it returned.
    on_states : callable
        Called with the packed metrics of each closure that has returned, if it reported any.

    Attributes
    ----------
    gate : Gate
        As given.
    on_step : callable
        Called with a step that the gate asks for.
    waiting : Waiting
        Those that wait for a worker.
    in_flight : InFlight
        Those that workers have.
    errors : FailedClosures
        Those whose errors wait to be raised.
    news : PendingEvents
        What happened and is not reported yet.
    paused, closed : bool
        Whether none are handed out at present, or none any more.
    holds : int
        How many hold dispatch, each for a moment: then closures begin only to fill a round that has
        begun. Apart from ``paused``, which is the user's.
    filling : int
        How many put the closures of a round at this moment: what they lack comes at once.
    wake : bool
        Whether the connections are to be woken once the lock is free.
    """

    def __init__(
        self,
        gate: Gate,
        on_end: Callable[[Closure, bool], None],
        on_states: Callable[[bytes], None],
    ) -> None:
        self.gate = gate
        self.on_step: Callable[[Step], object] = nobody_steps
        self.waiting, self.in_flight = Waiting(), InFlight()
        self.errors, self.news = FailedClosures(), PendingEvents()
        self.paused = self.closed = self.wake = False
        self.holds = self.filling = 0
        self._on_end, self._on_states = on_end, on_states
        self._dependents = Dependents()
        self._hungry = False  # a connection got fewer closures than it had room for
        self._owing: list[RemoteValue] = []  # their rounds are not applied
        self._completed = self._failed = self._cancelled = self._retried = 0

    def queued(self) -> int:
        """Return how many closures wait for a worker or for the results of others."""
        return len(self.waiting) + len(self._dependents)

    def add(self, closure: Closure) -> bool:
        """Queue a closure and return True; if an input has failed or was cancelled, it fails."""
        if not closure.call.missing():
            self._wait(closure)
        elif failed := _first(closure, (ClosureStatus.FAILED, ClosureStatus.CANCELLED)):
            self.fail(closure, failed)
            return False
        else:
            self._dependents.add(closure)
        return True

    def pause(self) -> None:
        """Hand out no closures until `resume`; idempotent."""
        if not self.paused:
            self.paused = True
            text = f"paused: {counted(self.queued(), 'closure')} waiting"
            self.news.add(EventKind.COORDINATOR_PAUSED, text)

    def resume(self) -> None:
        """Undo `pause`; idempotent."""
        if self.paused:
            self.paused = False
            text = f"resumed: {counted(self.queued(), 'closure')} waiting"
            self.news.add(EventKind.COORDINATOR_RESUMED, text)
            self.wake = True

    def hold(self) -> None:
        """Begin nothing until as many calls of `let_go`, but for the rest of a round."""
        self.holds += 1

    def let_go(self) -> None:
        """Undo `hold`."""
        self.holds -= 1
        self.wake = self.wake or not self.holds

    def begins(self) -> bool:
        """Return whether closures are handed out, if there are any and the gate admits them."""
        return not self.paused and (not self.holds or self.gate.midway())

    def has_work(self) -> bool:
        """Return whether a closure waits for a worker; if not, ``wake`` is set when one does."""
        # A pinned closure may be psnb's own, which no gate holds up.
        open_ = self.gate.open() or self.waiting.pinned()
        if self.waiting and self.begins() and open_:
            return True
        self._hungry = True
        return False

    def take(self, admit: Callable[[Closure], bool], pins: Sequence[Pin]) -> list[Closure]:
        """Take closures to run; see `Waiting.take`."""
        gate = self.gate

        def begin(closure: Closure) -> bool:
            if closure.options.detached:
                return admit(closure)
            if not gate.admits(closure) or not admit(closure):
                return False
            gate.begin(closure)
            return True

        taken = self.waiting.take(begin, pins) if self.begins() else []
        for closure in taken:
            closure.remote.set_status(ClosureStatus.RUNNING)
            self.in_flight.begin(closure)
            closure.execution.round = gate.round
        # Also if one was refused: others may be waiting for another worker.
        self._hungry = True
        return taken

    def complete(self, closure: Closure, outcome: bytes, pushed: bool) -> None:
        """Note that a closure has returned and had its effect, and whether it pushed gradients."""
        self._completed += 1
        outcome, states = split_outcome(outcome)
        if states:
            self._on_states(states)
        self._end(closure, pushed=pushed, succeeded=True)
        if pushed and self.gate.round is not None and not closure.options.detached:
            closure.remote.owe_effect(self._begin_effects)
            self._owing.append(closure.remote)
        closure.remote.set_status(ClosureStatus.COMPLETED, outcome)
        if self._dependents:
            for ready in self._dependents.complete(closure.remote, outcome):
                self._wait(ready)

    def fail(
        self,
        closure: Closure,
        error: bytes | RemoteValue,
        worker: str = "",
        certain: bool = True,
    ) -> None:
        """Let a closure fail: with a pickled error, or because of an input.

        One that was cancelled has ended so, if it is certain that it has written nothing.
        """
        if closure.execution.revoked and certain:
            self._cancel_with_dependents(closure)
            return
        self._end_failed(closure, error)
        if isinstance(error, bytes):  # else it failed because of an input, which was reported
            self.news.add_failure(worker, closure, error)
        self.news.add(EventKind.CLOSURE_FAILED, f"closure {closure} failed", [closure])
        if not closure.options.detached:
            self.wake = self.wake or not self.errors  # connections ask what runs to stop early
            self.errors.add(closure.remote)
            self.errors.cancelled += len(self.cancel_queued("an earlier closure failed"))

    def put_back(self, closures: Sequence[Closure], executing: int, lost: str, worker: str) -> None:
        """Queue lost closures again; see `ClosureQueue.put_back`."""
        again = []
        for position, closure in enumerate(closures):
            if not self.in_flight.take_back(closure):
                continue
            if closure.execution.revoked:
                self._cancel_with_dependents(closure)
                continue
            if position < executing:
                closure.execution.deaths += 1
                retries = closure.options.retries
                if closure.execution.deaths > retries:
                    error = WorkerLostError(
                        f"closure {closure.function.name} was running when its worker was "
                        f"lost, {closure.execution.deaths} times in a row (retries={retries}); "
                        f"the last time: {lost}. If it does not kill its workers, for example "
                        "by their memory limit, schedule it with more retries"
                    )
                    self.fail(closure, pack_error(error), worker)
                    continue
            if self.errors:
                self.errors.cancelled += 1
                self._cancel(closure, "another closure failed before it could run again")
                continue
            closure.execution.attempt += 1
            again.append(closure)
        for closure in reversed(again):
            self._requeue(closure)
        self._retried += len(again)
        if again:
            text = f"{counted(len(again), 'closure')} to run again: {lost}"
            self.news.add(EventKind.CLOSURES_RETRIED, text, again)

    def give_back(self, closures: Sequence[Closure]) -> None:
        """Queue closures again that their worker has not begun, before others of their priority."""
        for closure in reversed(closures):
            if not self.in_flight.give_back(closure):
                continue
            if self.errors:
                self.errors.cancelled += 1
                self._cancel(closure, "another closure failed before it was begun")
            else:
                self._requeue(closure)

    def fail_waiting(self, reason: str) -> None:
        """Fail all closures that wait for a worker, one at least; cancel the others."""
        waiting = self.waiting.take_all()
        error = pack_error(WorkerLostError(reason))
        # One error for all of them: as many copies would only hide it.
        self.errors.add(waiting[0].remote)
        for closure in waiting:
            self._end_failed(closure, error)
        self.cancel_queued("there was no worker")

    def fail_pinned(self, chooser: WorkerPredicate, error: bytes) -> None:
        """Fail what waits for a worker that this very function chooses."""
        for closure in self.waiting.take_pinned(chooser):
            self.fail(closure, error)

    def withdraw(self, chooser: WorkerPredicate, reason: str) -> None:
        """Cancel what waits for a worker that this very function chooses.

        These were more than was needed, as at the end of an epoch: they are not counted or shown.
        """
        for closure in self.waiting.take_pinned(chooser):
            self._end_cancelled(closure, reason)

    def stepped(self, failed: RemoteValue | None) -> None:
        """Note that the gate's step was done, or, as the error of a closure, why it failed."""
        self.gate.stepped()
        self._note_effects(failed)
        self.in_flight.blocked_by = ""
        if failed is not None and not self.closed:
            self.errors.add(failed)
            self.cancel_queued("what was pushed could not be applied")

    def cancel(self, remote: RemoteValue, in_flight: bool) -> Closure | None:
        """Cancel a closure, or return it, open: then its outcome must be resolved.

        Nothing happens to one that has ended, and to one that a worker has, unless ``in_flight``
        ones are to be cancelled, too.
        """
        if remote.done():
            return None
        queued = self.waiting.remove(remote) or self._dependents.remove(remote)
        if queued is not None:
            self._cancel_with_dependents(queued)
        elif in_flight and (found := self.in_flight.find(remote)) is not None:
            closure, running = found
            closure.execution.revoked = True
            if running:
                self.in_flight.lose([closure])
                return closure
        return None

    def cancel_queued(self, reason: str) -> list[Closure]:
        """Cancel all closures that are queued, and return them.

        Those fail instead whose inputs have failed.
        """
        cancelled = self.waiting.take_all()
        for closure in self._dependents.clear():
            failed = _first(closure, (ClosureStatus.FAILED,))
            if failed is None:
                cancelled.append(closure)
            else:
                self._end_failed(closure, failed)
        if cancelled:
            were = "was" if len(cancelled) == 1 else "were"
            text = f"{counted(len(cancelled), 'queued closure')} {were} cancelled: {reason}"
            self.news.add(EventKind.CLOSURES_CANCELLED, text, cancelled)
        for closure in cancelled:
            self._cancel(closure, reason)
        return cancelled

    def clear_errors(self) -> None:
        """Begin closures again after `RemoteValue.fetch` has raised all errors that there are."""
        if text := self.errors.clear():
            self.news.add(EventKind.FAILURES_CLEARED, text)

    def close(self) -> None:
        """Cancel all that waits or runs; idempotent."""
        reason = "the coordinator was closed"
        if not self.closed:
            self.news.add(EventKind.COORDINATOR_CLOSED, reason)
        self.closed = True
        self._note_effects(None)  # nothing listens any more
        queued = self.cancel_queued(reason)
        running = self.in_flight.take_all()
        for closure in running:
            self._cancel(closure, reason)
        left = [each for each in (*queued, *running) if not each.options.detached]
        if left:
            text = (
                f"{counted(len(left), 'closure')} had not ended when the coordinator was closed, "
                "now cancelled: coordinator.join() waits for all"
            )
            self.news.add(EventKind.CLOSURES_ABANDONED, text, left)

    def go_on(self) -> None:
        """Begin what can begin now: closures have ended or were put back, or a step was done."""
        if (step := self.gate.due()) is not None:
            self.on_step(step)
        if self.gate.limits and self.waiting:
            self._call_when_hungry()

    def at_rest(self) -> bool:
        """Return whether none runs and all have had their effect; if they have not, start that."""
        if self.in_flight or (self.holds and self.waiting and self.begins()):
            return False  # the latter: a round that has begun is filled first
        if self.filling and self.begins() and self.gate.midway():
            return False  # likewise, with what is put at this moment
        if self.gate.complete():
            return True
        self.gate.finish()
        self.go_on()
        return self.gate.complete()

    @property
    def completed(self) -> int:
        """How many closures have returned."""
        return self._completed

    def statistics(self) -> QueueStatistics:
        """Return a snapshot."""
        return QueueStatistics(
            queued=self.queued(),
            in_flight=len(self.in_flight),
            completed=self._completed,
            failed=self._failed,
            cancelled=self._cancelled,
            retried=self._retried,
            failing=bool(self.errors),
            paused=self.paused,
            closed=self.closed,
        )

    def _begin_effects(self) -> str:
        """Apply a round that nothing else would fill; return what holds rounds up."""
        if (not self.waiting or not self.begins()) and self.at_rest():
            self._note_effects(None)
        return "" if self.in_flight.running() else self.in_flight.blocked_by

    def _note_effects(self, failed: RemoteValue | None) -> None:
        owing, self._owing = self._owing, []
        for remote in owing:
            remote.note_effect(failed)

    def _wait(self, closure: Closure) -> None:
        self.waiting.add(closure)
        self._call_when_hungry()

    def _requeue(self, closure: Closure) -> None:
        closure.remote.set_status(ClosureStatus.QUEUED)
        if not closure.options.detached:
            self.gate.put_back(closure)
        self.waiting.add_first(closure)
        self._call_when_hungry()

    def _call_when_hungry(self) -> None:
        if self._hungry:
            self._hungry, self.wake = False, True

    def _cancel(self, closure: Closure, reason: str) -> None:
        self._cancelled += 1
        self._end_cancelled(closure, reason)

    def _end_cancelled(self, closure: Closure, reason: str) -> None:
        self._end(closure)
        text = f"closure {closure.function.name} was cancelled: {reason}; schedule it again"
        closure.remote.set_status(ClosureStatus.CANCELLED, text)

    def _cancel_with_dependents(self, closure: Closure) -> None:
        cancelled = [closure]
        for each in cancelled:  # it grows
            cancelled += filter(None, map(self._removed, self._dependents.of(each.remote)))
        text = f"closure {closure} was cancelled"
        if others := len(cancelled) - 1:
            text += f", and {others} that waited for its result"
        self.news.add(EventKind.CLOSURES_CANCELLED, text, cancelled)
        self._cancel(closure, "cancel() was called")
        for each in cancelled[1:]:
            self._cancel(each, f"it waited for the result of {closure}, which was cancelled")

    def _removed(self, dependent: Closure) -> Closure | None:
        return self._dependents.remove(dependent.remote)

    def _end_failed(self, closure: Closure, error: bytes | RemoteValue) -> None:
        self._failed += 1
        self._end(closure)
        closure.remote.set_status(ClosureStatus.FAILED, error)

    def _end(self, closure: Closure, *, pushed: bool = False, succeeded: bool = False) -> None:
        if closure.execution is not NOT_TAKEN:
            self._on_end(closure, succeeded)
            self.in_flight.end(closure)
            if not closure.options.detached:
                self.gate.end(closure, pushed=pushed)


def _first(closure: Closure, statuses: tuple[ClosureStatus, ...]) -> RemoteValue | None:
    """Return the first input of a closure that has ended in one of these ways."""
    missing = closure.call.missing()
    return next((remote for _, remote in missing if remote.status in statuses), None)
