"""One attempt at a step of a closure, and the steps that follow each other in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from psnb._src.client.updates import Updates
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import Assignment, ClosureResult, Taken
from psnb._src.protocol.packing import Nothing, dumps, loads, shorten_call
from psnb._src.utils.phases import COMMIT, COMPUTE, PHASES, READ, start_clock
from psnb._src.worker.activity import Activity
from psnb._src.worker.context import Cancellation
from psnb._src.worker.lease_requests import LeaseInquiry, LeaseRequests
from psnb._src.worker.printing import end_printed_lines
from psnb._src.worker.reports import ReportedStates, with_weight
from psnb._src.worker.resources import Resources
from psnb._src.worker.taken import taken_in_vain

NO_TIME = [0.0] * len(PHASES)
"""How long what does nothing is in each phase, in seconds."""


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


# StepAttempt: one attempt at a step, from its call to its result.
#
# It belongs to the closure's thread until its commit is sent, and then to what takes the answer.


class StepAttempt:
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
    front, value : bytes
        The metrics that it has reported, packed, and its pickled result.
    staleness : int or None
        How stale its update was, as far as that is known.
    """

    def __init__(
        self,
        function: LoadedFunction,
        assignment: Assignment,
        updates: Updates,
        ask: Callable[[LeaseInquiry], Future[Any]],
        report: Callable[[Taken], object],
    ) -> None:
        self.clock = start_clock(READ)
        self.assignment, self.updates = assignment, updates
        number = assignment.number
        ranges = [each for each in assignment.ranges if each.closure == number]
        self.requests = LeaseRequests(number, ask, report, ranges, assignment.slot)
        self.states = ReportedStates()
        self.front = self.value = b""
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
        except StopIteration as error:
            # From a dataset that has nothing left: the closure has nothing to do.
            if not self.requests.ended or self.updates:
                raise
            if count := self.requests.taken.in_vain():
                raise taken_in_vain(count) from error
            return Nothing(self._function.name)
        finally:
            end_printed_lines()

    def pack(self, value: Any) -> None:
        """Pickle the result, if it is wanted, and the metrics."""
        self.clock.turn(COMMIT)
        if value is not None and self.assignment.results:
            self.value = dumps(value, f"the result of {self._function.name}")
        self.front = with_weight(self.states.attach(b""), self.updates.weight)

    def failed(self, error: BaseException, worker: str) -> ClosureResult:
        """Return the outcome if it has raised, or its commit was refused."""
        unread = self.assignment.payload and not (self._args or self._kwargs)
        call = "..." if unread else shorten_call(self._args, self._kwargs)
        where = (
            f"in closure {self._function.name}({call}) on worker {worker!r}, "
            f"attempt {self.assignment.attempt}"
        )
        packed = pack_error(error, where)
        return self._last(succeeded=False, payload=packed)

    def in_doubt(self, commit: tuple[str, int]) -> ClosureResult:
        """Return the outcome if nobody here can tell whether it is applied."""
        return self._last(succeeded=True, payload=self.front, in_doubt=commit)

    def _last(
        self, *, succeeded: bool, payload: bytes, in_doubt: tuple[str, int] | None = None
    ) -> ClosureResult:
        return ClosureResult(
            self.assignment.closure,
            0,
            True,
            succeeded,
            payload,
            (self.value,) if succeeded else (),
            sum(self.clock.seconds),
            succeeded and self.updates.pushed,
            () if self.staleness is None else (self.staleness,),
            in_doubt,
        )


# StepsUnderWay: the steps of one closure in one thread.


class StepsUnderWay:
    """Ends when its thread has, and the commits of its steps; thread-safe.

    Parameters
    ----------
    count : int
        How many steps there may be.
    cancellation : Cancellation
        Says when it must not go on.
    end : callable
        Called once, with this, when it has ended.

    Attributes
    ----------
    begun : int
        How many have begun; only the thread that does them asks.
    found_end : bool
        Whether one has found nothing to take.
    only : StepAttempt or None
        The one step that there is, if it has had its effect.
    last : ClosureResult or None
        That of a step that had no effect, or of which it is not known. Then no later one has any.
    phases : list of float
        How long that step was in each phase, in seconds.
    """

    def __init__(
        self, count: int, cancellation: Cancellation, end: Callable[[StepsUnderWay], None]
    ) -> None:
        self.begun, self.found_end = 0, False
        self.only: StepAttempt | None = None
        self.last: ClosureResult | None = None
        self.phases = NO_TIME
        self._count, self._cancellation, self._end = count, cancellation, end
        self._lock = threading.Lock()  # guards the number, for a moment each
        self._parts = 1  # its thread, and the steps whose outcome is to come

    def goes_on(self) -> bool:
        """Return whether it may do another step."""
        stop = self._cancellation.requested or self._cancellation.recalled or self.found_end
        return self.begun < self._count and not stop and self.last is None

    def begin_part(self) -> None:
        """Note that a step begins."""
        self.begun += 1
        with self._lock:
            self._parts += 1

    def end_part(self) -> None:
        """Note that a step's outcome is handed over, or that the thread does no more of them."""
        with self._lock:
            self._parts -= 1
            over = not self._parts
        if over:
            self._end(self)
