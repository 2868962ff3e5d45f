"""WorkerConnection: the messages between the scheduler and one worker.

A connection lives on the event loop of the Dask client: one task opens a session on the worker and
receives its messages (`psnb._src.protocol.messages`), which are events for the scheduler; what
that wants sent, the `Executor` sends here. When the connection breaks, or the worker gives no
heartbeat, the session is over: the scheduler has the `Resolver` find out whether the closures in
flight had their effect. A worker that leaves gets no new closures and finishes those that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import asdict

from psnb._src.coordinator.scheduling.doubts import lost_exchange
from psnb._src.coordinator.scheduling.events import Heard, Joined, Leaving, Left, Started
from psnb._src.coordinator.scheduling.states import ConnectionState
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.coordinator.workers.knowledge import WorkerKnowledge
from psnb._src.coordinator.workers.services import Services
from psnb._src.dask_compat.reach import Comm
from psnb._src.monitor.events import EventKind
from psnb._src.protocol import messages
from psnb._src.protocol.errors import unpack_error
from psnb._src.protocol.modes import Geo
from psnb._src.transport.questions import next_beat
from psnb._src.transport.stream import MessageStream, message_stream
from psnb._src.utils.version import OtherVersionError, check_version, own_version

OPEN_TIMEOUT = 10.0
"""Seconds in which a worker must be connected, and answer the opening of a session."""


class _Drained(Exception):  # noqa: N818 - not an error
    """The worker leaves and has finished all closures that it had."""


class WorkerConnection:
    """Carries messages to one worker and back.

    Parameters
    ----------
    opening : SessionOpening
        What its session must know from the beginning.
    address : str
        The worker's.
    services : Services
        What it needs from the coordinator.
    connect : callable
        Opens a connection to an address.

    Attributes
    ----------
    worker : WorkerState
        What the scheduler knows of it.
    num_workers : int
        How many workers there are at the moment; for the event loop only.
    was_ready : bool
        Whether its session was ever open.
    drained : asyncio.Event
        To be set when the worker leaves and has finished what it had: the session ends.
    refusal : str
        Why it can never be used as it is, or could not when it was last asked: it has another
        version of psnb; empty if it can.
    """

    def __init__(
        self,
        opening: messages.SessionOpening,
        address: str,
        services: Services,
        connect: Callable[[str], Awaitable[Comm]],
    ) -> None:
        self.worker = WorkerState(
            opening.worker_name, address, opening.worker_index, opening.session, opening.num_workers
        )
        self.num_workers = opening.num_workers
        self.was_ready, self.refusal = False, ""
        self._opening, self._services, self._connect = opening, services, connect
        self._handle = services.handle
        self._knowledge = WorkerKnowledge(services)
        self._stream: MessageStream | None = None  # while the session is open
        self._heard, self._beat = True, opening.beat
        self.drained = asyncio.Event()
        self._fault: Exception | None = None  # why it ends
        self._flushing: asyncio.Future[bytes] | None = None

    async def run(self) -> None:
        """Carry messages until the worker has left or the task is cancelled."""
        kind: EventKind | None = None
        why = "the connection was ended"
        worker = self.worker
        try:
            stream, threads = await _open_session(self._connect, worker.address, self._opening)
            self._stream, worker.threads = stream, threads
            self.was_ready, self.refusal = True, ""
            self._handle(Joined(worker))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(stream))
                tasks.create_task(self._watch())
                tasks.create_task(self._end_when_drained())
                tasks.create_task(self._start())
        except* _Drained:
            kind, why = EventKind.WORKER_RETIRED, "has finished its closures and leaves"
        except* OSError as errors:  # refused, broken, or timed out
            reason = str(errors.exceptions[0]) or "no answer"
            if isinstance(errors.exceptions[0], OtherVersionError):
                refusal = f"{worker} is refused: {reason}"
                if refusal != self.refusal:  # it is asked again and again
                    kind, why = EventKind.WORKER_UNREACHABLE, f"is refused: {reason}"
                self.refusal = refusal
            elif not self.was_ready:
                kind = EventKind.WORKER_UNREACHABLE
                why = f"cannot be used, trying again: {reason}"
            else:
                kind, why = EventKind.WORKER_LOST, f"was lost: {reason}"
        finally:
            if self._stream is not None:
                self._stream.abort()
                self._stream = None
            self._flushed(b"")
            self._handle(Left(worker, kind, why))

    def drain(self, why: str) -> None:
        """Send no more closures, end when those that run have ended; on the event loop only."""
        if self.worker.state is ConnectionState.READY:
            self._handle(Leaving(self.worker, why))

    def send(self, message: messages.ToWorker) -> None:
        """Send a message, unless the session is over; on the event loop only."""
        if self._stream is not None:
            self._stream.send(message)

    def beat_every(self, seconds: float) -> None:
        """Have the worker give a heartbeat every so many seconds; on the event loop only."""
        if self._stream is not None and seconds != self._beat:
            self._beat = seconds
            self.send(messages.BeatEvery(seconds))

    def send_closures(self, closures: Sequence[Work]) -> None:
        """Send closures to be run, and what they need, likewise.

        If it cannot, as there is no memory, the session ends, and they run again.
        """
        try:
            self.send_resources()  # what they use was defined before they were put
            self.send(self._knowledge.run(closures, self.num_workers))
        except Exception as error:  # no memory, or a fault: both end the session
            self._fault = error
            self.drained.set()

    def send_resources(self) -> None:
        """Send what per-worker values are to be made or forgotten, if the worker has started."""
        if self.worker.started:
            for message in self._knowledge.new_resources():
                self.send(message)

    async def flush(self) -> bytes:
        """Have the worker send the updates that it has kept; on the event loop.

        Returns the pickled exception if it could not, else nothing. The worker answers within the
        time limits of its requests, or is lost.
        """
        if self._stream is None or not self.worker.started:
            return b""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_future()
            self._stream.send(messages.FlushCopies())
        return await asyncio.shield(self._flushing)

    async def _watch(self) -> None:
        # Gives the worker up when it is unresponsive, or drains, for too long. Ticks are counted
        # rather than clocks compared: if this process itself was frozen, the workers' messages
        # still wait to be read.
        unresponsive = draining = 0.0
        timeouts = self._services.timeouts
        while True:
            await next_beat(timeouts.beat)
            unresponsive = 0.0 if self._heard else unresponsive + timeouts.beat
            self._heard = False
            if unresponsive >= timeouts.heartbeat:
                raise ConnectionError(f"no heartbeat for {unresponsive:g} s")
            if self.worker.state is ConnectionState.DRAINING:
                draining += timeouts.beat
                if draining >= timeouts.drain:
                    raise ConnectionError(f"it leaves, and did not finish within {draining:g} s")

    async def _start(self) -> None:
        await asyncio.sleep(self._services.start_delay.seconds(self.worker.index))
        self._handle(Started(self.worker))
        self.send_resources()

    async def _end_when_drained(self) -> None:
        await self.drained.wait()
        if self._fault is not None:
            raise self._fault
        if isinstance(self._services.mode, Geo) and (error := await self.flush()):
            raise ConnectionError(f"it could not send what it had learned: {unpack_error(error)}")
        raise _Drained

    def _flushed(self, error: bytes) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None and not flushing.done():
            flushing.set_result(error)

    async def _receive(self, stream: MessageStream) -> None:
        while True:
            # In a frame of its own: what lives on here must not hold the last closures, which keep
            # their per-worker values alive.
            self._take_in(await stream.receive(messages.ToNotebook))

    def _take_in(self, message: messages.ToNotebook) -> None:
        self._heard = True
        records, resolver = self._services.records, self._services.resolver
        match message:
            case messages.ChainsRead():
                self.worker.figures.stages |= message.stages
            case messages.LinesWritten():
                records.output.add(self.worker.name, self.worker.index, message.lines)
            case messages.CopiesFlushed():
                if message.staleness is not None:
                    records.staleness.add(message.staleness)
                self._flushed(message.error)
            case messages.FlushUndecided():
                resolver.ask_about(message.commit, self._decided, self._flushed)
            case _:
                if isinstance(message, messages.ClosureResults) and message.reports:
                    records.history.add_all(message.reports)
                    self.worker.figures.add_reports(message.reports)
                elif isinstance(message, messages.QuestionAsked) and isinstance(
                    message.inquiry, messages.AnnounceStrategies
                ):
                    resolver.writes_to(message.inquiry.strategies)
                self._handle(Heard(self.worker, message))

    def _decided(self, applied: bool) -> None:
        self._flushed(b"" if applied else lost_exchange())


async def _open_session(
    connect: Callable[[str], Awaitable[Comm]],
    address: str,
    opening: messages.SessionOpening,
) -> tuple[MessageStream, int]:
    """Connect a worker, and open a session on it; return its stream, and the worker's threads.

    Parameters
    ----------
    connect : callable
        Opens a connection to an address.
    address : str
        The worker's.
    opening : SessionOpening
        What the session must know.

    Raises
    ------
    OtherVersionError
        If the worker has another version of psnb.
    OSError
        If the worker cannot be reached, refuses, or does not answer in time.
    """
    async with asyncio.timeout(OPEN_TIMEOUT):
        comm = await connect(address)
        try:
            await comm.write({"op": messages.HANDLER, "psnb": own_version(), **asdict(opening)})
            reply = await comm.read()
            check_version(reply)
            if not isinstance(reply, dict) or reply.get("status") != "OK":
                # A worker that joined a moment ago has not got the plugin yet, and says None.
                why = reply.get("exception_text") if isinstance(reply, dict) else reply
                raise ConnectionError(f"the worker is not prepared for psnb: {why}")
        except BaseException:  # a cancellation, too: nothing else closes it
            comm.abort()
            raise
    return message_stream(comm), reply["threads"]
