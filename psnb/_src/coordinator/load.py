"""Load: which closures a worker has, and whether it should get more. Pure.

A worker gets one closure for each thread, and beyond that enough short ones to hide the network's
round trip, and the way of each one's commit to the servers. Long closures, and those of functions
of which none has ended yet, are not sent ahead: another worker may be free first. A closure is
expected to take as long as others of its function.
"""

from __future__ import annotations

import enum
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from psnb._src.cluster.scaling import Demand
from psnb._src.coordinator.closures import NOT_TAKEN, Duration, Work
from psnb._src.coordinator.leases import LeaseRegistry
from psnb._src.coordinator.resolve import Resolver
from psnb._src.coordinator.scheduler import QueueStatistics, Scheduler
from psnb._src.coordinator.values import ResourceRegistry
from psnb._src.monitor.counters import Rate
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.monitor.viewed import Records
from psnb._src.placement.layout import Layout
from psnb._src.protocol import messages
from psnb._src.protocol.modes import Geo, Mode
from psnb._src.utils.checks import seconds
from psnb._src.utils.profiling import PHASES, PhaseStatistics, Stages
from psnb._src.worker.context import InputContext
from psnb.errors import InternalError

AHEAD_SECONDS = 0.1
"""Seconds of work that waits on a worker behind each thread's; a longer closure counts as long."""

LONG_SECONDS = 0.5
"""The same for long ones, and what steps one of them is granted: these need nothing of the
notebook, and it ends with any of them when something else is to be done."""

SPREAD_SECONDS = 0.001
"""The same while other workers are idle: less work is not worth messages to more of them."""

RECALL_SECONDS = 0.2
"""Seconds without any outcome after which closures that wait on a worker go elsewhere.

Behind a long one, whose steps are reported now and then only, as long as that takes.
"""

MOST_AHEAD = 256

_NEXT_TO_NOTHING = 1e-6


