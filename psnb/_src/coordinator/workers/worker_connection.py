"""WorkerConnection: the way from the queue to one worker and back.

A connection lives on the event loop of the Dask client: one task opens a session on the worker (see
`psnb._src.runtime.session` for the messages), receives its messages and hands outcomes to the
queue. `pump` sends as many closures as keep the worker busy (`Load`); it runs whenever there may be
room or work, in whatever task of that loop, and never waits. When the connection breaks, or the
worker gives no sign of life, the `Resolver` finds out whether the closures in flight had their
effect. A worker that leaves gets no new closures and finishes those that it has. Other threads only
read `statistics`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from psnb._src.coordinator.closures import Closure, Duration
from psnb._src.coordinator.queue import lost_exchange
from psnb._src.coordinator.workers.connection_state import (
    ConnectionState,
    check_connection_transition,
)
from psnb._src.coordinator.workers.load import AHEAD_SECONDS, RECALL_SECONDS, SPREAD_SECONDS, Load
from psnb._src.coordinator.workers.services import Services
from psnb._src.dask_internals import Comm
from psnb._src.modes import Geo
from psnb._src.monitor import EventKind, Rate, WorkerStatistics
from psnb._src.runtime import HANDLER, unpack_error
from psnb._src.transport import MessageStream, message_stream

OPEN_TIMEOUT = 10.0
"""Seconds in which a worker must answer the opening of a session."""

_KNOWN_FUNCTIONS = 512


class _Drained(Exception):  # noqa: N818 - not an error
    """The worker leaves and has finished all closures that it had."""


class WorkerConnection:
    """Carries closures to one worker.

    Parameters
    ----------
    name, address : str
        The worker.
    index : int
        Its index among the coordinator's workers.
    num_workers : int
        For the worker's context.
    session : int
        Unique among the coordinator's connections.
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
    """

    def __init__(
        self,
        name: str,
        address: str,
        index: int,
        num_workers: int,
        session: int,
        services: Services,
        connect: Callable[[str], Awaitable[Comm]],
        on_idle: Callable[[WorkerConnection], None],
        others_starve: Callable[[], bool],
    ) -> None:
        self.name, self.address, self.index = name, address, index
        self.state = ConnectionState.CONNECTING
        self.num_workers = num_workers
        self._session, self._services = session, services
        self._queue, self._records = services.queue, services.records
        self._leases, self._resolver = services.leases, services.resolver
        self._timeouts = services.timeouts
        self._connect, self._on_idle, self._others_starve = connect, on_idle, others_starve
        self._stream: MessageStream | None = None  # set when the worker may be sent closures
        self._heard = True
        self.was_ready = False
        self._load = Load()
        self._threads = 1
        self._moved = 0.0  # when closures last came or went, by the loop's clock
        self._latency = Duration()  # of an answer beyond the time that its closure took
        self._told_to_stop: set[int] = set()
        self._drained = asyncio.Event()
        self._flushing: asyncio.Future[bytes] | None = None
        self._functions: OrderedDict[str, None] = OrderedDict()
        self._known_resources: set[int] = set()
        self._known_layout = 0  # its version
        self._completed = self._failed = 0
        self._busy_seconds = 0.0
        self._ended, self._busy = Rate(), Rate()  # closures, and the seconds that they took
        self._memory: int | None = None
        self._loop = asyncio.get_running_loop()

    def statistics(self) -> WorkerStatistics:
        """Return a snapshot; any thread may call."""
        now = time.monotonic()
        return WorkerStatistics(
            name=self.name,
            address=self.address,
            index=self.index,
            state=self.state.value,
            in_flight=len(self._load),
            completed=self._completed,
            failed=self._failed,
            busy_seconds=self._busy_seconds,
            closures_per_second=self._ended.value(now),
            busy=self._busy_share(now),
            memory=self._memory,
        )

    async def run(self) -> None:
        """Carry closures until the worker has left or the task is cancelled."""
        ended: tuple[EventKind, str] | None = None
        stream: MessageStream | None = None
        try:
            stream = await self._open()
            self._enter(ConnectionState.READY)
            self.was_ready = True
            self._leases.enter(self, self.name)
            self._note(EventKind.WORKER_JOINED, f"gets work as number {self.index}")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(stream))
                tasks.create_task(self._watch())
                tasks.create_task(self._end_when_drained())
                tasks.create_task(self._start(stream))
        except* _Drained:
            ended = EventKind.WORKER_RETIRED, "has finished its closures and leaves"
        except* OSError as errors:  # refused, broken, or timed out
            reason = str(errors.exceptions[0]) or "no answer"
            if self.state is ConnectionState.CONNECTING:
                ended = EventKind.WORKER_UNREACHABLE, f"cannot be used, trying again: {reason}"
            else:
                ended = EventKind.WORKER_LOST, f"was lost: {reason}"
        finally:
            self._enter(ConnectionState.LOST)
            if stream is not None:
                stream.abort()
            self._flushed(b"")
            closures = self._load.clear()
            kind, text = ended or (None, "the connection was ended")
            if kind is not None:
                self._note(kind, text, closures)
            self._leases.lose(self)
            lost = f"worker {self.name!r} at {self.address}: {text}"
            if self.was_ready:
                self._resolver.lose(closures, self._threads, lost, self.name, self._session)

    def drain(self, why: str) -> None:
        """Send no more closures, end when those in flight have ended; on the event loop only."""
        if self.state is ConnectionState.READY:
            self._enter(ConnectionState.DRAINING)
            closures = list(self._load)
            self._note(EventKind.WORKER_RETIRING, f"{why}; {len(closures)} in flight", closures)
            self._end_if_drained()

    def pump(self) -> None:
        """Send definitions, and the closures that there is room for; on the event loop only."""
        stream = self._stream
        if stream is None:
            return
        # In a frame of its own, and so for results: what lives on here must not hold the last
        # closures, which keep their per-worker values alive.
        self._load.refused = False
        if self._queue.limited:
            self._load.ahead = 0.0
        else:
            self._load.ahead = SPREAD_SECONDS if self._others_starve() else AHEAD_SECONDS
        if self.state is ConnectionState.READY:
            closures = self._queue.take(self._load.add, self.statistics)
        else:
            closures = []
        if self._queue.failing():
            self._tell_to_stop(stream)
        # After taking: what the closures use was defined before they were put.
        for message in self._resource_messages():
            stream.send(message)
        if closures:
            self._moved = asyncio.get_running_loop().time()
            stream.send(self._run_message(closures))
        if self.state is ConnectionState.READY and not self._load.refused:
            self._on_idle(self)

    def call_back(self) -> None:
        """Ask the worker to return all closures that it has not begun; on the event loop only."""
        if self._stream is not None and (waiting := self._load.waiting()):
            self._stream.send({"op": "recall", "ids": waiting})

    async def flush(self) -> bytes:
        """Have the worker send the updates that it has kept; on the event loop.

        Returns the pickled exception if it could not, else nothing. The worker answers within the
        time limits of its requests, or is lost.
        """
        if self._stream is None:
            return b""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_future()
            self._stream.send({"op": "flush"})
        return await asyncio.shield(self._flushing)

    def starves(self) -> bool:
        """Return whether the worker has threads without work; on the event loop only."""
        return self.state is ConnectionState.READY and len(self._load) < self._threads

    def recall(self) -> bool:
        """Ask the worker to return closures that wait behind one that takes too long.

        On the event loop only. Returns whether it may be worth calling again later.
        """
        waiting = self._load.waiting()
        if self._stream is None or not waiting:
            return False
        # If the worker's process or network is slow anyway, asking would make it slower.
        patience = max(RECALL_SECONDS, 4 * (self._latency.mean or 0.0))
        if asyncio.get_running_loop().time() - self._moved >= patience:
            # Half of them first: whatever holds the worker up may be over in a moment.
            first = 0 if self._load.stuck else len(waiting) // 2
            self._load.stuck = True
            self._moved += patience
            self._stream.send({"op": "recall", "ids": waiting[first:]})
        return True

    def _enter(self, state: ConnectionState) -> None:
        check_connection_transition(self.state, state)
        self.state = state
        if state is ConnectionState.LOST:
            self._stream = None

    def _note(self, kind: EventKind, text: str, closures: Sequence[Closure] = ()) -> None:
        message = f"worker {self.name!r} at {self.address} {text}"
        self._records.events.add(kind, message, self.name, closures)

    async def _watch(self) -> None:
        # Gives the worker up when it is silent, or drains, for too long. Ticks are counted rather
        # than clocks compared: if this process itself was frozen, the workers' messages still wait
        # to be read.
        silent = draining = 0.0
        while True:
            await asyncio.sleep(self._timeouts.beat)
            silent = 0.0 if self._heard else silent + self._timeouts.beat
            self._heard = False
            if silent >= self._timeouts.heartbeat:
                raise ConnectionError(f"no sign of life for {silent:g} s")
            if self.state is ConnectionState.DRAINING:
                draining += self._timeouts.beat
                if draining >= self._timeouts.drain:
                    raise ConnectionError(f"it leaves, and did not finish within {draining:g} s")

    async def _open(self) -> MessageStream:
        mode = self._services.mode
        async with asyncio.timeout(OPEN_TIMEOUT):
            comm = await self._connect(self.address)
            try:
                await comm.write(
                    {
                        "op": HANDLER,
                        "coordinator": self._queue.name,
                        "worker_index": self.index,
                        "num_workers": self.num_workers,
                        "beat": self._timeouts.beat,
                        "drain": self._timeouts.drain,
                        "strategy": self._services.strategy,
                        "exchange": mode.closures if isinstance(mode, Geo) else None,
                        "session": self._session,
                    }
                )
                reply = await comm.read()
                if not isinstance(reply, dict) or reply.get("status") != "OK":
                    # A worker that joined a moment ago has not got the plugin yet.
                    raise ConnectionError(f"the worker is not prepared for psnb: {reply!r}")
                self._threads = reply["threads"]
                self._load = Load(self._threads)
            except BaseException:
                comm.abort()
                raise
        return message_stream(comm)

    async def _start(self, stream: MessageStream) -> None:
        await asyncio.sleep(self._services.start_delay.seconds(self.index))
        self._stream = stream
        self.pump()

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

    def _tell_to_stop(self, stream: MessageStream) -> None:
        # No closure is put until all in flight have ended and the error was raised: so all of these
        # were put before that.
        in_flight = {closure.id for closure in self._load}
        new = in_flight - self._told_to_stop
        self._told_to_stop = in_flight
        if new:
            stream.send({"op": "cancel", "ids": sorted(new)})

    def _resource_messages(self) -> list[dict[str, Any]]:
        new, gone = self._services.resources.changes(self._known_resources)
        self._known_resources.update(number for number, _ in new)
        self._known_resources.difference_update(gone)
        messages: list[dict[str, Any]] = [
            {"op": "define", "id": number, "payload": payload} for number, payload in new
        ]
        if gone:
            messages.append({"op": "release", "ids": gone})
        return messages

    def _run_message(self, closures: list[Closure]) -> dict[str, Any]:
        functions = {}
        for closure in closures:
            function = closure.function
            if function.id not in self._functions:
                functions[function.id] = (function.name, function.payload)
            self._functions[function.id] = None
            self._functions.move_to_end(function.id)
        # Functions made anew for each call, in a loop say, must not pile up on the worker.
        forget = []
        while len(self._functions) > max(_KNOWN_FUNCTIONS, len(closures)):
            forget.append(self._functions.popitem(last=False)[0])
        return {
            "op": "run",
            "settled_below": self._queue.settled_below(),
            "layout": self._new_layout(),
            "workers": self.num_workers,
            "functions": functions,
            "forget": forget,
            "closures": [
                (
                    *(c.id, c.function.id, c.run.attempt, c.run.commit, c.run.round),
                    *(c.call.payload, c.call.inputs, self._leases.portions(c.id)),
                )
                for c in closures
            ],
        }

    def _new_layout(self) -> list[Any] | None:
        # A server that was taken for lost but lives answers as before until it hears of that:
        # closures that begin from now on must not ask it.
        layout = self._resolver.layout()
        if layout is None or layout.version == self._known_layout:
            return None
        self._known_layout = layout.version
        return layout.packed()

    async def _receive(self, stream: MessageStream) -> None:
        while True:
            self._handle(await stream.receive())

    def _handle(self, message: dict[str, Any]) -> None:
        self._heard = True
        if message["leaving"]:
            self.drain("is being closed by Dask")
        for when, values in message["reports"]:
            self._records.history.add(when, values)
        self._memory = message.get("memory", self._memory)
        if (asks := message.get("asks")) is not None and self._stream is not None:
            number, question = asks
            answer = self._answer(question)
            self._stream.send({"op": "told", "number": number, "answer": answer})
        outcomes = []
        for closure_id, ending, payload, seconds, pushed, staleness in message["results"]:
            closure = self._load.remove(closure_id)
            closure.function.duration.add(seconds)
            self._busy_seconds += seconds
            if ending is None:
                self._resolver.ask(closure, staleness, payload, pushed, self.name)
                continue
            outcomes.append((closure, bool(ending), payload, pushed))
            if staleness is not None:
                self._records.staleness.add(staleness)
            self._completed += ending
            self._failed += not ending
        if (flushed := message.get("flushed")) is not None:
            error, staleness = flushed
            if staleness is not None:
                self._records.staleness.add(staleness)
            if (undecided := message.get("undecided")) is None:
                self._flushed(error)
            else:
                self._resolver.ask_about(undecided, self._decided)
        if returned := message["returned"]:
            self._queue.give_back([self._load.remove(closure_id) for closure_id in returned])
        if message["results"]:
            self._measure([result[3] for result in message["results"]], outcomes)
            now = asyncio.get_running_loop().time()
            self._latency.add(max(0.0, now - self._moved - message["results"][0][3]))
            self._moved = now
            self._load.stuck = False
        self._end_if_drained()
        self.pump()
        # Last: it wakes those who wait for the outcomes, and they need the interpreter's lock.
        if outcomes:
            self._queue.settle(outcomes, self.name)

    def _answer(self, question: Sequence[Any]) -> Any:
        match question:
            case ("keep", closure_id, attempt, result):
                return self._load.keep(closure_id, attempt, result)
            case ("writes to", strategies):
                self._resolver.writes_to(strategies)
                return True
        return self._leases.answer(self, question)

    def _decided(self, applied: bool) -> None:
        # In a thread of the resolver's.
        error = b"" if applied else lost_exchange()
        self._loop.call_soon_threadsafe(self._flushed, error)

    def _measure(
        self, seconds: list[float], outcomes: list[tuple[Closure, bool, bytes, bool]]
    ) -> None:
        now = time.monotonic()
        self._ended.add(len(seconds), now)
        self._busy.add(sum(seconds), now)
        failed = sum(not succeeded for _, succeeded, _, _ in outcomes)
        self._records.timeline.add(self.index, seconds, failed, self._threads, time.time())

    def _busy_share(self, now: float) -> float:
        # The time of a closure is counted when it ends, even if it takes longer than the window.
        holds = min(len(self._load), self._threads)
        seconds = self._busy.value(now)
        if holds and not self._ended.value(now):
            seconds = float(holds)
        return min(1.0, seconds / self._threads)
