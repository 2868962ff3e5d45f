"""Scheduler: all closures of a coordinator, its workers, and their outcomes. Pure, without locks.

After TensorFlow's ``_CoordinatedClosureQueue``, and distributed's state machine of a worker:
`Scheduler.handle` takes in what has happened (`events`) and returns what is to be done
(`instructions`). It belongs to the event loop (`psnb._src.coordinator.workers.executor`), knows
neither connections nor servers, and calls nobody.

A queued closure waits for a worker (`Dispatcher` knows which gets it) or for the results of other
closures (`Dependents`). When one of those fails, its dependents fail with it; their errors are not
collected, as they would only repeat the first. One that a worker has taken is in flight
(`InFlight`) until it is known how it has ended; or it is queued again, as if it had never been
taken. If only the servers know, it is in `Doubt`. After the first failure every queued closure is
cancelled.

A `Gate` decides by the update mode which closures may begin. It asks for steps, which are
instructions, and `StepTaken` says that one is done; nothing is over before that.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, NoReturn

from msgspec.structs import replace

from psnb._src.coordinator.closures.failures import FailedClosures
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.coordinator.scheduling import events as events_
from psnb._src.coordinator.scheduling.dependents import Dependents
from psnb._src.coordinator.scheduling.dispatcher import Dispatcher
from psnb._src.coordinator.scheduling.doubts import (
    Applied,
    Doubt,
    LastCommit,
    LostWorker,
    Revoked,
    attempts_of,
    failed,
    lost_exchange,
    steps_applied,
)
from psnb._src.coordinator.scheduling.gates import Gate
from psnb._src.coordinator.scheduling.in_flight import InFlight
from psnb._src.coordinator.scheduling.instructions import (
    BalanceLater,
    CallBack,
    EndSession,
    Instruction,
    RecordFailure,
    RecordStates,
    RecordSteps,
    ReportSettled,
    Resolve,
    Send,
    Tell,
)
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.load import RECALL_SECONDS
from psnb._src.coordinator.scheduling.states import ConnectionState
from psnb._src.coordinator.scheduling.work import NOT_TAKEN, Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.protocol import messages
from psnb._src.protocol.errors import pack_error, packed_text
from psnb._src.protocol.messages import ClosureResult
from psnb._src.utils.range_set import Bounds
from psnb._src.utils.text import counted
from psnb._src.worker.reports import split_front
from psnb.errors import (
    CoordinatorClosedError,
    ServerUnresponsiveError,
    WorkerLostError,
)

LONG_PRIORITY = 0
"""The priority of long ones: `run_epoch` gives them no other."""


LEAST_REPORTED = 64
"""The fewest settled commits that servers hear of at once."""


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
    clock : callable, optional
        Returns a time in seconds.

    Attributes
    ----------
    name : str
        Unique: the writer of its closures' commits.
    gate : Gate
        As given.
    dispatcher : Dispatcher
        Workers, and closures that wait for one.
    in_flight : InFlight
        Those that workers have.
    errors : FailedClosures
        Those whose errors wait to be raised.
    closed : bool
        Whether none are handed out any more.
    cancelled : int
        How many were cancelled.
    statistics : QueueStatistics
        As of the end of the last call of `handle`; any thread may read it.
    busy : bool
        Likewise: whether something waits or runs, and nothing holds it up.
    """

    def __init__(
        self,
        events: EventLog | None = None,
        gate: Gate | None = None,
        leases: LeaseRegistry | None = None,
        ended: Callable[[], CoordinatorClosedError | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = uuid.uuid4().hex
        self.gate = Gate() if gate is None else gate
        self.dispatcher, self.in_flight = Dispatcher(self.gate, clock), InFlight()
        self.errors, self.closed, self.cancelled = FailedClosures(), False, 0
        self._waiting = self.dispatcher.waiting
        self._events = EventLog() if events is None else events
        self._leases, self._ended = LeaseRegistry() if leases is None else leases, ended
        self._dependents = Dependents()
        self._long = 0  # how many long ones have not ended
        self._batching = 0  # how many put the closures of a round at this moment: they come at once
        self._awaiting_round: list[RemoteValue] = []  # their rounds are not applied
        self._completed = self._failed = self._retried = self._next_number = 0
        self._handling = 0  # calls of `handle` under way, each within the one before
        self._instructions: list[Instruction] = []
        # What servers are asked about, and the doubts that are to be decided before. Some lost
        # workers had no closure any more: in Geo, what they had sent last may be applied on some
        # servers only, until this is decided.
        self._undecided: dict[Doubt, set[Doubt]] = {}
        # What is wanted at the end of `handle`: idle workers may get something; long ones should
        # end, on a worker or (None) all; what runs should stop early.
        self._wake = self._stop = self._balancing = False
        self._end_long: set[str | int | None] = set()
        self._handlers: dict[type, Callable[[Any], object]] = {
            Work: self._submit,
            events_.Heard: self._hear,
            events_.Joined: self._join,
            events_.Started: self._start,
            events_.Leaving: lambda event: self._drain(event.worker, event.why),
            events_.Left: self._leave,
            events_.CountWorkers: self._count,
            events_.SetThreads: self._set_threads,
            events_.Decided: self._decide,
            events_.Blocked: lambda event: self.in_flight.block(str(event.error)),
            events_.StepTaken: self._end_step,
            events_.Pause: self._pause,
            events_.Resume: self._resume,
            events_.Hold: self._hold,
            events_.Release: self._release,
            events_.BatchRound: self._batch_round,
            events_.Cancel: self._cancel_one,
            events_.CancelQueued: lambda event: self._cancel_queued(event.reason),
            events_.Withdraw: self._withdraw,
            events_.FailWaiting: self._fail_waiting,
            events_.LookAgain: self._look_again,
            events_.Balance: self._balance,
            events_.Close: self._close,
        }
        self._publish()

    def handle(self, *happened: events_.Event) -> list[Instruction]:
        """Take events in, one after the other; return what is to be done, in this order.

        Within a call of `handle`, as from a user's function that chooses workers, it returns
        nothing: what is to be done comes with that call. If it raises, which is a fault, it has
        taken in the other events all the same, and what is to be done comes with the next call.
        """
        fault: BaseException | None = None
        self._handling += 1
        try:
            for event in happened:
                try:
                    self._handlers[type(event)](event)
                except BaseException as error:  # a fault: it is raised when the others are in
                    fault = fault or error
            if fault is not None:
                raise fault
        finally:
            if self._handling == 1:
                self._finish()
            self._handling -= 1
        if self._handling:
            return []
        instructions, self._instructions = self._instructions, []
        return instructions

    # What callers ask; on the loop.

    def queued(self) -> int:
        """Return how many closures wait for a worker or for the results of others."""
        return len(self._waiting) + len(self._dependents)

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
        """Return whether callers that wait for all should stop.

        Nothing is left then, or the rest waits for a server that does not respond. Dispatch is held
        for a moment only, so that does not count.
        """
        return self.closed or self._finished() or self._stuck(not self.dispatcher.paused)

    def rests(self) -> bool:
        """Return whether nothing runs and all have had their effect, whatever is queued.

        Raises
        ------
        ServerUnresponsiveError
            If nothing goes on, as the rest waits for a server that does not respond.
        """
        if self.closed or self.at_rest():
            return True
        if self._stuck(self.dispatcher.begins()):
            self.raise_blocked()
        return False

    def may_raise(self) -> bool:
        """Return whether errors may be raised: nothing runs, or waits for what does not respond."""
        return self.closed or not self.in_flight or self._stuck(not self.dispatcher.paused)

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
        if self._stuck(not self.dispatcher.paused):
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

    def clear_errors(self) -> None:
        """Begin closures again after `RemoteValue.fetch` has raised all errors that there are."""
        if text := self.errors.clear():
            self._events.add(EventKind.FAILURES_CLEARED, text)

    def at_rest(self) -> bool:
        """Return whether none runs and all have had their effect; if they have not, start that."""
        begins = self.dispatcher.begins()
        if self.in_flight or any(isinstance(each, LostWorker) for each in self._undecided):
            return False
        if self.dispatcher.holds and self._waiting and begins:
            return False  # a round that has begun is filled first
        if self._batching and begins and self.gate.midway():
            return False  # likewise, with what is put at this moment
        if self.gate.complete():
            return True
        self.gate.finish()
        self._take_due_step()
        return self.gate.complete()

    def closed_attempts(self) -> tuple[Bounds, dict[int, int]]:
        """Return the numbers of commits that have ended, and the attempts of others.

        These are the attempts that were begun: servers must accept no commit of them any more. To
        be called while nothing runs.
        """
        return self.in_flight.settled.bounds(), self.in_flight.closed_attempts(self._waiting)

    def _finished(self) -> bool:
        return not self.queued() and self.at_rest()

    def _stuck(self, begins: bool) -> bool:
        # Whether nothing runs, and what is left waits for a server that does not respond.
        goes_on = self._waiting and begins and self.gate.open()
        return bool(self.in_flight.blocked_by) and not goes_on and not self.in_flight.running()

    def _begin_effects(self) -> str:
        """Apply a round that nothing else would fill; return what holds rounds up."""
        if (not self._waiting or not self.dispatcher.begins()) and self.at_rest():
            self._note_effects(None)
        return "" if self.in_flight.running() else self.in_flight.blocked_by

    # The end of `handle`.

    def _finish(self) -> None:
        if not self.closed:
            self._take_due_step()
        if self._wake or (self.gate.limits and self._waiting):
            self._wake = False
            self._dispatch()
        if self._end_long:
            for worker in self.dispatcher.workers:
                if not self._end_long.isdisjoint((None, worker.name, worker.index)):
                    self._recall(worker, worker.load.long())
            self._end_long = set()
        if self._stop:
            self._stop = False
            self._stop_early()
        self._publish()

    def _take_due_step(self) -> None:
        if (step := self.gate.due()) is not None:
            self._instructions.append(step)

    def _dispatch(self) -> None:
        """Give idle workers what waits: no more of them than there is work for."""
        if not self.dispatcher.has_work():
            return
        for worker in self.dispatcher.idle():
            # What waits for one worker must not have all be tried: there may be thousands.
            if self._waiting.any_for(worker.name, worker.index):
                self._feed(worker)
                if not self.dispatcher.has_work():
                    return
        # None of them had room after all. Where a gate decides, long ones have one step anyway.
        if self._long and not self.gate.limits and self._waiting.unpinned(LONG_PRIORITY):
            self._end_long.add(None)

    def _feed(self, worker: WorkerState) -> None:
        """Send a worker the closures that it should get now."""
        taken, unplaced = self.dispatcher.take_for(worker)
        for closure in taken:
            self._set_status(closure, ClosureStatus.RUNNING)
            self.in_flight.begin(closure)
            closure.execution.round = self.gate.round
            if closure.execution.attempt > 1:
                closure.execution.ranges = self._leases.again(worker, closure.numbers)
        if taken:
            self._instructions.append(Send(worker, taken))
        for closure, error in unplaced:
            self._fail(closure, error)
        if self.dispatcher.is_idle(worker) and not self._balancing:
            self._balancing = True
            self._instructions.append(BalanceLater(RECALL_SECONDS))

    def _stop_early(self) -> None:
        # No closure is put until all in flight have ended and the error was raised: so all of these
        # were put before that.
        for worker in self.dispatcher.workers:
            ids = {closure.id for closure in worker.load}
            new, worker.asked_to_stop = ids - worker.asked_to_stop, ids
            if new:
                self._instructions.append(Tell(worker, messages.CancelClosures(sorted(new))))

    def _publish(self) -> None:
        queued, in_flight = self.queued(), len(self.in_flight)
        self.busy = bool(queued or in_flight) and not self.closed and not self.in_flight.blocked_by
        self.statistics = QueueStatistics(
            queued,
            in_flight,
            self._completed,
            self._failed,
            self.cancelled,
            self._retried,
            bool(self.errors),
            self.dispatcher.paused,
            self.closed,
            self._next_number,
        )

    # Workers.

    def _join(self, event: events_.Joined) -> None:
        worker = event.worker
        worker.enter(ConnectionState.READY)
        self.dispatcher.join(worker)
        self._leases.enter(worker, worker.name)
        text = f"{worker} has joined; its worker_index is {worker.index}"
        self._events.add(EventKind.WORKER_JOINED, text, worker.name)

    def _start(self, event: events_.Started) -> None:
        worker = event.worker
        worker.started = True
        if self.dispatcher.threads is not None:
            self._use_threads(worker)
        self._feed(worker)

    def _count(self, event: events_.CountWorkers) -> None:
        self.dispatcher.num_workers = event.workers

    def _set_threads(self, event: events_.SetThreads) -> None:
        self.dispatcher.threads = event.threads
        for worker in self.dispatcher.workers:
            if worker.started:
                self._use_threads(worker)
                self._feed(worker)

    def _use_threads(self, worker: WorkerState) -> None:
        message = messages.UseThreads(self.dispatcher.threads)
        self._instructions.append(Tell(worker, message))

    def _drain(self, worker: WorkerState, why: str) -> None:
        if worker.state is ConnectionState.READY:
            worker.enter(ConnectionState.DRAINING)
            closures = list(worker.load)
            text = f"{worker} {why}; {len(closures)} in flight"
            self._events.add(EventKind.WORKER_RETIRING, text, worker.name, closures)
            self._call_back(worker)
            self._end_if_drained(worker)

    def _end_if_drained(self, worker: WorkerState) -> None:
        if worker.state is ConnectionState.DRAINING and not worker.load:
            self._instructions.append(EndSession(worker))

    def _leave(self, event: events_.Left) -> None:
        worker, was_open = event.worker, event.worker.state is not ConnectionState.CONNECTING
        retired = event.kind is EventKind.WORKER_RETIRED
        worker.enter(ConnectionState.RETIRED if retired else ConnectionState.LOST)
        self.dispatcher.leave(worker)
        closures = worker.load.clear()
        if event.kind is not None:
            self._events.add(event.kind, f"{worker} {event.why}", worker.name, closures)
        if not was_open:
            return
        self._leases.leave(worker)
        opened = self.in_flight.lose(closures)
        asked = [each for each in closures if not each.remote.done()]
        if not asked and not self.gate.exchanges:
            self._leases.lose(worker)
            return
        running = [each for each in closures[: worker.load.threads] if each in opened]
        doubt = LostWorker(
            *(attempts_of(self.name, asked), opened, worker, asked, running),
            f"{worker}: {event.why}",
        )
        # Not at the same time as another doubt about one of its commits: where a shard is lost in
        # between, they might be decided in two ways.
        own = {*asked}
        self._resolve(
            doubt,
            [
                each
                for each in self._undecided
                if not own.isdisjoint(each.open)
                or (isinstance(each, LastCommit) and each.worker == worker.name)
            ],
        )

    def _hear(self, event: events_.Heard) -> None:
        worker, message = event.worker, event.message
        match message:
            case messages.ClosureResults():
                self._take_results(worker, message)
            case messages.QuestionAsked():
                answer = self._answer(worker, message.inquiry)
                self._instructions.append(Tell(worker, messages.TakeAnswer(message.number, answer)))
                return
            case messages.ElementsTaken():
                worker.load.note_taken(message.closure, worker.place, message.elements)
            case messages.ClosuresReturned():
                self._give_back([worker.load.remove(each) for each in message.closures])
            case messages.SignOfLife():
                worker.figures.note_use(message.memory, message.gpu_memory, message.cpu_seconds)
                worker.figures.note_activity(message.activity, message.seconds)
            case messages.WorkerLeaves():
                self._drain(worker, "was asked to end")
        self._end_if_drained(worker)
        self._feed(worker)

    def _answer(self, worker: WorkerState, inquiry: messages.Inquiry) -> Any:
        match inquiry:
            case messages.AskLease():
                return self._leases.lease(worker, inquiry)
            case messages.BeginLease():
                return self._leases.begin(worker, inquiry)
            case messages.ReturnLease():
                return self._leases.return_(worker, inquiry)
            case messages.KeepResult():
                return worker.load.keep(
                    inquiry.closure, inquiry.attempt, inquiry.commit, inquiry.result
                )
        return True

    def _recall(self, worker: WorkerState, closures: list[int]) -> None:
        if worker.started and closures:
            self._instructions.append(Tell(worker, messages.RecallClosures(closures)))

    def _call_back(self, worker: WorkerState) -> None:
        """Have a worker return all closures that it has not begun, and end long ones."""
        load = worker.load
        self._recall(worker, list(dict.fromkeys([*load.waiting(), *load.long()])))

    def _balance(self, event: events_.Balance) -> None:
        # Something that was sent ahead as short work may wait behind what turned out to be long.
        self._balancing = False
        if self.dispatcher.some_starve() and not self.dispatcher.has_work():
            for worker, closures in self.dispatcher.overdue():
                self._balancing = True
                self._recall(worker, closures)
        if self._balancing:
            self._instructions.append(BalanceLater(RECALL_SECONDS))

    def _look_again(self, event: events_.LookAgain) -> None:
        self._wake = True

    # What callers want.

    def _submit(self, closure: Work) -> None:
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
            self._fail(closure, pack_error(error))
            return
        if not closure.call.missing():
            self._wait(closure)
        elif failed := _first(closure, (ClosureStatus.FAILED, ClosureStatus.CANCELLED)):
            self._fail(closure, failed)
        else:
            self._dependents.add(closure)
        if self.errors:
            self.errors.cancelled += len(self._cancel_queued("an earlier closure failed"))

    def _pause(self, event: events_.Pause) -> None:
        if not self.dispatcher.paused:
            self.dispatcher.paused = True
            text = f"paused: {counted(self.queued(), 'closure')} waiting"
            self._events.add(EventKind.COORDINATOR_PAUSED, text)
        for worker in self.dispatcher.workers:
            self._call_back(worker)

    def _resume(self, event: events_.Resume) -> None:
        if self.dispatcher.paused:
            self.dispatcher.paused = False
            text = f"resumed: {counted(self.queued(), 'closure')} waiting"
            self._events.add(EventKind.COORDINATOR_RESUMED, text)
            self._wake = True

    def _hold(self, event: events_.Hold) -> None:
        self.dispatcher.holds += 1
        for worker in self.dispatcher.workers:
            self._call_back(worker)

    def _release(self, event: events_.Release) -> None:
        self.dispatcher.holds -= 1
        self._wake = self._wake or not self.dispatcher.holds

    def _batch_round(self, event: events_.BatchRound) -> None:
        self._batching += event.more

    def _cancel_one(self, event: events_.Cancel) -> None:
        remote = event.remote
        if remote.done():
            return
        queued = self._waiting.remove(remote) or self._dependents.remove(remote)
        if queued is not None:
            self._cancel_with_dependents(queued)
        elif event.in_flight and (found := self.in_flight.find(remote)) is not None:
            closure, running = found
            closure.execution.revoked = True
            if running:
                self.in_flight.lose([closure])
                # In this order: what the worker gets after this is of a cancelled closure.
                self._instructions += [
                    Tell(worker, messages.RevokeClosure(closure.id))
                    for worker in self.dispatcher.workers
                    if closure in worker.load
                ]
                self._resolve(Revoked(attempts_of(self.name, [closure]), [closure]))

    def _withdraw(self, event: events_.Withdraw) -> None:
        for closure in self._waiting.take_pinned(event.chooser):
            self._end_cancelled(closure, event.reason)
        for closure in self.in_flight if self._long else ():
            if closure.long and closure.options.worker is event.chooser:
                closure.execution.withdrawn = event.reason
                self._end_long.add(None)

    def _fail_waiting(self, event: events_.FailWaiting) -> None:
        if not self._waiting:
            return
        waiting = self._waiting.take_all()
        packed = pack_error(event.error)
        # One error for all of them: as many copies would only hide it.
        self.errors.add(waiting[0].remote)
        for closure in waiting:
            self._end_failed(closure, packed)
        self._cancel_queued("there was no worker")

    def _close(self, event: events_.Close) -> None:
        reason = "the coordinator was closed"
        if not self.closed:
            self._events.add(EventKind.COORDINATOR_CLOSED, reason)
        self.closed = True
        self._note_effects(None)  # nothing listens any more
        queued = self._cancel_queued(reason)
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

    # What closures come to.

    def _take_results(self, worker: WorkerState, message: messages.ClosureResults) -> None:
        for taken in message.taken:
            self._leases.take(worker, taken)
        load, seconds, staleness = worker.load, list[float](), list[int]()
        raised, in_doubt, held = 0, 0, False
        for each in message.results:
            closure = load.find(each.closure)
            certain = each.in_doubt is None
            count = each.steps if each.succeeded and certain else 1
            if count:
                closure.function.duration.add(each.seconds / count)
                seconds += [each.seconds / count] * count
            held |= closure.long
            staleness += each.staleness
            raised += certain and not each.succeeded
            in_doubt += not certain
            if not each.ended:
                load.advance(each.closure, each.steps)
            if certain:
                self._settle(closure, each, worker.name)
            else:
                self._doubt(closure, each, worker.name)
            # Last: whatever else has raised, the worker's end settles what it has.
            if each.ended:
                load.remove(each.closure)
        if seconds:
            worker.figures.add(seconds, len(seconds) - raised - in_doubt, raised)
            worker.figures.add_phases(message.phases)
            load.answered(self.dispatcher.now(), seconds[0], held=held)
            self._instructions.append(RecordSteps(worker, seconds, raised, staleness))
        if self.in_flight.unreported >= max(LEAST_REPORTED, len(self.in_flight)):
            # So shards remember at most twice as many as closures are in flight; and ranges, of
            # which there may be one for each of these, cost a constant time a closure.
            self.in_flight.unreported = 0
            self._instructions.append(ReportSettled(self.in_flight.settled.bounds()))

    def _settle(
        self, closure: Work, result: ClosureResult, worker: str = "", *, certain: bool = True
    ) -> None:
        """Record what the next steps of a running or open closure have come to.

        Nothing happens if it does not run any more: the coordinator was closed.

        Parameters
        ----------
        closure : Work
            Which.
        result : ClosureResult
            It is not in doubt.
        worker : str
            Where they ran.
        certain : bool
            Whether a step that has failed has written nothing. If that cannot be found out, the
            closure fails also if it was cancelled: then nobody may take it for cancelled.
        """
        if not self.in_flight.has(closure):
            return
        if closure.execution.revoked and certain and not result.succeeded:
            # It was cancelled: what servers say decides, and comes. They may have applied its
            # commit because a shard was lost for whose sake the worker gave it up.
            return
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
                self._fail(closure, result.payload, worker)

    def _advance(self, closure: Work, steps: int) -> None:
        self._leases.end_steps(closure, steps)
        self.in_flight.advance(closure, steps)
        self._next_number = max(self._next_number, closure.number)

    def _doubt(self, closure: Work, result: ClosureResult, worker: str) -> None:
        """Find out whether the last commit of a closure is applied."""
        opened = self.in_flight.lose([closure])
        assert result.in_doubt is not None
        writer, number = result.in_doubt
        attempt = closure.execution.attempt if writer == self.name else 1
        self._resolve(LastCommit({writer: {number: attempt}}, opened, closure, worker, result))

    def _resolve(self, doubt: Doubt, after: Collection[Doubt] = ()) -> None:
        self._undecided[doubt] = {*after}
        if not after:
            self._instructions.append(Resolve(doubt))

    def _decide(self, event: events_.Decided) -> None:
        doubt, applied = event.doubt, event.outcome
        self._undecided.pop(doubt, None)
        for later, after in self._undecided.items():
            if doubt in after:
                after.remove(doubt)
                if not after:
                    self._instructions.append(Resolve(later))
        if not self._undecided and not self.in_flight.open():
            self.in_flight.blocked_by = ""
        if isinstance(applied, bytes):  # otherwise callers would wait for ever
            if isinstance(doubt, LostWorker):
                self._leases.lose(doubt.worker)
            for closure in doubt.open:
                self._settle(closure, failed(closure, applied), certain=False)
            return
        match doubt:
            case LostWorker(worker=worker):
                for each in doubt.asked:
                    self._settle_applied(each, applied, worker.name)
                self._leases.lose(worker)
                absent = [each for each in doubt.open if not each.remote.done()]
                executed = sum(each in absent for each in doubt.running)
                self._put_back(absent, executed, doubt.why, worker.name)
            case LastCommit(closure=closure, result=result):
                key = result.in_doubt
                assert key is not None
                if key in applied:
                    done = replace(result, steps=1, in_doubt=None)
                    self._settle(closure, done, doubt.worker)
                elif key[0] != self.name:
                    # Updates of several closures: the others have returned, and do not run again.
                    self._settle(closure, failed(closure, lost_exchange()), doubt.worker)
                else:
                    why = (
                        f"worker {doubt.worker!r} could not reach the parameter servers to the end"
                    )
                    self._put_back([closure], 0, why, doubt.worker)
            case Revoked():
                for each in doubt.open:
                    self._settle_applied(each, applied)
                self._put_back(doubt.open, 0, "it was cancelled")

    def _settle_applied(self, closure: Work, applied: Applied, worker: str = "") -> None:
        """Record the steps whose commits are applied, of a closure that is in doubt."""
        for step in steps_applied(closure, self.name, applied):
            if step is None:  # it wrote nothing: others may do it again, and it does not count
                self._leases.give_back(closure)
                if self.in_flight.has(closure):
                    self._advance(closure, 1)
            else:
                result, used = step
                self._leases.note_used(used)
                self._settle(closure, result, worker)

    def _complete(self, closure: Work, value: bytes, pushed: bool, weight: float | None) -> None:
        """Note that a closure has returned and had its effect, and whether it pushed gradients."""
        self._end(closure, pushed=pushed, weight=weight)
        if pushed and self.gate.round is not None and not closure.options.detached:
            closure.remote.await_round(self._begin_effects)
            self._awaiting_round.append(closure.remote)
        self._set_status(closure, ClosureStatus.COMPLETED, value)
        if self._dependents:
            for ready in self._dependents.complete(closure.remote, value):
                self._wait(ready)

    def _fail(self, closure: Work, error: bytes | RemoteValue, worker: str = "") -> None:
        """Let a closure fail: with a pickled error, or because of an input."""
        self._end_failed(closure, error)
        if isinstance(error, bytes):  # else it failed because of an input, which was reported
            self._instructions.append(RecordFailure(worker, closure, error))
        self._events.add(
            EventKind.CLOSURE_FAILED, _failed(closure, error, worker), worker, [closure]
        )
        if not closure.options.detached:
            self._stop = self._stop or not self.errors
            self.errors.add(closure.remote)
            self.errors.cancelled += len(self._cancel_queued("an earlier closure failed"))

    def _put_back(
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
            self._fail(closure, pack_error(error), worker)
            return False
        if self.errors:
            self.errors.cancelled += 1
            self._cancel(closure, "another closure failed before it could run again")
            return False
        closure.execution.attempt += 1
        return True

    def _give_back(self, closures: Sequence[Work]) -> None:
        """Queue closures again that their worker has not begun, before others of their priority."""
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

    def _end_step(self, event: events_.StepTaken) -> None:
        failed = None if event.error is None else RemoteValue.failed(pack_error(event.error))
        self.gate.stepped()
        self._note_effects(failed)
        self.in_flight.blocked_by = ""
        self._wake = True
        if failed is not None and not self.closed:
            self._stop = self._stop or not self.errors
            self.errors.add(failed)
            self._cancel_queued("what was pushed could not be applied")

    def _cancel_queued(self, reason: str) -> list[Work]:
        """Cancel all closures that are queued, and return them.

        Those fail instead whose inputs have failed.
        """
        cancelled = self._waiting.take_all()
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

    def _note_effects(self, failed: RemoteValue | None) -> None:
        waiting, self._awaiting_round = self._awaiting_round, []
        for remote in waiting:
            remote.note_effect(failed)

    def _wait(self, closure: Work) -> None:
        self._waiting.add(closure)
        self._wants_worker(closure)

    def _requeue(self, closure: Work) -> None:
        self._set_status(closure, ClosureStatus.QUEUED)
        if not closure.options.detached:
            self.gate.put_back(closure)
        self._waiting.add_first(closure)
        self._wants_worker(closure)

    def _wants_worker(self, closure: Work) -> None:
        """Have a closure wait for one step at most, where it would wait for long ones."""
        self._wake = True
        # If a worker is idle it may have room; when it has none, see `_dispatch`.
        pin, priority = closure.options.worker, closure.options.priority
        room = pin is None and self.dispatcher.any_idle()
        if self._long and not room and not closure.long and priority >= LONG_PRIORITY:
            self._end_long.add(None if callable(pin) else pin)

    def _cancel(self, closure: Work, reason: str) -> None:
        self.cancelled += 1
        self._next_number = max(self._next_number, closure.number + 1)
        self._end_cancelled(closure, reason)

    def _end_cancelled(self, closure: Work, reason: str) -> None:
        self._end(closure)
        text = f"closure {closure.function.name} was cancelled: {reason}; schedule it again"
        self._set_status(closure, ClosureStatus.CANCELLED, text)

    def _cancel_with_dependents(self, closure: Work) -> None:
        cancelled = [closure]
        for each in cancelled:  # it grows
            of = self._dependents.of(each.remote)
            cancelled += filter(None, [self._dependents.remove(every.remote) for every in of])
        text = f"closure {closure} was cancelled"
        if others := len(cancelled) - 1:
            text += f", and {others} that waited for its result"
        self._events.add(EventKind.CLOSURES_CANCELLED, text, closures=cancelled)
        self._cancel(closure, "cancel() was called")
        for each in cancelled[1:]:
            self._cancel(each, f"it waited for the result of {closure}, which was cancelled")

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
