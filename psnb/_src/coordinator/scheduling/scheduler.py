"""Scheduler: all closures of a coordinator and their outcomes. Pure, without locks.

After TensorFlow's ``_CoordinatedClosureQueue``, and distributed's state machine of a worker. It
belongs to the event loop: connections to workers `take`, `settle` and `put_back` closures, and what
other threads want comes through an `Inbox` (see `psnb._src.coordinator.queue`). All that changes it
happens in a *turn*: at the end of the outermost one the new `statistics` are published, and those
who wait are answered.

A queued closure waits for a worker (`Waiting` knows the order) or for the results of other closures
(`Dependents`). When one of those fails, its dependents fail with it; their errors are not
collected, as they would only repeat the first. One that a worker has taken is in flight
(`InFlight`) until it is known how it has ended; or it is queued again, as if it had never been
taken. After the first failure every queued closure is cancelled.

A `Gate` decides by the update mode which closures may begin. It asks for steps, which are
instructions, and `stepped` says that one is done; nothing is over before that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, NoReturn

from psnb._src.coordinator.closures.failures import FailedClosures
from psnb._src.coordinator.closures.options import Pin, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.coordinator.scheduling.dependents import Dependents
from psnb._src.coordinator.scheduling.gates import Gate
from psnb._src.coordinator.scheduling.in_flight import InFlight
from psnb._src.coordinator.scheduling.instructions import (
    CallBack,
    Dispatch,
    EndLong,
    Instruction,
    RecordFailure,
    RecordStates,
)
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.waiting import Waiting
from psnb._src.coordinator.scheduling.work import NOT_TAKEN, Work
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.errors import pack_error, packed_text
from psnb._src.protocol.messages import ClosureResult
from psnb._src.utils.range_set import Bounds
from psnb._src.utils.text import counted, text_of
from psnb._src.worker.reports import split_front
from psnb.errors import (
    CoordinatorClosedError,
    PsnbError,
    ServerUnresponsiveError,
    WorkerLostError,
)

LONG_PRIORITY = 0
"""The priority of long ones: `run_epoch` gives them no other."""


class QueueStatistics(NamedTuple):
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
    next_number: int = 0  # behind those of all steps that have ended


class Scheduler:
    """Closures that wait or run, and how many have ended in which way.

    Parameters
    ----------
    events : EventLog, optional
        Records retries, failures and cancellations.
    gate : Gate, optional
        Decides which closures may begin.
    leases : LeaseRegistry, optional
        What steps have taken from leased datasets: it is done, or free again.
    ended : callable, optional
        Returns why what it schedules for cannot be used any more, and what to do; None if it can.

    Attributes
    ----------
    name : str
        Unique: the writer of its closures' commits.
    carry_out : callable
        Called at the end of each turn with the instructions that it has led to, to carry them out
        and answer those who wait; returns whether that may have changed something.
    gate : Gate
        As given.
    waiting : Waiting
        Those that wait for a worker.
    in_flight : InFlight
        Those that workers have.
    errors : FailedClosures
        Those whose errors wait to be raised.
    paused, closed : bool
        Whether none are handed out at present, or none any more.
    holds : int
        How many hold dispatch, each for a moment: then closures begin only to fill a round that has
        begun. Apart from ``paused``, which is the user's.
    filling : int
        How many put the closures of a round at this moment: what they lack comes at once.
    statistics : QueueStatistics
        As of the end of the last turn; any thread may read it.
    busy : bool
        Likewise: whether something waits or runs, and nothing holds it up.
    """

    def __init__(
        self,
        events: EventLog | None = None,
        gate: Gate | None = None,
        leases: LeaseRegistry | None = None,
        ended: Callable[[], CoordinatorClosedError | None] = lambda: None,
    ) -> None:
        self.name = uuid.uuid4().hex
        self.carry_out: Callable[[Sequence[Instruction]], object] = bool
        self.gate = Gate() if gate is None else gate
        self.waiting, self.in_flight, self.errors = Waiting(), InFlight(), FailedClosures()
        self.paused = self.closed = False
        self.holds = self.filling = 0
        self._events = EventLog() if events is None else events
        self._leases, self._ended = LeaseRegistry() if leases is None else leases, ended
        self._dependents = Dependents()
        self._hungry = False  # a connection got fewer closures than it had room for
        self._long = 0  # how many long ones have not ended
        self._instructions: list[Instruction] = []  # of the turn that is under way
        # Of these, what is wanted once only.
        self._wake = False
        self._end_long: set[str | int | None] = set()
        self._turns = 0  # those that are under way, each within the one before
        self._owing: list[RemoteValue] = []  # their rounds are not applied
        self._completed = self._failed = self._cancelled = self._retried = 0
        self._next_number = 0
        self._publish()

    @contextmanager
    def turn(self, *, taking: bool = False) -> Iterator[None]:
        """Change it in the block; at the end those who wait see what has changed.

        While closures are only taken nothing can begin that could not before.
        """
        self._turns += 1
        try:
            yield
        finally:
            try:
                if self._turns == 1:
                    if not self.closed and not taking:
                        self.go_on()
                    self._publish()
                    if self.carry_out(self._take_instructions()):
                        self._publish()  # who waited for room may have put a closure
                    while self._pending():
                        self.carry_out(self._take_instructions())
                        self._publish()
            finally:
                self._turns -= 1

    def _pending(self) -> bool:
        return bool(self._instructions or self._wake or self._end_long)

    def _take_instructions(self) -> Sequence[Instruction]:
        if not self._pending():
            return ()  # nearly always
        ending = {None} if None in self._end_long else self._end_long
        taken = [*self._instructions, *map(EndLong, ending)]
        if self._wake:
            taken.append(Dispatch())
        self._instructions, self._end_long, self._wake = [], set(), False
        return taken

    def _publish(self) -> None:
        queued, in_flight = self.queued(), len(self.in_flight)
        self.busy = bool(queued or in_flight) and not self.closed and not self.in_flight.blocked_by
        self.statistics = QueueStatistics(
            queued,
            in_flight,
            self._completed,
            self._failed,
            self._cancelled,
            self._retried,
            bool(self.errors),
            self.paused,
            self.closed,
            self._next_number,
        )

    def queued(self) -> int:
        """Return how many closures wait for a worker or for the results of others."""
        return len(self.waiting) + len(self._dependents)

    def add(self, closure: Work) -> None:
        """Queue a closure; if an input has failed or was cancelled, it fails.

        After a failure, which its caller could not know yet, it is cancelled as all others are.
        """
        self._long += closure.long
        if self.closed:
            self._cancel(closure, "the coordinator was closed")
            return
        try:
            closure.call.take_inputs()  # some may have ended since its caller looked
        except BaseException as error:  # what a user's __reduce__ raises, too
            self.fail(closure, pack_error(error))
            return
        if not closure.call.missing():
            self._wait(closure)
        elif failed := _first(closure, (ClosureStatus.FAILED, ClosureStatus.CANCELLED)):
            self.fail(closure, failed)
        else:
            self._dependents.add(closure)
        if self.errors:
            self.errors.cancelled += len(self.cancel_queued("an earlier closure failed"))

    def require_open(self) -> None:
        """Raise CoordinatorClosedError if it is closed."""
        if self.closed:
            ended = self._ended()
            if ended is None:
                raise CoordinatorClosedError(
                    "the coordinator is closed: make a new one with "
                    "psnb.ClusterCoordinator(strategy)"
                )
            if type(ended) is CoordinatorClosedError:
                raise CoordinatorClosedError(f"{ended}, and a coordinator of it")
            raise ended

    def over(self) -> bool:
        """Return whether those who wait for all should stop.

        Nothing is left then, or the rest waits for a server that does not respond. Who holds
        dispatch does so for a moment: then it goes on.
        """
        return self.closed or self._finished() or self._stuck(not self.paused)

    def rests(self) -> bool:
        """Return whether nothing runs and all have had their effect, whatever is queued.

        Raises
        ------
        ServerUnresponsiveError
            If nothing goes on, as the rest waits for a server that does not respond.
        """
        if self.closed or self.at_rest():
            return True
        if self._stuck(self.begins()):
            self.raise_blocked()
        return False

    def may_raise(self) -> bool:
        """Return whether errors may be raised: nothing runs, or waits for what does not respond."""
        return self.closed or not self.in_flight or self._stuck(not self.paused)

    def raise_blocked(self) -> NoReturn:
        """Raise what the rest waits for: once; those who wait again get the error again."""
        text, self.in_flight.blocked_by = self.in_flight.blocked_by, ""
        waiting = counted(self.in_flight.open(), "closure")
        raise ServerUnresponsiveError(f"{text}. {waiting} waiting for its answer, to go on then")

    def trouble(self, remote: RemoteValue) -> str:
        """Return what blocks a closure that is not blocked itself; empty if nothing does.

        That is a server that does not respond: it must say whether a closure had its effect whose
        result this one waits for; or nothing runs, and nothing that waits can begin before that.
        """
        if not self.in_flight.blocked_by:
            return ""  # nearly always
        if self._stuck(not self.paused):
            return self.in_flight.blocked_by
        return self._dependents.blocked(remote)

    def take_errors(self) -> list[RemoteValue]:
        """Return the closures whose errors are to be raised, if all is over.

        Raises
        ------
        CoordinatorClosedError
            If it is closed.
        ServerUnresponsiveError
            If there are none, but what is left waits for a server that does not respond.
        """
        self.require_open()
        if not self.errors and not self._finished():
            self.raise_blocked()
        return self.errors.take()

    def _finished(self) -> bool:
        return not self.queued() and self.at_rest()

    def _stuck(self, begins: bool) -> bool:
        # Whether nothing runs, and what is left waits for a server that does not respond.
        goes_on = self.waiting and begins and self.gate.open()
        return bool(self.in_flight.blocked_by) and not goes_on and not self.in_flight.running()

    def pause(self) -> None:
        """Hand out no closures until `resume`; idempotent."""
        self.require_open()
        if not self.paused:
            self.paused = True
            text = f"paused: {counted(self.queued(), 'closure')} waiting"
            self._events.add(EventKind.COORDINATOR_PAUSED, text)

    def resume(self) -> None:
        """Undo `pause`; idempotent."""
        self.require_open()
        if self.paused:
            self.paused = False
            text = f"resumed: {counted(self.queued(), 'closure')} waiting"
            self._events.add(EventKind.COORDINATOR_RESUMED, text)
            self._wake = True

    def hold(self) -> None:
        """Begin nothing until as many calls of `let_go`, but for the rest of a round."""
        self.holds += 1
        if self._long:
            self._end_long.add(None)

    def fill(self, more: int) -> None:
        """Note that one more puts the closures of a round, or one less."""
        self.filling += more

    def let_go(self) -> None:
        """Undo `hold`."""
        self.holds -= 1
        self._wake = self._wake or not self.holds

    def begins(self) -> bool:
        """Return whether closures are handed out, if there are any and the gate admits them."""
        return not self.paused and (not self.holds or self.gate.midway())

    def has_work(self) -> bool:
        """Return whether a closure waits for a worker; if not, `Dispatch` says when one does."""
        # A pinned closure may be psnb's own, which no gate holds up.
        open_ = self.gate.open() or self.waiting.pinned()
        if self.waiting and self.begins() and open_:
            return True
        self._hungry = True
        return False

    def take(
        self,
        admit: Callable[[Work], bool],
        worker: Callable[[], WorkerStatistics] | None = None,
    ) -> list[Work]:
        """Take closures to run.

        If all were admitted, `Dispatch` says when there are more.

        Parameters
        ----------
        admit : callable
            Called for each in turn, until it refuses one.
        worker : callable, optional
            Returns the worker that takes them; without it, no pinned closure is taken.
        """
        with self.turn(taking=True):
            pins: list[Pin] = []
            if worker is not None and self.waiting.pinned():
                who = worker()
                pins = [who.name, who.index, *self._chosen(who)]
            taken = self.waiting.take(partial(self._begin, admit), pins) if self.begins() else []
            for closure in taken:
                self._set_status(closure, ClosureStatus.RUNNING)
                self.in_flight.begin(closure)
                closure.execution.round = self.gate.round
            # Also if one was refused: others may be waiting for another worker.
            self._hungry = True
            return taken

    def _begin(self, admit: Callable[[Work], bool], closure: Work) -> bool:
        if closure.options.detached:
            return admit(closure)
        if not self.gate.admits(closure) or not admit(closure):
            return False
        self.gate.begin(closure)
        return True

    def _chosen(self, worker: WorkerStatistics) -> list[WorkerPredicate]:
        chosen = []
        for chooser in self.waiting.choosers():
            try:
                if chooser(worker):
                    chosen.append(chooser)
            except BaseException as error:  # the users' functions may raise anything
                named = text_of(chooser, repr)
                packed = pack_error(error, f"raised by worker={named}, asked for {worker}")
                for closure in self.waiting.take_pinned(chooser):
                    self.fail(closure, packed)
        return chosen

    def settle(
        self,
        results: Iterable[tuple[Work, ClosureResult]],
        worker: str = "",
        *,
        certain: bool = True,
    ) -> None:
        """Record what the next steps of running or open closures have come to.

        Parameters
        ----------
        results : iterable of tuple
            None of them is in doubt. Those of closures that do not run any more (the coordinator
            was closed) are dropped.
        worker : str
            Where they ran.
        certain : bool
            Whether those that have failed have written nothing. If it is not known, they fail also
            if they were cancelled: then nobody may take them for cancelled.
        """
        with self.turn():
            for closure, result in results:
                if not self.in_flight.has(closure):
                    continue
                value, weight = b"", None
                if result.succeeded:
                    states, weight = split_front(result.payload)
                    if states:
                        self._instructions.append(RecordStates(states))
                    self._completed += result.steps
                    self._advance(closure, result.steps)
                    value = closure.remote.outcome(result.values)
                if result.ended:
                    self.in_flight.take_back(closure)
                    if result.succeeded:
                        self._complete(closure, value, result.pushed, weight)
                    else:
                        self.fail(closure, result.payload, worker, certain)

    def skip_step(self, closure: Work) -> None:
        """Note that the next step was done and wrote nothing, and no more is known of it.

        It does not count: others do what it did.
        """
        with self.turn():
            if self.in_flight.has(closure):
                self._advance(closure, 1)

    def _advance(self, closure: Work, steps: int) -> None:
        self._leases.end_steps(closure, steps)
        self.in_flight.advance(closure, steps)
        self._next_number = max(self._next_number, closure.number)

    def lose(self, closures: Iterable[Work]) -> list[Work]:
        """Note that the outcome of running closures is unknown; return those that were running."""
        with self.turn():
            return self.in_flight.lose(closures)

    def block(self, error: Exception) -> None:
        """Note that closures wait for a server that does not respond.

        Those who wait for closures get an error when nothing else is left to wait for. To be called
        again for as long as it lasts.
        """
        with self.turn():
            self.in_flight.block(str(error))

    def _complete(self, closure: Work, value: bytes, pushed: bool, weight: float | None) -> None:
        """Note that a closure has returned and had its effect, and whether it pushed gradients."""
        self._end(closure, pushed=pushed, weight=weight)
        if pushed and self.gate.round is not None and not closure.options.detached:
            closure.remote.owe_effect(self._begin_effects)
            self._owing.append(closure.remote)
        self._set_status(closure, ClosureStatus.COMPLETED, value)
        if self._dependents:
            for ready in self._dependents.complete(closure.remote, value):
                self._wait(ready)

    def fail(
        self,
        closure: Work,
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
            self._instructions.append(RecordFailure(worker, closure, error))
        self._events.add(
            EventKind.CLOSURE_FAILED, _failed(closure, error, worker), worker, [closure]
        )
        if not closure.options.detached:
            self._wake = self._wake or not self.errors  # connections ask what runs to stop early
            self.errors.add(closure.remote)
            self.errors.cancelled += len(self.cancel_queued("an earlier closure failed"))

    def put_back(
        self, closures: Sequence[Work], executing: int, lost: str, worker: str = ""
    ) -> None:
        """Queue lost closures again that have had no effect, before others of their priority.

        Parameters
        ----------
        closures : sequence of Work
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
        with self.turn():
            again = [
                closure
                for position, closure in enumerate(closures)
                if self._runs_again(closure, position < executing, lost, worker)
            ]
            for closure in reversed(again):
                self._requeue(closure)
            self._retried += len(again)
            if again:
                text = f"{counted(len(again), 'closure')} to run again: {lost}"
                self._events.add(EventKind.CLOSURES_RETRIED, text, closures=again)
            self._wake = True  # of the other workers, some may be idle

    def _runs_again(self, closure: Work, executing: bool, lost: str, worker: str) -> bool:
        if not self.in_flight.take_back(closure):
            return False
        if closure.execution.revoked:
            self._cancel_with_dependents(closure)
            return False
        if closure.execution.withdrawn:
            self._end_cancelled(closure, closure.execution.withdrawn)
            return False
        closure.execution.deaths += executing
        retries = closure.options.retries
        if executing and closure.execution.deaths > retries:
            error = WorkerLostError(
                f"closure {closure.function.name} was running when its worker was lost, "
                f"{closure.execution.deaths} times in a row (retries={retries}); the last time: "
                f"{lost}. If it does not kill its workers, for example by their memory limit, "
                "schedule it with more retries"
            )
            self.fail(closure, pack_error(error), worker)
            return False
        if self.errors:
            self.errors.cancelled += 1
            self._cancel(closure, "another closure failed before it could run again")
            return False
        closure.execution.attempt += 1
        return True

    def give_back(self, closures: Sequence[Work]) -> None:
        """Queue closures again that their worker has not begun, before others of their priority."""
        with self.turn():
            for closure in reversed(closures):
                if not self.in_flight.give_back(closure):
                    continue
                if self.errors:
                    self.errors.cancelled += 1
                    self._cancel(closure, "another closure failed before it was begun")
                elif closure.execution.withdrawn:
                    self._end_cancelled(closure, closure.execution.withdrawn)
                else:
                    self._requeue(closure)

    def fail_waiting(self, error: PsnbError) -> None:
        """Fail all waiting closures with an error: there is no worker to run them."""
        with self.turn():
            if not self.waiting:
                return
            waiting = self.waiting.take_all()
            packed = pack_error(error)
            # One error for all of them: as many copies would only hide it.
            self.errors.add(waiting[0].remote)
            for closure in waiting:
                self._end_failed(closure, packed)
            self.cancel_queued("there was no worker")

    def withdraw(self, chooser: WorkerPredicate, reason: str) -> None:
        """Cancel what waits for a worker that this very function chooses; long ones end.

        These were more than was needed, as at the end of an epoch: they are not counted or shown.
        """
        for closure in self.waiting.take_pinned(chooser):
            self._end_cancelled(closure, reason)
        for closure in self.in_flight if self._long else ():
            if closure.long and closure.options.worker is chooser:
                closure.execution.withdrawn = reason
                self._end_long.add(None)

    def stepped(self, error: Exception | None) -> None:
        """Note that the gate's step was done, or why it failed."""
        failed = None if error is None else RemoteValue.failed(pack_error(error))
        with self.turn():
            self.gate.stepped()
            self._note_effects(failed)
            self.in_flight.blocked_by = ""
            if failed is not None and not self.closed:
                self.errors.add(failed)
                self.cancel_queued("what was pushed could not be applied")

    def cancel(self, remote: RemoteValue, in_flight: bool) -> Work | None:
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

    def cancel_queued(self, reason: str) -> list[Work]:
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
            self._events.add(EventKind.CLOSURES_CANCELLED, text, closures=cancelled)
        for closure in cancelled:
            self._cancel(closure, reason)
        return cancelled

    def clear_errors(self) -> None:
        """Begin closures again after `RemoteValue.fetch` has raised all errors that there are."""
        if text := self.errors.clear():
            self._events.add(EventKind.FAILURES_CLEARED, text)

    def close(self) -> None:
        """Cancel all that waits or runs; idempotent."""
        reason = "the coordinator was closed"
        with self.turn():
            if not self.closed:
                self._events.add(EventKind.COORDINATOR_CLOSED, reason)
            self.closed = True
            self._note_effects(None)  # nothing listens any more
            queued = self.cancel_queued(reason)
            running = self.in_flight.take_all()
            for closure in running:
                self._cancel(closure, reason)
            left = [each for each in (*queued, *running) if not each.options.detached]
            if left:
                text = (
                    f"{counted(len(left), 'closure')} had not ended when the coordinator was "
                    "closed, now cancelled: coordinator.join() waits for all"
                )
                self._events.add(EventKind.CLOSURES_ABANDONED, text, closures=left)

    def go_on(self) -> None:
        """Begin what can begin now: closures have ended or were put back, or a step was done."""
        if (step := self.gate.due()) is not None:
            self._instructions.append(step)
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

    def closed_attempts(self) -> tuple[Bounds, dict[int, int]]:
        """Return the numbers of commits that have ended, and the attempts of others.

        These are the attempts that were begun: servers must accept no commit of them any more. To
        be called while nothing runs.
        """
        return self.in_flight.settled.bounds(), self.in_flight.closed_attempts(self.waiting)

    def _begin_effects(self) -> str:
        """Apply a round that nothing else would fill; return what holds rounds up."""
        if (not self.waiting or not self.begins()) and self.at_rest():
            self._note_effects(None)
        return "" if self.in_flight.running() else self.in_flight.blocked_by

    def _note_effects(self, failed: RemoteValue | None) -> None:
        owing, self._owing = self._owing, []
        for remote in owing:
            remote.note_effect(failed)

    def _wait(self, closure: Work) -> None:
        self.waiting.add(closure)
        self._end_long_for(closure)
        self._call_when_hungry()

    def held_up(self) -> bool:
        """Return whether closures wait for long ones: to be asked when no connection has room."""
        return self._long > 0 and self.waiting.unpinned(LONG_PRIORITY) and self.begins()

    def _end_long_for(self, closure: Work) -> None:
        """Have a closure wait for one step at most, where it would wait for long ones."""
        # If a connection has asked for more it may have room; when it has none, see `held_up`.
        pin, priority = closure.options.worker, closure.options.priority
        room = self._hungry and pin is None
        if self._long and not room and not closure.long and priority >= LONG_PRIORITY:
            self._end_long.add(None if callable(pin) else pin)

    def _requeue(self, closure: Work) -> None:
        self._set_status(closure, ClosureStatus.QUEUED)
        if not closure.options.detached:
            self.gate.put_back(closure)
        self.waiting.add_first(closure)
        self._end_long_for(closure)
        self._call_when_hungry()

    def _call_when_hungry(self) -> None:
        if self._hungry:
            self._hungry, self._wake = False, True

    def _cancel(self, closure: Work, reason: str) -> None:
        self._cancelled += 1
        self._next_number = max(self._next_number, closure.number + 1)
        self._end_cancelled(closure, reason)

    def _end_cancelled(self, closure: Work, reason: str) -> None:
        self._end(closure)
        text = f"closure {closure.function.name} was cancelled: {reason}; schedule it again"
        self._set_status(closure, ClosureStatus.CANCELLED, text)

    def _cancel_with_dependents(self, closure: Work) -> None:
        cancelled = [closure]
        for each in cancelled:  # it grows
            cancelled += filter(None, map(self._removed, self._dependents.of(each.remote)))
        text = f"closure {closure} was cancelled"
        if others := len(cancelled) - 1:
            text += f", and {others} that waited for its result"
        self._events.add(EventKind.CLOSURES_CANCELLED, text, closures=cancelled)
        self._cancel(closure, "cancel() was called")
        for each in cancelled[1:]:
            self._cancel(each, f"it waited for the result of {closure}, which was cancelled")

    def _removed(self, dependent: Work) -> Work | None:
        return self._dependents.remove(dependent.remote)

    def _end_failed(self, closure: Work, error: bytes | RemoteValue) -> None:
        self._failed += 1
        if closure.execution is not NOT_TAKEN:
            self._next_number = max(self._next_number, closure.number + 1)
        self._end(closure)
        self._set_status(closure, ClosureStatus.FAILED, error)

    def _set_status(
        self, closure: Work, status: ClosureStatus, outcome: bytes | str | RemoteValue = b""
    ) -> None:
        if closure.remote.set_status(status, outcome):
            self._instructions.append(CallBack(closure.remote))

    def _end(self, closure: Work, *, pushed: bool = False, weight: float | None = None) -> None:
        self._long -= closure.long
        if closure.execution is not NOT_TAKEN:
            self._leases.end(closure)
            self.in_flight.end(closure)
            if not closure.options.detached:
                self.gate.end(closure, pushed=pushed, weight=weight)


def _first(closure: Work, statuses: tuple[ClosureStatus, ...]) -> RemoteValue | None:
    """Return the first input of a closure that has ended in one of these ways."""
    missing = closure.call.missing()
    return next((remote for _, remote in missing if remote.status in statuses), None)


def _failed(closure: Work, error: bytes | RemoteValue, worker: str) -> str:
    where = f" on worker {worker!r}" if worker else ""
    why = packed_text(error) if isinstance(error, bytes) else "an input of it has no value"
    return f"closure {closure} failed{where}: {why}"
