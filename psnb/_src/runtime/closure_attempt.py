"""ClosureAttempt: one attempt at a closure, from its call to its result.

It belongs to the closure's thread until its commit is sent, and then to whoever takes the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from psnb._src.parameters import Updates
from psnb._src.phases import COMMIT, COMPUTE, READ, start_clock
from psnb._src.runtime.leasing import LeaseRequests
from psnb._src.runtime.loaded_function import LoadedFunction
from psnb._src.runtime.packing import Nothing, dumps, loads, pack_error, shorten_call
from psnb._src.runtime.printed_lines import end_printed_lines
from psnb._src.runtime.reported_states import ReportedStates
from psnb._src.runtime.resources import Resources
from psnb._src.runtime.session_messages import AskLease, Assignment, ClosureResult, TakeElements


class ClosureAttempt:
    """What an attempt was given, has taken and written, and what came of it.

    Parameters
    ----------
    function : LoadedFunction
        What is called.
    assignment : Assignment
        What the coordinator said of it.
    updates : Updates
        Takes its writes.
    ask : callable
        Asks the coordinator for what it reads.

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
    succeeded : bool
        False once `fail` was called.
    packed : bytes
        The pickled result, or the error that `fail` was given.
    staleness : int or None
        How stale its update was, as far as that is known.
    """

    def __init__(
        self,
        function: LoadedFunction,
        assignment: Assignment,
        updates: Updates,
        ask: Callable[[AskLease | TakeElements], Future[Any]],
    ) -> None:
        self.clock = start_clock(READ)
        self.assignment, self.updates = assignment, updates
        self.requests = LeaseRequests(assignment.closure, ask, assignment.portions, assignment.lane)
        self.states = ReportedStates()
        self.succeeded, self.packed = True, b""
        self.staleness: int | None = None
        self._function = function
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}

    def call(self, resources: Resources) -> Any:
        """Call the function and return what it returns; raises what it raises."""
        given = self.assignment
        if given.payload:
            self._args, self._kwargs = loads(given.payload, resources.get, given.inputs)
        function = self._function.get()
        self.clock.turn(COMPUTE)
        try:
            return function(*self._args, **self._kwargs)
        except StopIteration:
            # From a dataset that has nothing left: the closure has nothing to do.
            if not self.requests.ended or self.updates:
                raise
            return Nothing(self._function.name)
        finally:
            end_printed_lines()

    def pack(self, value: Any) -> None:
        """Pickle the result."""
        self.clock.turn(COMMIT)
        packed = b"" if value is None else dumps(value, f"the result of {self._function.name}")
        self.packed = self.states.attach(packed)

    def fail(self, error: BaseException, worker: str) -> None:
        """Have the error as what came of it."""
        unread = self.assignment.payload and not (self._args or self._kwargs)
        call = "..." if unread else shorten_call(self._args, self._kwargs)
        where = (
            f"in closure {self._function.name}({call}) on worker {worker!r}, "
            f"attempt {self.assignment.attempt}"
        )
        self.succeeded, self.packed = False, pack_error(error, where)

    @property
    def pushed(self) -> bool:
        """Whether it has sent gradients, and succeeded."""
        return self.succeeded and self.updates.pushed

    def result(self) -> ClosureResult:
        """Return what came of it."""
        return ClosureResult(
            self.assignment.closure,
            self.succeeded,
            self.packed,
            sum(self.clock.seconds),
            self.pushed,
            self.staleness,
        )