class Load:
    """The closures that were sent to one worker and have not come back.

    Belongs to the event loop; other threads may ask for `len`.

    Parameters
    ----------
    threads : int
        Closures that the worker runs at the same time.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._closures: dict[int, tuple[Work, float]] = {}  # in the order of their sending
        self._seconds = 0.0  # what the short ones take together
        self._long = 0
        self.refused = False  # there was no room for a closure that waits
        self.stuck = False  # closures sent as short are long: send nothing ahead
        self.ahead, self.long_seconds = AHEAD_SECONDS, LONG_SECONDS
        self._moved = 0.0  # when closures last came or went
        self._latency = Duration()  # of an answer beyond the time that its closure took

    def __len__(self) -> int:
        return len(self._closures)

    def __iter__(self) -> Iterator[Work]:
        """Iterate over the closures in the order in which the worker got them."""
        return (closure for closure, _ in self._closures.values())

    def __contains__(self, closure: object) -> bool:
        return isinstance(closure, Work) and closure.id in self._closures

    def add(self, closure: Work) -> bool:
        """Add a closure if there is room for it, and return whether there was.

        A long one that is new is granted as many steps as are expected to take `LONG_SECONDS`, or
        longer if there are many workers.
        """
        expected, ahead = closure.function.duration.mean, self.ahead
        if closure.long and ahead > 0.0:  # else there is a gate
            if closure.execution is NOT_TAKEN and expected is not None:
                closure.granted = self._steps(expected, closure.options.steps)
            ahead = self.long_seconds if ahead == AHEAD_SECONDS else ahead
        if expected is None or expected > AHEAD_SECONDS:
            expected = math.inf
        else:
            expected *= closure.left
        if len(self._closures) >= self.threads and not self._ahead(expected, ahead):
            self.refused = True
            return False
        self._closures[closure.id] = closure, expected
        if expected is math.inf:
            self._long += 1
        else:
            self._seconds += expected
        return True

    def full(self) -> bool:
        """Return whether there is no room for any closure; note it, as `add` does."""
        ahead = self.long_seconds if self.ahead == AHEAD_SECONDS else self.ahead
        full = len(self._closures) >= self.threads and not self._ahead(_NEXT_TO_NOTHING, ahead)
        self.refused = self.refused or full
        return full

    def find(self, closure_id: int) -> Work:
        """Return a closure that is here."""
        return self._closures[closure_id][0]

    def advance(self, closure_id: int, steps: int) -> None:
        """Note that the next steps of one that goes on are done; before it is changed."""
        closure, expected = self._closures[closure_id]
        if expected is not math.inf and closure.left:
            less = expected * steps / closure.left
            self._closures[closure_id] = closure, expected - less
            self._seconds -= less

    def remove(self, closure_id: int) -> Work:
        """Remove a closure that came back, in whatever way."""
        closure, expected = self._closures.pop(closure_id)
        if expected is math.inf:
            self._long -= 1
        else:
            # Sums of floats drift: start from zero whenever there is nothing.
            self._seconds = self._seconds - expected if self._closures else 0.0
        return closure

    def keep(self, closure_id: int, attempt: int, commit: int, result: bytes) -> bool:
        """Keep the result that a closure is going to return; False if that attempt is not here."""
        closure, _ = self._closures.get(closure_id, (None, 0.0))
        if closure is None or closure.execution.attempt != attempt:
            return False
        closure.execution.kept[commit] = result
        return True

    def note_taken(self, closure_id: int, place: InputContext, elements: bytes) -> None:
        """Note what a closure that is here has taken from iterators, and where; it has failed."""
        closure, _ = self._closures[closure_id]
        closure.execution.taken = place, elements

    def waiting(self) -> list[int]:
        """Return the ids of the closures that should wait behind those on the worker's threads."""
        return list(islice(self._closures, self.threads, None))

    def long(self) -> list[int]:
        """Return the ids of the long ones."""
        return [closure.id for closure in self if closure.long]

    def sent(self, now: float) -> None:
        """Note that closures were sent, at a time in seconds."""
        self._moved = now

    def answered(self, now: float, seconds: float, *, held: bool = False) -> None:
        """Note that closures have ended, the first of which took ``seconds``.

        What was ``held`` back, as the steps of long ones are, says nothing of how slow the worker
        is.
        """
        if not held:
            self._latency.add(max(0.0, now - self._moved - seconds))
        self._moved = now
        self.stuck = False

    def overdue(self, now: float) -> list[int]:
        """Return the ids of closures that have waited for too long, and might run elsewhere."""
        waiting = self.waiting()
        # If the worker's process or network is slow anyway, asking would make it slower.
        patience = max(RECALL_SECONDS, 4 * (self._latency.mean or 0.0))
        if any(closure.long for closure in islice(self, self.threads)):
            patience = max(patience, self.long_seconds)  # its reports are held back, for less
        if not waiting or now - self._moved < patience:
            return []
        # Half of them first: whatever holds the worker up may be over in a moment.
        first = 0 if self.stuck else len(waiting) // 2
        self.stuck = True
        self._moved += patience
        return waiting[first:]

    def clear(self) -> list[Work]:
        """Remove all closures and return them in the order in which they were sent."""
        return [self.remove(closure_id) for closure_id in list(self._closures)]

    def _steps(self, expected: float, most: int) -> int:
        return max(1, min(most, int(self.long_seconds / max(expected, _NEXT_TO_NOTHING))))

    def _ahead(self, expected: float, ahead: float) -> bool:
        # Work that waits must not wait behind something long.
        free = self.threads - self._long
        first = islice(self._closures.values(), self.threads)
        run = sum(seconds for _, seconds in first if seconds is not math.inf)
        return (
            not self.stuck
            and len(self._closures) < self.threads + MOST_AHEAD
            # What runs counts if it takes longer than what may wait.
            and self._seconds - min(run, ahead * self.threads) + expected <= ahead * free
        )


# Workload: how much a coordinator's closures need of the cluster, measured by polls. Pure.


