"""What a coordinator's `WorkerConnection` and its `Session` on a worker say to each other. Pure.

The connection opens the session with a `SessionOpening`. From then on either side sends at any
time, and waits only for answers to questions. Closures and their results travel in batches, as many
as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct

from psnb._src.placement.layout import Layout
from psnb._src.transport.message import Message
from psnb._src.utils.stages import Stages

HANDLER = "psnb_session"
"""The name of the handler on each Dask worker that a `SessionOpening` is sent to."""


class SessionOpening(Struct, frozen=True):
    """What a session must know from the beginning; it travels as a Dask message."""

    coordinator: str  # unique in the cluster; closures commit under this name
    worker_name: str  # what people call the worker, if Dask has no name for it
    worker_index: int
    num_workers: int  # what closures see in their context
    beat: float  # seconds between the worker's heartbeats, at first
    drain: float  # seconds that closures get to end when the worker leaves
    strategy: str  # whose updates go by rounds or local copies, if the mode has such
    exchange: int | None  # with local copies: after how many closures changes are sent
    session: int  # unique among the coordinator's sessions


def held_seconds(workers: int) -> float:
    """Return for how long each worker holds back the reports of its steps.

    The notebook gets twenty reports a second, and more with hundreds of workers: no worker's
    figures should be older than five seconds.
    """
    return min(max(0.4, 0.05 * workers), 5.0)


class TakenRange(Struct, frozen=True, gc=False):
    """Elements of a leased dataset that an earlier attempt at a step has taken.

    They are leased to the next attempt alone, which takes them first, or some of them.
    """

    closure: int  # the number of its step
    epoch: int
    lease: int  # its number
    split: int
    state: Any  # of the split's iterator, before them
    count: int


class Assignment(Struct, frozen=True, gc=False):
    """A closure that the worker is to run: some calls of a function, the steps."""

    closure: int  # its id, the same for all its attempts, as are the numbers of commits
    function: str  # its id
    number: int  # of the next step; the others follow
    steps: int  # how many it may do
    results: bool  # whether what they return is wanted
    attempt: int  # from 1
    commit: int  # the number of the next step's commit; the others follow
    round: int | None  # the round that it takes part in, if the mode has rounds
    payload: bytes  # its pickled arguments; empty if there are none
    inputs: Sequence[bytes]  # the pickled values of other closures among them
    ranges: Sequence[TakenRange]  # what this attempt takes first
    slot: int | None  # of an ordered epoch: it takes from this one


class ToWorker(Message, frozen=True):
    """What the connection says."""


class RunClosures(ToWorker, frozen=True):
    """Run closures."""

    batch: ClassVar = Assignment

    layout: Layout | None  # where the shards are, if the worker does not know it yet
    workers: int  # how many there are now
    functions: dict[str, tuple[str, bytes]]  # new ones by id: name, and pickled
    forget: Sequence[str]  # functions that the worker need not know any more
    closures: list[Assignment]  # in the order in which they are to be run


class RecallClosures(ToWorker, frozen=True):
    """Return closures that are not begun; the others end with their present step."""

    closures: Sequence[int]


class CancelClosures(ToWorker, frozen=True):
    """Likewise, and tell the others that their results are not wanted any more."""

    closures: Sequence[int]


class RevokeClosure(ToWorker, frozen=True):
    """Return this closure if it is not begun; else it must write nothing any more."""

    closure: int


class FlushCopies(ToWorker, frozen=True):
    """Send the servers the updates that the worker has kept."""


class BeatEvery(ToWorker, frozen=True):
    """Give a heartbeat every so many seconds."""

    seconds: float


class UseThreads(ToWorker, frozen=True):
    """Run ``count`` closures at the same time."""

    count: int | None  # None for as many as the Dask worker has threads


class DefineResource(ToWorker, frozen=True):
    """Make a per-worker value."""

    number: int
    payload: bytes  # the pickled call that makes it


class ReleaseResources(ToWorker, frozen=True):
    """Forget per-worker values."""

    numbers: Sequence[int]


class TakeAnswer(ToWorker, frozen=True):
    """The answer to the question with that number."""

    number: int
    answer: Any


class ToNotebook(Message, frozen=True):
    """What the session says."""


class ClosureResult(Struct, frozen=True, gc=False):
    """What the next steps of a closure have come to."""

    closure: int
    steps: int  # how many are done
    ended: bool  # else it continues
    succeeded: bool  # else the step behind them raised, and it has ended
    payload: bytes  # the metrics that they have reported; or the pickled exception
    values: Sequence[bytes]  # what each has returned, pickled, if it is wanted
    seconds: float  # how long they took together
    pushed: bool  # they have pushed gradients
    staleness: Sequence[int]  # of their updates, if there are any
    # Writer and number of the commit of one more step that has returned, which may be applied or
    # not: the notebook asks the servers. The fields above are that step's then.
    in_doubt: tuple[str, int] | None = None


EFFECTIVE = -1
"""In place of a closure in `Taken`: steps whose writes were applied.

