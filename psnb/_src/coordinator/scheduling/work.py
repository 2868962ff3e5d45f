"""Work: what is scheduled, from the queue to a worker and back. Pure, without Dask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from psnb._src.coordinator.closures.call import Call
from psnb._src.coordinator.closures.functions import Function
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.protocol.messages import TakenRange
from psnb._src.utils.interrupts import Lock
from psnb._src.worker.context import InputContext


@dataclass(slots=True, weakref_slot=True)
class Execution:
    """How a closure was executed so far; made when it is first taken, as many more wait.

    It lives as long as a worker may run the closure, as the worker's connection has it.

    Attributes
    ----------
    commit : int
        The number under which its writes are applied, once, whatever the attempt. Not the closure's
        id: what waits for long would make servers remember all that ended meanwhile. That of the
        next step.
    attempt : int
        1 for the first one, one more after each worker that was lost with the closure.
    deaths : int
        During how many of those losses it was probably running; its retries limit that.
    revoked : bool
        Whether it was cancelled while it ran: it counts if it has had its effect, and does
        not run again.
    round : int or None
        The round that it belongs to, if there are rounds.
    kept : dict of int to bytes
        By commit, a pickled result that a worker has sent before it.
    taken : tuple of InputContext and bytes, or None
        Where it has failed, and what it had taken from iterators there, pickled; if that is known.
    done : int
        How many steps are done.
    withdrawn : str
        Why it does not begin any more, if it does not.
    ranges : sequence of TakenRange
        What earlier attempts had taken from datasets: the present one takes that first.
    """

    commit: int
    attempt: int = 1
    deaths: int = 0
    revoked: bool = False
    round: int | None = None
    kept: dict[int, bytes] = field(default_factory=dict)
    taken: tuple[InputContext, bytes] | None = None
    done: int = 0
    withdrawn: str = ""
    ranges: Sequence[TakenRange] = ()


NOT_TAKEN = Execution(-1)
"""Shared by all closures that wait for the first time."""


class Work:
    """Calls of one function, one after the other: what waits, is sent to a worker and is settled.

    Each call is a *step*, which has a number and a commit of its own. What `schedule` is given is
    one step. `run_epoch` asks for many: their worker needs nothing of the notebook between them.

    Owned by the scheduler once it was put: only the event loop changes `execution`, the inputs of
    `call`, and the outcome in `remote`. There may be very many, so they share objects where they
    can.

    Attributes
    ----------
    id : int
        Unique within the coordinator; in the order of scheduling.
    first : int
        The number of the first step; the others follow.
    function : Function
        What to call.
    call : Call
        Its arguments.
    options : ScheduleOptions
        How to schedule it.
    granted : int
        How many steps it has. That is decided when a worker takes it first: as many of those that
        are asked for as keep that worker busy for a while.
    execution : Execution
        Its attempts; `NOT_TAKEN` until it is first taken.
    remote : RemoteValue
        What the caller holds.
    """

    __slots__ = ("call", "execution", "first", "function", "granted", "id", "options", "remote")

    def __init__(
        self,
        work_id: int,
        first: int,
        function: Function,
        call: Call,
        options: ScheduleOptions,
        remote: RemoteValue,
    ) -> None:
        self.id, self.first = work_id, first
        self.function, self.call, self.options, self.remote = function, call, options, remote
        self.granted, self.execution = 1, NOT_TAKEN

    @property
    def long(self) -> bool:
        """Whether many steps are asked for: then it waits behind others, and ends before them."""
        return self.options.steps > 1

    @property
    def left(self) -> int:
        """How many steps are granted and not done."""
        return self.granted - self.execution.done

    @property
    def number(self) -> int:
        """The number of the next step."""
        return self.first + self.execution.done

    @property
    def numbers(self) -> range:
        """The numbers of the steps that are not done."""
        return range(self.number, self.first + self.granted)

    @property
    def commits(self) -> range:
        """The numbers of their commits."""
        return range(self.execution.commit, self.execution.commit + self.left)

    def __str__(self) -> str:
        return f"{self.function.name} #{self.number}"


class Numbers:
    """Numbers of steps. Thread-safe.

    Parameters
    ----------
    first : int
        The first one.
    """

    def __init__(self, first: int = 0) -> None:
        self._lock = Lock()  # guards the next one, for a moment each
        self._next = first

    def take(self, count: int = 1) -> int:
        """Reserve ``count`` consecutive numbers; return the first."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first

    @property
    def next(self) -> int:
        """The first that is not reserved; any thread."""
        return self._next