class Workload:
    """Measures demand; used from one thread.

    Parameters
    ----------
    unknown : float
        Seconds that a closure is expected to take, as long as none has ended.
    """

    def __init__(self, unknown: float) -> None:
        self._unknown = unknown
        # By the address of a worker that holds closures: how many had ended there, and since when.
        self._since: dict[str, tuple[int, float]] = {}

    def measure(
        self, queue: QueueStatistics, workers: Sequence[WorkerStatistics], now: float
    ) -> Demand:
        """Return the demand now.

        Parameters
        ----------
        queue : QueueStatistics
            How much waits and runs.
        workers : sequence of WorkerStatistics
            What each worker has done and has in flight.
        now : float
            Seconds on a monotonic clock.
        """
        before, self._since = self._since, {}
        for worker in workers:
            if worker.in_flight:
                ended = worker.completed + worker.failed
                known = before.get(worker.address)
                self._since[worker.address] = (
                    known if known is not None and known[0] == ended else (ended, now)
                )
        running = max((now - since for _, since in self._since.values()), default=0.0)
        closures = queue.queued + queue.in_flight
        return Demand(
            closures,
            closures * self._seconds_per_closure(workers, running),
            frozenset(self._since),
        )

    def _seconds_per_closure(self, workers: Sequence[WorkerStatistics], running: float) -> float:
        ended = sum(worker.completed + worker.failed for worker in workers)
        if ended:
            return sum(worker.busy_seconds for worker in workers) / ended
        # As Dask guesses for its tasks: one that has run for a while is half done.
        return max(self._unknown, 2 * running)


# StartDelay: workers that begin one after the other. Pure.


@dataclass(frozen=True, slots=True)
class StartDelay:
    """How long a worker waits before it takes its first closure.

    After TensorFlow's environment variables ``TF_COORDINATOR_SCHEDULE_START_DELAY`` and
    ``TF_COORDINATOR_SCHEDULE_START_DELAY_MAX``.

    Attributes
    ----------
    step : float
        Seconds that each worker waits longer than the one before it.
    most : float
        Seconds that a worker waits at most.

    Raises
    ------
    ConfigurationError
        If one of them is negative or not a number.
    """

    step: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        step = seconds("start_delay", self.step, zero=True)
        most = seconds("start_delay_max", self.most, zero=True, infinite=True)
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "most", most)

    def seconds(self, index: int) -> float:
        """Return how many seconds the worker of an index waits."""
        return min(index * self.step, self.most)


# Timeouts: how long a coordinator waits for its workers. Pure.

HEARTBEAT = 10.0
"""Seconds, by default, that a worker may give no heartbeat."""

