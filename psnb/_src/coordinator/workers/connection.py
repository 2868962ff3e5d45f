"""WorkerConnection: the way from the queue to one worker and back.

A connection lives on the event loop of the Dask client: one task opens a session on the worker,
receives its messages (`psnb._src.protocol.messages`) and hands outcomes to the queue. `dispatch`
sends as many closures as keep the worker busy (`Load`); it runs whenever there may be room or work,
in whatever task of that loop, and never waits. When the connection breaks, or the worker gives no
heartbeat, the `Resolver` finds out whether the closures in flight had their effect. A worker
that leaves gets no new closures and finishes those that it has. Other threads only read
`statistics`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from psnb._src.coordinator.scheduling.load import AHEAD_SECONDS, LONG_SECONDS, SPREAD_SECONDS, Load
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.workers.figures import WorkerFigures
from psnb._src.coordinator.workers.knowledge import WorkerKnowledge
from psnb._src.coordinator.workers.link import WorkerLink, open_session
from psnb._src.coordinator.workers.resolve import lost_exchange
from psnb._src.coordinator.workers.services import Services
from psnb._src.coordinator.workers.states import ConnectionState, check_connection_transition
from psnb._src.dask_compat.reach import Comm
from psnb._src.monitor.events import EventKind
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol import messages
from psnb._src.protocol.errors import unpack_error
from psnb._src.protocol.modes import Geo
from psnb._src.utils.version import OtherVersionError
from psnb._src.worker.context import InputContext

Results = list[tuple[Work, messages.ClosureResult]]
"""See `Scheduler.settle`."""


class _Drained(Exception):  # noqa: N818 - not an error
    """The worker leaves and has finished all closures that it had."""


class WorkerConnection:
    """Carries closures to one worker.

    Parameters
    ----------
    name, address : str
        The worker.
    opening : SessionOpening
        What its session must know from the beginning.
    services : Services
        What it needs from the coordinator.
    connect : callable
        Opens a connection to an address.
    on_idle : callable
        Called with the connection when the worker has room for more closures than there are.
    others_starve : callable
        Returns whether other workers have nothing to do.

    Attributes
    ----------
    num_workers : int
        How many workers there are at the moment; for the event loop only.
    threads : int or None
        How many closures the worker is to run at the same time; None for as many as it has threads.
        For the event loop only; `dispatch` tells the worker.
    refusal : str
        Why it can never be used as it is, or could not when it was last asked: it has another
        version of psnb; empty if it can.
    """

    def __init__(
        self,
        name: str,
        address: str,
        opening: messages.SessionOpening,
        services: Services,
        connect: Callable[[str], Awaitable[Comm]],
        on_idle: Callable[[WorkerConnection], None],
        others_starve: Callable[[], bool],
    ) -> None:
        self.name, self.address, self.index = name, address, opening.worker_index
        self.state = ConnectionState.CONNECTING
        self.num_workers = opening.num_workers
        self.threads: int | None = None
        self._sent_threads: int | None = None
        self._opening, self._services = opening, services
        self._scheduler, self._records = services.scheduler, services.records
        self._leases, self._resolver = services.leases, services.resolver
        self._timeouts = services.timeouts
        self._connect, self._on_idle, self._others_starve = connect, on_idle, others_starve
        self._link: WorkerLink | None = None  # set when the worker may be sent closures
        self._heard = True
        self.was_ready, self.refusal = False, ""
        self._load = Load()
        self._knowledge = WorkerKnowledge(services)
        self._figures = WorkerFigures(name, address, self.index)
        self._asked_to_stop: set[int] = set()
        self._drained = asyncio.Event()
        self._flushing: asyncio.Future[bytes] | None = None
        self._loop = asyncio.get_running_loop()

    def statistics(self) -> WorkerStatistics:
        """Return a snapshot; any thread may call."""
        load = self._load
        return self._figures.snapshot(self.state, len(load), load.threads)

    async def run(self) -> None:
        """Carry closures until the worker has left or the task is cancelled."""
        ended: tuple[EventKind, str] | None = None
        link: WorkerLink | None = None
        try:
            link = await open_session(self._connect, self.address, self._opening)
            self._load = Load(link.threads)
            self._enter(ConnectionState.READY)
            self.was_ready, self.refusal = True, ""
            self._leases.enter(self, self.name)
            self._note(EventKind.WORKER_JOINED, f"has joined; its worker_index is {self.index}")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(link))
                tasks.create_task(self._watch())
                tasks.create_task(self._end_when_drained())
                tasks.create_task(self._start(link))
        except* _Drained:
            ended = EventKind.WORKER_RETIRED, "has finished its closures and leaves"
        except* OSError as errors:  # refused, broken, or timed out
            reason = str(errors.exceptions[0]) or "no answer"
            if isinstance(errors.exceptions[0], OtherVersionError):
                refusal = f"worker {self.name!r} at {self.address} is refused: {reason}"
                if refusal != self.refusal:  # it is asked again and again
                    ended = EventKind.WORKER_UNREACHABLE, f"is refused: {reason}"
                self.refusal = refusal
            elif self.state is ConnectionState.CONNECTING:
                ended = EventKind.WORKER_UNREACHABLE, f"cannot be used, trying again: {reason}"
            else:
                ended = EventKind.WORKER_LOST, f"was lost: {reason}"
        finally:
            retired = ended is not None and ended[0] is EventKind.WORKER_RETIRED
            self._enter(ConnectionState.RETIRED if retired else ConnectionState.LOST)
            if link is not None:
                link.abort()
            self._flushed(b"")
            closures = self._load.clear()
            kind, text = ended or (None, "the connection was ended")
            if kind is not None:
                self._note(kind, text, closures)
            self._leases.leave(self)
            lost = f"worker {self.name!r} at {self.address}: {text}"
            if self.was_ready:
                self._resolver.lose(
                    closures, self._load.threads, lost, self.name, self._opening.session, self
                )

    def drain(self, why: str) -> None:
        """Send no more closures, end when those that run have ended; on the event loop only."""
        if self.state is ConnectionState.READY:
            self._enter(ConnectionState.DRAINING)
            closures = list(self._load)
            self._note(EventKind.WORKER_RETIRING, f"{why}; {len(closures)} in flight", closures)
            self.call_back()
            self._end_if_drained()

    def dispatch(self) -> None:
        """Send definitions, and the closures that there is room for; on the event loop only."""
        link = self._link
        if link is None:
            return
        if self.threads != self._sent_threads:
            self._sent_threads, self._load.threads = self.threads, self.threads or link.threads
            link.send(messages.UseThreads(self.threads))
        self._load.refused = False
        if self._scheduler.gate.limits:
            self._load.ahead = 0.0
        else:
            self._load.ahead = SPREAD_SECONDS if self._others_starve() else AHEAD_SECONDS
            held = messages.held_seconds(self.num_workers)
            self._load.long_seconds = max(LONG_SECONDS, 2.5 * held)
        if self.state is ConnectionState.READY and not self._load.full():
            closures = self._scheduler.take(self._load.add, self.statistics)
        else:
            closures = []
        if self._scheduler.errors:
            self._ask_to_stop(link)
        # After taking: what the closures use was defined before they were put.
        for message in self._knowledge.new_resources():
            link.send(message)
        if closures:
            self._load.sent(self._loop.time())
            link.send(self._knowledge.run(closures, self.num_workers))
        if self.state is ConnectionState.READY and not self._load.refused:
            self._on_idle(self)

    def call_back(self) -> None:
        """Ask the worker to return all closures that it has not begun, and to end long ones.

        On the event loop only.
        """
        self._recall(list(dict.fromkeys([*self._load.waiting(), *self._load.long()])))

    def end_long(self) -> None:
        """Ask the worker to end long ones with the step that they do; on the event loop only."""
        self._recall(self._load.long())

    def revoke(self, closure: Work) -> None:
        """Have the worker drop a closure, if it has it; on the event loop only."""
        if self._link is not None and closure in self._load:
            self._link.send(messages.RevokeClosure(closure.id))

    async def flush(self) -> bytes:
        """Have the worker send the updates that it has kept; on the event loop.

        Returns the pickled exception if it could not, else nothing. The worker answers within the
        time limits of its requests, or is lost.
        """
        if self._link is None:
            return b""
        if self._flushing is None:
            self._flushing = self._loop.create_future()
            self._link.send(messages.FlushCopies())
        return await asyncio.shield(self._flushing)

    def has_free_threads(self) -> bool:
        """Return whether the worker has threads without work; on the event loop only."""
        return self.state is ConnectionState.READY and len(self._load) < self._load.threads

    def recall(self) -> bool:
        """Ask the worker to return closures that wait behind one that takes too long.

        On the event loop only. Returns whether it may be worth calling again later.
        """
        if self._link is None or not self._load.waiting():
            return False
        self._recall(self._load.overdue(self._loop.time()))
        return True

    def _recall(self, closures: list[int]) -> None:
        if self._link is not None and closures:
            self._link.send(messages.RecallClosures(closures))

    def _enter(self, state: ConnectionState) -> None:
        check_connection_transition(self.state, state)
        self.state = state
        if state.ended:
            self._link = None

    def _note(self, kind: EventKind, text: str, closures: Sequence[Work] = ()) -> None:
        message = f"worker {self.name!r} at {self.address} {text}"
        self._records.events.add(kind, message, self.name, closures)

    async def _watch(self) -> None:
        # Gives the worker up when it is unresponsive, or drains, for too long. Ticks are counted
        # rather than clocks compared: if this process itself was frozen, the workers' messages
        # still wait to be read.
        unresponsive = draining = 0.0
        while True:
            await asyncio.sleep(self._timeouts.beat)
            unresponsive = 0.0 if self._heard else unresponsive + self._timeouts.beat
            self._heard = False
            if unresponsive >= self._timeouts.heartbeat:
                raise ConnectionError(f"no heartbeat for {unresponsive:g} s")
            if self.state is ConnectionState.DRAINING:
                draining += self._timeouts.beat
                if draining >= self._timeouts.drain:
                    raise ConnectionError(f"it leaves, and did not finish within {draining:g} s")

    async def _start(self, link: WorkerLink) -> None:
        await asyncio.sleep(self._services.start_delay.seconds(self.index))
        self._link = link
        self.dispatch()

    async def _end_when_drained(self) -> None:
        await self._drained.wait()
        if isinstance(self._services.mode, Geo) and (error := await self.flush()):
            raise ConnectionError(f"it could not send what it had learned: {unpack_error(error)}")
        raise _Drained

    def _flushed(self, error: bytes) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None and not flushing.done():
            flushing.set_result(error)

    def _end_if_drained(self) -> None:
        if self.state is ConnectionState.DRAINING and not self._load:
            self._drained.set()

    def _ask_to_stop(self, link: WorkerLink) -> None:
        # No closure is put until all in flight have ended and the error was raised: so all of these
        # were put before that.
        in_flight = {closure.id for closure in self._load}
        new = in_flight - self._asked_to_stop
        self._asked_to_stop = in_flight
        if new:
            link.send(messages.CancelClosures(sorted(new)))

    async def _receive(self, link: WorkerLink) -> None:
        while True:
            # In a frame of its own: what lives on here must not hold the last closures, which keep
            # their per-worker values alive.
            self._handle(link, await link.receive())

    def _handle(self, link: WorkerLink, message: messages.ToNotebook) -> None:
        self._heard = True
        match message:
            case messages.ChainsRead():
                self._figures.stages |= message.stages
            case messages.QuestionAsked():
                answer = messages.TakeAnswer(message.number, self._answer(message.inquiry))
                link.send(answer)
            case _:
                # One turn for all of it: those who wait are looked at once.
                with self._scheduler.turn():
                    self._take_in(message)
                if isinstance(message, messages.ClosureResults):
                    self._resolver.report_settled()
                    self._records.merged.draw(time.time())

    def _take_in(self, message: messages.ToNotebook) -> None:
        results: Results = []
        try:
            self._take(message, results)
            self._end_if_drained()
            self.dispatch()
        finally:
            # Last: it wakes callers that wait for the results, and they need the interpreter's
            # lock. Whatever the rest has raised: only this knows of the results.
            if results:
                self._scheduler.settle(results, self.name)

    def _take(self, message: messages.ToNotebook, results: Results) -> None:
        match message:
            case messages.ClosureResults():
                self._note_results(message, results)
            case messages.ElementsTaken():
                place = InputContext(self._opening.num_workers, self.index)
                self._load.note_taken(message.closure, place, message.elements)
            case messages.ClosuresReturned():
                self._scheduler.give_back([self._load.remove(each) for each in message.closures])
            case messages.CopiesFlushed():
                if message.staleness is not None:
                    self._records.staleness.add(message.staleness)
                self._flushed(message.error)
            case messages.FlushUndecided():
                self._resolver.ask_about(message.commit, self._decided, self._flushed)
            case messages.SignOfLife():
                self._figures.memory = message.memory
                self._figures.note_activity(message.activity, message.seconds)
            case messages.WorkerLeaves():
                self.drain("was asked to end")

    def _note_results(
        self,
        message: messages.ClosureResults,
        results: Results,
    ) -> None:
        """Note results, and put them into ``results``: nothing else has them any more."""
        for taken in message.taken:
            self._leases.take(self, taken)
        if message.reports:
            self._records.history.add_all(message.reports)
        seconds: list[float] = []
        failed, in_doubt, held = 0, 0, False
        for each in message.results:
            closure = self._load.find(each.closure)
            count = each.steps if each.succeeded and each.in_doubt is None else 1
            if count:
                closure.function.duration.add(each.seconds / count)
                seconds += [each.seconds / count] * count
            if each.ended:
                self._load.remove(closure.id)
            else:
                self._load.advance(closure.id, each.steps)
            if each.in_doubt is None:
                results.append((closure, each))
                failed += not each.succeeded
            else:
                in_doubt += 1
                self._resolver.ask(closure, each, self.name)
            held |= closure.long
            if each.staleness:
                self._records.staleness.add_all(each.staleness)
        if seconds:
            self._figures.add_phases(message.phases)
            self._measure(seconds, len(seconds) - failed - in_doubt, failed, held=held)

    def _measure(self, seconds: list[float], completed: int, failed: int, *, held: bool) -> None:
        self._figures.add(seconds, completed, failed)
        self._records.timeline.add(self.index, seconds, failed, self._load.threads, time.time())
        self._load.answered(self._loop.time(), seconds[0], held=held)

    def _answer(self, inquiry: messages.Inquiry) -> Any:
        match inquiry:
            case messages.AskLease():
                return self._leases.lease(self, inquiry)
            case messages.BeginLease():
                return self._leases.begin(self, inquiry)
            case messages.ReturnLease():
                return self._leases.return_(self, inquiry)
            case messages.KeepResult():
                return self._load.keep(
                    inquiry.closure, inquiry.attempt, inquiry.commit, inquiry.result
                )
            case messages.AnnounceStrategies():
                self._resolver.writes_to(inquiry.strategies)
                return True

    def _decided(self, applied: bool) -> None:
        self._flushed(b"" if applied else lost_exchange())