Those that wrote nothing keep their numbers: only the notebook can say whether they count.
"""


class Taken(NamedTuple):
    """What a closure has taken next from a lease.

    A worker reports elements in the order in which they were taken, and before the closure's
    result. The closure may have had its effect even earlier: so the servers have them, too, next to
    the commit.
    """

    epoch: int
    lease: int  # its number
    closure: int
    at: int  # how many elements of the lease were taken before these
    size: int  # how many these are; 0 if only the end was found
    after: Any  # the state of the split's iterator after them
    ended: bool  # the lease has no elements after them


class ClosureResults(ToNotebook, frozen=True):
    """Closures have taken elements, have reported or have ended."""

    batch: ClassVar = ClosureResult

    taken: list[Taken]
    reports: list[tuple[float, dict[str, float]]]  # when, and values by name
    phases: list[float]  # seconds that these closures were in each of `PHASES`
    results: list[ClosureResult]


class ElementsTaken(ToNotebook, frozen=True):
    """What a closure has taken from its iterators that has failed; it comes before its result."""

    closure: int
    elements: (
        bytes  # the pickled `ConsumedInputs` of each, by its number; empty if they were too much
    )


class ClosuresReturned(ToNotebook, frozen=True):
    """These closures are not begun, and not going to be."""

    closures: Sequence[int]


class CopiesFlushed(ToNotebook, frozen=True):
    """The servers have the updates that the worker has kept, or will not get them."""

    error: bytes  # the pickled exception that says why not; empty if they have them
    staleness: int | None  # of this update, if there is one


class FlushUndecided(ToNotebook, frozen=True):
    """The worker cannot tell whether its commit of the kept updates is applied."""

    commit: tuple[str, int]  # writer and number


class SignOfLife(ToNotebook, frozen=True):
    """The worker lives."""

    memory: int  # bytes that its process takes
    gpu_memory: int | None  # of GPUs; None if it uses none
    cpu_seconds: float  # of all its threads so far
    activity: str  # what it does; empty if nothing, or nothing that takes long
    seconds: float  # for how long already


class LinesWritten(ToNotebook, frozen=True):
    """Lines that a closure has printed, warned of or logged."""

    lines: list[tuple[float, str, str]]  # time, closure and text


class ChainsRead(ToNotebook, frozen=True):
    """Changed statistics of datasets: with heartbeats, and when the worker runs out of closures."""

    stages: dict[str, Stages]  # of chains that have changed, by kind


class WorkerLeaves(ToNotebook, frozen=True):
    """Dask closes the worker: stop sending closures."""


class Inquiry(Message, frozen=True):
    """What a closure asks the coordinator."""


class AskLease(Inquiry, frozen=True):
    """What may this worker read now? Answered with a `Lease`, or None for nothing."""

    epoch: int
    closure: int
    slot: int | None  # the closure's, in an ordered epoch


class Lease(Struct, frozen=True, gc=False):
    """Elements of a leased dataset that only this worker reads."""

    number: int
    split: int
    state: Any  # of the split's iterator, to begin with
    count: int | None  # how many; None for all up to the split's end
    # If splits are in workers' memory: those that this worker must have by now, and did not before.
    owned: Sequence[int]


class BeginLease(Inquiry, frozen=True):
    """May a closure take from a lease, from the split's beginning? False if it was given up.

    Asked once, before anything is taken: the order of elements may be random, and then only this
    state says which are left. If a partition no longer has the rows of which a part was read
    before, the answer is a text that says so.
    """

    epoch: int
    lease: int
    state: Any  # of the split's iterator
    partitions: list[list[Any]]  # that it reads: number, rows and checksum of each


class ReturnLease(Inquiry, frozen=True):
    """Lease this again: the rest of it could not be read here. Always true."""

    epoch: int
    lease: int


class KeepResult(Inquiry, frozen=True):
    """Keep a value that is too large for servers to remember. False if that attempt is not here.

    It comes before the commit of the closure.
    """

    closure: int
    attempt: int
    commit: int
    result: bytes


class AnnounceStrategies(Inquiry, frozen=True):
    """Note that parameters of other strategies are going to be written. Always true."""

    strategies: Sequence[str]


class QuestionAsked(ToNotebook, frozen=True):
    """A closure asks; the answer has the same number."""

    number: int
    inquiry: Inquiry


def exchange_writer(coordinator: str, session: int) -> str:
    """Return the name under which a session commits the updates of several closures."""
    return f"{coordinator}/{session}"