DRAIN = 30.0
"""Seconds, by default, that a leaving worker may take to finish its closures."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a coordinator waits for its workers.

    Attributes
    ----------
    worker : float or None
        How long queued work waits while there is no worker at all; None waits for ever.
    heartbeat : float
        How long a worker may be unresponsive, or missing though closures wait for it.
    drain : float
        How long a worker that leaves may take to finish its closures.

    Raises
    ------
    ConfigurationError
        If one of them is not a positive number.
    """

    worker: float | None = None
    heartbeat: float = HEARTBEAT
    drain: float = DRAIN

    def __post_init__(self) -> None:
        for name in ("worker", "heartbeat", "drain"):
            value = getattr(self, name)
            if name != "worker" or value is not None:
                object.__setattr__(self, name, seconds(f"{name}_timeout", value))

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats of a worker: several fit into ``heartbeat``."""
        return min(1.0, self.heartbeat / 4)


class Services(NamedTuple):
    """What connections need from their coordinator.

    Attributes
    ----------
    scheduler : Scheduler
        Where closures come from.
    resources : ResourceRegistry
        The per-worker values that workers must have.
    leases : LeaseRegistry
        Answers what workers ask about leased datasets.
    resolver : Resolver
        Finds out whether lost closures had their effect.
    records : Records
        Where reports and events are recorded.
    timeouts : Timeouts
        How long to wait for workers.
    start_delay : StartDelay
        When a worker takes its first closure.
    mode : Mode
        The update mode.
    strategy : str
        The strategy whose updates follow the mode; those to parameters of another one are made at
        once.
    lost : callable
        Returns what of the strategy's parameters no server has, and the way on; empty if all have
        one.
    """

    scheduler: Scheduler
    resources: ResourceRegistry
    leases: LeaseRegistry
    resolver: Resolver
    records: Records
    timeouts: Timeouts
    start_delay: StartDelay
    mode: Mode
    strategy: str
    lost: Callable[[], str]

    def opening(self, name: str, index: int, workers: int, session: int) -> messages.SessionOpening:
        """Return what a worker must know from the beginning; see `SessionOpening`."""
        return messages.SessionOpening(
            coordinator=self.scheduler.name,
            worker_name=name,
            worker_index=index,
            num_workers=workers,
            beat=self.timeouts.beat,
            drain=self.timeouts.drain,
            strategy=self.strategy,
            exchange=self.mode.closures if isinstance(self.mode, Geo) else None,
            session=session,
        )


# WorkerKnowledge: what a worker was sent, so that it is sent only what is new.
#
# Belongs to the event loop.

_MOST_FUNCTIONS = 512


class WorkerKnowledge:
    """Makes the messages that say what one worker runs, and with what.

    Parameters
    ----------
    services : Services
        Where what there is comes from.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._functions: OrderedDict[str, None] = OrderedDict()
        self._resources: set[int] = set()
        self._layout = 0  # its version

    def new_resources(self) -> Iterator[messages.ToWorker]:
        """Yield the messages by which the worker makes and forgets per-worker values."""
        new, gone = self._services.resources.changes(self._resources)
        self._resources.update(number for number, _ in new)
        self._resources.difference_update(gone)
        for number, payload in new:
            yield messages.DefineResource(number, payload)
        if gone:
            yield messages.ReleaseResources(gone)

    def run(self, closures: list[Work], workers: int) -> messages.RunClosures:
        """Return what has the worker run closures; see `RunClosures` for ``workers``."""
        functions = {}
        for closure in closures:
            function = closure.function
            if function.id not in self._functions:
                functions[function.id] = (function.name, function.payload)
            self._functions[function.id] = None
            self._functions.move_to_end(function.id)
        # Functions created for each call, in a loop say, must not pile up on the worker.
        forget = []
        while len(self._functions) > max(_MOST_FUNCTIONS, len(closures)):
            forget.append(self._functions.popitem(last=False)[0])
        return messages.RunClosures(
            self._new_layout(),
            workers,
            functions,
            forget,
            self._assignments(closures),
        )

    def _assignments(self, closures: list[Work]) -> list[messages.Assignment]:
        make = messages.Assignment
        return [
            make(
                each.id,
                each.function.id,
                each.number,
                each.left,
                each.options.results,
                each.execution.attempt,
                each.execution.commit,
                each.execution.round,
                each.call.payload,
                each.call.inputs,  # type: ignore[arg-type]  # all are there, or it would wait
                self._ranges(each),
                each.options.slot,
            )
            for each in closures
        ]

    def _ranges(self, closure: Work) -> Sequence[messages.TakenRange]:
        if closure.execution.attempt == 1:
            return ()
        ranges = self._services.leases.ranges
        return [each for number in closure.numbers for each in ranges(number)]

    def _new_layout(self) -> Layout | None:
        # A server that was taken for lost but lives answers as before until it knows that:
        # closures that begin from now on must not ask it.
        layout = self._services.resolver.layout
        if layout.version == self._layout:
            return None
        self._layout = layout.version
        return layout


# The states of a connection and the transitions between them. Pure.


class ConnectionState(enum.Enum):
    """The state of a connection."""

    CONNECTING = "connecting"
    """The worker has not answered yet."""
    READY = "ready"
    """The worker gets closures."""
    DRAINING = "draining"
    """The worker leaves: it gets no new closures and finishes those that it has."""
    RETIRED = "retired"
    """The worker has finished its closures and left; the connection has ended."""
    LOST = "lost"
    """The worker has died, or left before it had finished; the connection has ended."""

    @property
    def ended(self) -> bool:
        """Whether the connection has ended."""
        return self in (ConnectionState.RETIRED, ConnectionState.LOST)


