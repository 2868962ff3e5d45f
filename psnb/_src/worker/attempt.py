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
from psnb._src.worker.context import Cancellation, Stop
from psnb._src.worker.lease_requests import LeaseInquiry, LeaseRequests
from psnb._src.worker.printing import end_printed_lines
from psnb._src.worker.reports import ReportedStates, with_weight
from psnb._src.worker.resources import Resources
from psnb._src.worker.taken import taken_in_vain
from psnb.errors import ClosureCancelledError, ConfigurationError

NO_TIME = [0.0] * len(PHASES)
"""How long what does nothing is in each phase, in seconds."""

_RETURNED_NONE = (b"",)
"""The values of a step that has returned None: one object, as most do."""


MOST_IN_VAIN = 1_000
"""Steps of an epoch in a row that ask for no element; a step may skip some."""


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
        self._in_vain = 0  # steps of an epoch, in a row, that have asked for no element

    def get(self) -> Callable[..., Any]:
        """Return the function; for closure threads."""
        if self._function is None:
            with self._lock, Activity(f"loading {self._short}"):  # with all modules that it needs
                if self._function is None:
                    self._function = loads(self._payload, self._resources.get)
        return self._function

    def require_asking(self, asked: bool) -> None:
        """Note whether a step of an epoch has asked for an element: an epoch ends when all do.

        Raises
        ------
        ConfigurationError
            If many in a row have not.
        """
        self._in_vain = 0 if asked else self._in_vain + 1
        if self._in_vain >= MOST_IN_VAIN:
            raise ConfigurationError(
                f"{self.name} has run {MOST_IN_VAIN:,} times without taking anything from its "
                "iterator, so the epoch would never end: batch = next(iterator)"
            )


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
        What its time goes to; it runs from the beginning.
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
            value = function(*self._args, **self._kwargs)
            if given.steps > 1 or given.slot is not None:  # of an epoch
                asked = bool(self.requests.used) or self.requests.ended
                self._function.require_asking(asked)
            return value
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
        self.front = with_weight(self.states.packed(), self.updates.weight)

    def failed(self, error: BaseException, worker: str) -> ClosureResult:
        """Return the outcome if it has raised, or its commit was refused."""
        unread = self.assignment.payload and not (self._args or self._kwargs)
        call = "..." if unread else shorten_call(self._args, self._kwargs)
        where = (
            f"in closure {self._function.name}({call}) on worker {worker!r}, "
            f"attempt {self.assignment.attempt}"
        )
        seconds = sum(self.clock.seconds)
        packed = pack_error(error, where)
        return ClosureResult(
            self.assignment.closure, 0, True, False, packed, (), seconds, False, ()
        )

    def returned(self, in_doubt: tuple[str, int] | None = None) -> ClosureResult:
        """Return the outcome with which its closure ends.

        Parameters
        ----------
        in_doubt : tuple of str and int, optional
            Its commit, if nobody here can tell whether that is applied.
        """
        return ClosureResult(
            self.assignment.closure,
            int(in_doubt is None),
            True,
            True,
            self.front,
            (self.value,) if self.value else _RETURNED_NONE,
            sum(self.clock.seconds),
            self.updates.pushed,
            () if self.staleness is None else (self.staleness,),
            in_doubt,
        )


class StepsUnderWay(Cancellation):
    """What is asked of a closure that has not ended, and how far its steps are.

    They have their outcomes in their order, so nothing here is changed by two threads at a time.

    Attributes
    ----------
    begun, handed_over : int
        How many have begun, and have handed over their outcome.
    over : bool
        Whether no more of them begin.
    last : ClosureResult or None
        With what it ends: that of its only step; or of one that had no effect, or of which it is
        not known, after which no other has any.
    phases : list of float
        How long that step was in each phase, in seconds.
    open : bool
        Whether the closure has not ended; what takes this out of the object's dict ends it.
    """

    begun = handed_over = 0
    over = False
    last: ClosureResult | None = None
    phases = NO_TIME

    def __init__(self) -> None:
        self.open = True

    def require_wanted(self) -> None:
        """Raise ClosureCancelledError if it must write nothing any more."""
        if self.stop >= Stop.UNWRITTEN:
            raise ClosureCancelledError("the closure was cancelled while it ran")

    def go_on(self) -> bool:
        """Return whether another step may begin."""
        return not (self.over or self.stop or self.last)
