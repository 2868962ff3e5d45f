"""What a coordinator's `WorkerConnection` and its `Session` on a worker say to each other. Pure.

The connection opens the session with a `SessionOpening`. From then on either side sends what it has
at any time, and waits for nothing but answers to questions. Closures and their results travel in
batches of whatever is there.

On the wire (`pack_message`, `unpack_message`) a message is a tuple: the number of its type, and its
fields. So are the closures and the results in a batch. There may be 25,000 of them a second, and
pickle takes three times as long for objects of a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import astuple

HANDLER = "psnb_session"
"""The name of the handler on each Dask worker that a `SessionOpening` is sent to."""


class SessionOpening(Struct, frozen=True):
    """What a session must know from the beginning; it travels as a Dask message."""

    coordinator: str  # unique in the cluster; closures commit under this name
    worker_index: int
    num_workers: int  # what closures see in their context
    beat: float  # seconds between the worker's signs of life
    drain: float  # seconds that closures get to end when the worker leaves
    strategy: str  # whose updates go by rounds or local copies, if the mode has such
    exchange: int | None  # with local copies: after how many closures changes are sent
    session: int  # unique among the coordinator's sessions


class Portion(Struct, frozen=True, gc=False):
    """Elements of a leased dataset that a closure takes."""

    epoch: int
    split: int
    state: Any  # of the split's iterator, before them
    count: int


class Assignment(Struct, frozen=True, gc=False):
    """A closure that the worker is to run."""

    closure: int  # the same for all its attempts, as is `commit`
    function: str  # its id
    attempt: int  # from 1
    commit: int  # the number of its commit
    round: int | None  # the round that it takes part in, if the mode has rounds
    payload: bytes  # its pickled arguments; empty if there are none
    inputs: Sequence[bytes]  # the pickled values of other closures among them
    portions: Sequence[Portion]  # what earlier attempts have taken: this one takes the same


class RunClosures(Struct, frozen=True, gc=False):
    """Run closures."""

    settled_below: int  # all closures with a smaller number of commit have ended
    layout: list[Any] | None  # where the shards are, packed, if the worker does not know it yet
    workers: int  # how many there are now
    functions: dict[str, tuple[str, bytes]]  # new ones by id: name, and pickled
    forget: Sequence[str]  # functions that the worker need not know any more
    closures: list[Assignment]  # in the order in which they are to be run


class RecallClosures(Struct, frozen=True, gc=False):
    """Return those of these closures that are not begun."""

    closures: Sequence[int]


class CancelClosures(Struct, frozen=True, gc=False):
    """Likewise, and tell the others that nobody wants their results any more."""

    closures: Sequence[int]


class FlushCopies(Struct, frozen=True, gc=False):
    """Send the servers the updates that the worker has kept."""


class DefineResource(Struct, frozen=True, gc=False):
    """Make a per-worker value."""

    number: int
    payload: bytes  # the pickled call that makes it


class ReleaseResources(Struct, frozen=True, gc=False):
    """Forget per-worker values."""

    numbers: Sequence[int]


class TakeAnswer(Struct, frozen=True, gc=False):
    """The answer to the question with that number."""

    number: int
    answer: Any


class ClosureResult(Struct, frozen=True, gc=False):
    """What became of a closure."""

    closure: int
    succeeded: bool  # it returned; else it raised
    payload: bytes  # its pickled value or exception
    seconds: float  # how long it took
    pushed: bool  # it has pushed gradients
    staleness: int | None  # of its update, if there is one


class ClosureResults(Struct, frozen=True, gc=False):
    """Closures have ended, or have reported."""

    reports: list[tuple[float, dict[str, float]]]  # when, and values by name
    results: list[ClosureResult]


class ClosureUndecided(Struct, frozen=True, gc=False):
    """A closure has returned, and the worker cannot tell whether its commit is applied.

    The notebook asks the servers. The other fields are those of a `ClosureResult`.
    """

    closure: int
    payload: bytes
    seconds: float
    pushed: bool
    commit: tuple[str, int]  # writer and number


class ClosuresReturned(Struct, frozen=True, gc=False):
    """These closures are not begun, and not going to be."""

    closures: Sequence[int]


class CopiesFlushed(Struct, frozen=True, gc=False):
    """The servers have the updates that the worker has kept, or will not get them."""

    error: bytes  # the pickled exception that says why not; empty if they have them
    staleness: int | None  # of this update, if there is one


class FlushUndecided(Struct, frozen=True, gc=False):
    """The worker cannot tell whether its commit of the kept updates is applied."""

    commit: tuple[str, int]  # writer and number


class SignOfLife(Struct, frozen=True, gc=False):
    """The worker lives."""

    memory: int  # bytes that its process takes


class WorkerLeaves(Struct, frozen=True, gc=False):
    """Dask closes the worker: send no more closures."""


class AskLease(Struct, frozen=True, gc=False):
    """What may this worker read now? Answered with a `Lease`, or None for nothing."""

    epoch: int


class Lease(Struct, frozen=True, gc=False):
    """Elements of a leased dataset that only this worker reads."""

    number: int
    split: int
    state: Any  # of the split's iterator, to begin with
    count: int | None  # how many; None for all up to the split's end
    owned: Sequence[int]  # the splits that this worker must have, if they are in workers' memory


class TakeElements(Struct, frozen=True, gc=False):
    """May a closure take the next elements of a lease? False if the worker was given up."""

    epoch: int
    lease: int  # its number
    closure: int
    count: int  # 0 if only the end was found
    before: Any  # the state of the split's iterator before and after them
    after: Any
    ended: bool  # the lease has no elements after them


class KeepResult(Struct, frozen=True, gc=False):
    """Keep a value that is too large for servers to remember. False if that attempt is not here.

    It comes before the commit of the closure.
    """

    closure: int
    attempt: int
    result: bytes


class AnnounceStrategies(Struct, frozen=True, gc=False):
    """Note that parameters of other strategies are going to be written. Always true."""

    strategies: Sequence[str]


Inquiry = AskLease | TakeElements | KeepResult | AnnounceStrategies
"""What a closure asks the coordinator."""


class QuestionAsked(Struct, frozen=True, gc=False):
    """A closure asks; the answer is to have the same number."""

    number: int
    inquiry: Inquiry


ToWorker = (
    RunClosures
    | RecallClosures
    | CancelClosures
    | FlushCopies
    | DefineResource
    | ReleaseResources
    | TakeAnswer
)
"""What the connection says."""

ToNotebook = (
    ClosureResults
    | ClosureUndecided
    | ClosuresReturned
    | CopiesFlushed
    | FlushUndecided
    | SignOfLife
    | WorkerLeaves
    | QuestionAsked
)
"""What the session says."""

_TYPES = (*get_args(ToWorker), *get_args(ToNotebook), *get_args(Inquiry))
_NUMBERS = {each: number for number, each in enumerate(_TYPES)}

_BATCHED = {RunClosures: Assignment, ClosureResults: ClosureResult}
"""Of what the last field of a message is a list."""


def pack_message(message: ToWorker | ToNotebook | Inquiry) -> tuple[Any, ...]:
    """Return what is sent for a message."""
    kind = type(message)
    fields = astuple(message)
    if kind in _BATCHED:
        fields = (*fields[:-1], [astuple(each) for each in fields[-1]])
    elif isinstance(message, QuestionAsked):
        fields = message.number, pack_message(message.inquiry)
    return (_NUMBERS[kind], *fields)


def unpack_message(packed: Sequence[Any]) -> Any:
    """Return the message for which something was sent.

    Raises
    ------
    ConnectionError
        If there is no such message: the other end has another version of psnb.
    """
    try:
        number, *fields = packed
        kind = _TYPES[number]
        if kind in _BATCHED:
            item = _BATCHED[kind]
            fields[-1] = [item(*each) for each in fields[-1]]
        elif kind is QuestionAsked:
            fields[-1] = unpack_message(fields[-1])
        return kind(*fields)
    except (IndexError, TypeError, ValueError) as error:
        text = f"not a message of this version of psnb: {str(packed)[:80]}"
        raise ConnectionError(text) from error


def exchange_writer(coordinator: str, session: int) -> str:
    """Return the name under which a session commits the updates of several closures."""
    return f"{coordinator}/{session}"