_TRANSITIONS = {
    ConnectionState.CONNECTING: {ConnectionState.READY, ConnectionState.LOST},
    ConnectionState.READY: {ConnectionState.DRAINING, ConnectionState.LOST},
    ConnectionState.DRAINING: {ConnectionState.RETIRED, ConnectionState.LOST},
    ConnectionState.RETIRED: set(),
    ConnectionState.LOST: set(),
}


def check_connection_transition(old: ConnectionState, new: ConnectionState) -> None:
    """Raise InternalError unless a connection may go from ``old`` to ``new``."""
    if new not in _TRANSITIONS[old]:
        raise InternalError(f"a connection cannot go from {old.value} to {new.value}")


# WorkerFigures: what one worker has done. The event loop writes, any thread reads.

_SAME = 0.5
"""Seconds by which the beginning of one and the same activity may seem to differ."""


class WorkerFigures:
    """Counts what one worker does.

    Parameters
    ----------
    name, address : str
        The worker.
    index : int
        Its index among the coordinator's workers.

    Attributes
    ----------
    memory : int or None
        Bytes that its process takes, if they are known.
    activity : str
        What it does, if that takes long.
    stages : dict of str to Stages
        What it has read, by the kind of the chain.
    """

    def __init__(self, name: str, address: str, index: int) -> None:
        self._name, self._address, self._index = name, address, index
        self.memory: int | None = None
        self.activity = ""
        self.stages: dict[str, Stages] = {}
        self._since: float | None = None
        self._completed = self._failed = 0
        self._busy_seconds = 0.0
        self._ended, self._busy = Rate(), Rate()  # closures, and the seconds that they took
        self._phases = PhaseStatistics()
        self._phases_lately = [Rate() for _ in PHASES]

    def add(self, seconds: Sequence[float], completed: int, failed: int) -> None:
        """Count closures that have ended.

        Parameters
        ----------
        seconds : sequence of float
            How long each took, also of those of which it is not known yet how they ended.
        completed, failed : int
            How many have succeeded, and how many have raised.
        """
        now, total = time.monotonic(), sum(seconds)
        self.note_activity("", 0.0)  # one that still runs comes with the next heartbeat
        self._ended.add(len(seconds), now)
        self._busy.add(total, now)
        self._busy_seconds += total
        self._completed += completed
        self._failed += failed

    def add_phases(self, seconds: Sequence[float]) -> None:
        """Count how long closures that have ended were in each phase."""
        now = time.monotonic()
        self._phases = PhaseStatistics.sum([self._phases, PhaseStatistics(*seconds)])
        for rate, each in zip(self._phases_lately, seconds, strict=True):
            rate.add(each, now)

    def note_activity(self, activity: str, seconds: float) -> None:
        """Note what the worker does, and for how long already; empty for nothing."""
        since = time.time() - seconds
        # The same as before, by clocks that differ a little?
        if not activity or self._since is None or abs(since - self._since) > _SAME:
            self._since = since if activity else None
        self.activity = activity

    def snapshot(self, state: ConnectionState, in_flight: int, threads: int) -> WorkerStatistics:
        """Return the figures now.

        Parameters
        ----------
        state : ConnectionState
            The state of the connection.
        in_flight : int
            Closures that the worker has.
        threads : int
            Closures that it runs at the same time.
        """
        now = time.monotonic()
        return WorkerStatistics(
            name=self._name,
            address=self._address,
            index=self._index,
            state=state.value,
            in_flight=in_flight,
            completed=self._completed,
            failed=self._failed,
            busy_seconds=self._busy_seconds,
            closures_per_second=self._ended.value(now),
            busy=self._busy_share(now, min(in_flight, threads), threads),
            memory=self.memory,
            activity=self.activity if state is not ConnectionState.LOST else "",
            running_since=self._since if state is not ConnectionState.LOST else None,
            stages=dict(self.stages),
            phases=self._phases,
            phases_lately=PhaseStatistics(*(each.value(now) for each in self._phases_lately)),
        )

    def _busy_share(self, now: float, running: int, threads: int) -> float:
        # The time of a closure is counted when it ends, even if it takes longer than the window.
        seconds = self._busy.value(now)
        if running and not self._ended.value(now):
            seconds = float(running)
        return min(1.0, seconds / threads)
