"""What a coordinator's `WorkerConnection` and its `Session` on a worker say to each other. Pure.

The connection opens the session with a `SessionOpening`. From then on either side sends what it has
at any time, and waits for nothing but answers to questions. Closures and their results travel in
batches of whatever is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct

from psnb._src.placement.layout import Layout
from psnb._src.transport.stream import Message
from psnb._src.utils.checks import integer
from psnb._src.utils.profiling import Stages
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

HANDLER = "psnb_session"
"""The name of the handler on each Dask worker that a `SessionOpening` is sent to."""


class SessionOpening(Struct, frozen=True):
    """What a session must know from the beginning; it travels as a Dask message."""

    coordinator: str  # unique in the cluster; closures commit under this name
    worker_name: str  # what people call the worker, if Dask has no name for it
    worker_index: int
    num_workers: int  # what closures see in their context
    beat: float  # seconds between the worker's heartbeats
    drain: float  # seconds that closures get to end when the worker leaves
    strategy: str  # whose updates go by rounds or local copies, if the mode has such
    exchange: int | None  # with local copies: after how many closures changes are sent
    session: int  # unique among the coordinator's sessions


def held_seconds(workers: int) -> float:
    """Return for how long each worker holds back what steps of its runs have done.

    So that the notebook hears twenty times a second, and of hundreds of workers more: what is shown
    of one should not be older than five seconds.
    """
    return min(max(0.4, 0.05 * workers), 5.0)


class TakenRange(Struct, frozen=True, gc=False):
    """Elements of a leased dataset that a closure takes."""

    closure: int  # the number of its step
    epoch: int
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
    ranges: Sequence[TakenRange]  # what earlier attempts have taken: this one takes the same
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
    """Return those of these closures that are not begun; the others end with the step they do."""

    closures: Sequence[int]


class CancelClosures(ToWorker, frozen=True):
    """Likewise, and tell the others that their results are not wanted any more."""

    closures: Sequence[int]


class RevokeClosure(ToWorker, frozen=True):
    """Return this closure if it is not begun; else it must write nothing any more."""

    closure: int


class FlushCopies(ToWorker, frozen=True):
    """Send the servers the updates that the worker has kept."""


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
    ended: bool  # else it goes on
    succeeded: bool  # else the step behind them raised, and it has ended
    payload: bytes  # the metrics that they have reported; or the pickled exception
    values: Sequence[bytes]  # what each has returned, pickled, if it is wanted
    seconds: float  # how long they took together
    pushed: bool  # they have pushed gradients
    staleness: Sequence[int]  # of their updates, if there are any
    # Writer and number of the commit of one more step that has returned, which may be applied or
    # not: the notebook asks the servers. What is above is that step's then.
    in_doubt: tuple[str, int] | None = None


EFFECTIVE = -1
"""In place of a closure in `Taken`: steps that have had their effect."""


class Taken(NamedTuple):
    """What a closure has taken next from a lease.

    A worker reports it in the order in which it was taken, and before the closure's result. Before
    that, the closure may have had its effect: so the servers have it, too, beside the commit.
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
    activity: str  # what it does; empty if nothing, or nothing that takes long
    seconds: float  # for how long already


class ChainsRead(ToNotebook, frozen=True):
    """What the worker has read has news: with heartbeats, and when it runs out of closures."""

    stages: dict[str, Stages]  # of chains that have changed, by kind


class WorkerLeaves(ToNotebook, frozen=True):
    """Dask closes the worker: send no more closures."""


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
    owned: Sequence[int]  # the splits that this worker must have, if they are in workers' memory


class BeginLease(Inquiry, frozen=True):
    """May a closure take from a lease, from the split's beginning? False if it was given up.

    Asked once, before anything is taken: the order of elements may be drawn by lot, and then this
    state alone says which are left. If the rows of a partition are not those of which another part
    was read, the answer is a text that says so.
    """

    epoch: int
    lease: int
    state: Any  # of the split's iterator
    partitions: list[list[Any]]  # that it reads: number, rows and checksum of each


class ReturnLease(Inquiry, frozen=True):
    """Lease this again: what is left of it could not be read here. Always true."""

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
    """A closure asks; the answer is to have the same number."""

    number: int
    inquiry: Inquiry


def exchange_writer(coordinator: str, session: int) -> str:
    """Return the name under which a session commits the updates of several closures."""
    return f"{coordinator}/{session}"


# Update modes: when the pushes of closures are applied, and what closures read. Pure.
#
# These are plain descriptions. By them `psnb._src.coordinator` decides when closures begin, and
# `psnb._src.server` and `psnb._src.client` decide what happens to a push.


@dataclass(frozen=True)
class Mode:
    """How the updates of several workers are combined; see the subclasses."""


@dataclass(frozen=True)
class Async(Mode):
    """The updates of a closure are applied when it ends, whatever the others do; the default.

    Each closure that returns counts exactly once: all its writes, on all servers, are applied from
    one of its attempts. Of a closure that raises, nothing is applied. By the time a closure's
    writes are applied, what it has read may be out of date by any number of updates;
    ``coordinator.statistics().staleness`` measures how many. No worker waits for another.

    As TensorFlow's ``ParameterServerStrategyV2`` and Paddle's ``a_sync``; Dean et al., *Large Scale
    Distributed Deep Networks*, NIPS 2012.
    """


@dataclass(frozen=True)
class Sync(Mode):
    """Closures run in rounds; the average of what a round pushes is one update.

    All closures of a round read the same parameters: none begins before the previous round has
    ended and was applied. For each variable and embedding that was pushed, a round is one step of
    the optimizer, with the mean of the gradients of the closures of the round that pushed anything,
    each weighted by what its batch counts; in an embedding the gradients of equal ids are summed.
    ``clipnorm`` applies to that mean. So the result equals, up to rounding, that of one process
    that trains on the batches of a round joined into one, where the loss is a mean.

    *Weights.* Models know what their batches count, such as the number of examples; other closures
    say it: ``psnb.push(..., weight=len(batch))``. All pushes of a closure have one weight, the
    largest that is given, and 1 without any. One that has a weight and pushes nothing is among
    those by which is divided. If all weights are 0, closures count the same.

    The result is the same to the last digit each time, whichever worker
    is faster or dies. `ClusterCoordinator.run_epoch`, and a `Trainer` with `Hogwild`, also put the
    same batches of a leased dataset into each round, if its shuffles have a seed: its splits belong
    to as many slots as a round has closures, and a worker keeps an iterator for each that it reads.

    The cost: a round takes as long as its slowest closure plus one round trip, and servers keep the
    pushes in memory until the round is applied.

    A closure whose worker is lost runs again within its round, and counts once. A closure that
    raises does not count: the others of its round are applied. `ClusterCoordinator.join`, ``done``
    and ``drain`` end a round that is not full; so checkpoints are complete after them. In a
    closure, ``assign`` and similar writes take effect at its end, as in other modes; its reads do
    not see its own pushes; ``push(immediate=True)`` is refused. A push from the notebook takes
    effect at once.

    A round is applied on all servers or on none. It can be lost although its closures have
    returned: if the coordinator is closed before, or if a server is lost when the round should be
    applied; then ``join`` raises. An unresponsive server is waited for.

    Chen et al., *Revisiting Distributed Synchronous SGD*, 2016 (without its backup workers);
    TensorFlow's ``SyncReplicasOptimizer``.

    Parameters
    ----------
    closures : int, optional
        Closures in a round; by default the number of workers when the strategy is made.

    Raises
    ------
    ConfigurationError
        If it is below 1.
    """

    closures: int | None = None

    def __post_init__(self) -> None:
        if self.closures is not None:
            _require(self, "closures", self.closures, 1)


@dataclass(frozen=True)
class BoundedStaleness(Mode):
    """As `Async`, but no update is staler than a bound.

    The staleness of an update is the number of updates by other closures that were applied between
    what its closure read first and its own commit. A closure waits to begin until no running
    closure, itself included, could then exceed the bound. So the bound holds whichever worker is
    slow; ``coordinator.statistics().staleness`` shows it. With 0, one closure runs at a time.

    The cost: at most ``updates + 1`` closures run at the same time, and workers wait for a closure
    that takes much longer than the others.

    After Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server*, NIPS 2013. There each worker has a clock, and the bound is on how far the fastest may
    be ahead of the slowest. Here closures go to any free worker, so the bound is on updates. With
    their slack of ``c`` clocks, ``w`` workers reach a staleness of ``(w - 1) * (2 * c + 1)``
    updates.

    Parameters
    ----------
    updates : int
        The bound. With ``w - 1`` or more, ``w`` workers with one thread each can all work at once.

    Raises
    ------
    ConfigurationError
        If it is below 0.
    """

    updates: int

    def __post_init__(self) -> None:
        _require(self, "updates", self.updates, 0)


@dataclass(frozen=True)
class Geo(Mode):
    """Workers train their own copies, and send the changes after every few closures.

    In a closure, reads come from a copy on its worker: the whole shard of a variable, and the rows
    of an embedding that were asked for, each fetched when first used. When the closure ends, its
    pushes are applied to that copy, by the parameter's own optimizer. After every ``closures``
    closures of a worker, the difference to what was fetched, divided by the number of workers, is
    added to the parameters, exactly once. The optimizer's state moves by the same share towards the
    worker's, and the copy is dropped. `ClusterCoordinator.join`, ``done`` and ``drain`` make
    workers send their changes, and so does a worker that leaves, so checkpoints after them are
    complete.

    With one worker the result equals that of `Async`, up to rounding. With more workers it is
    another algorithm: fewer messages, and parameters that are up to ``closures`` closures behind on
    each worker. Only pushes are averaged: ``assign`` and similar writes, and the shows and clicks
    of a `CtrAccessor`, are made unchanged on the servers, with the same exchange. (Later closures
    of the worker see ``assign`` and similar writes at once.) In a closure, ``push(immediate=True)``
    changes the copy at once; other writes with ``immediate=True`` change the servers at once.

    An exchange is one commit: all writes of its closures are applied, on all servers, or none is.
    So a closure counts wholly or is lost wholly. It can be lost although it has returned: if its
    worker dies before the exchange, if a server is lost or unresponsive during it, or if the
    coordinator is closed before. At most ``closures`` closures are lost in this way for each thread
    of a worker. Closures that were running on a dead worker run again elsewhere, unless they were
    exchanged. A closure that raises has written nothing and changes no copy.

    After Paddle's ``geo`` mode (``a_sync_configs = {"k_steps": k}``), where optimizers keep their
    state on the workers.

    Parameters
    ----------
    closures : int
        How many closures a worker runs between two exchanges.

    Raises
    ------
    ConfigurationError
        If it is below 1.
    """

    closures: int

    def __post_init__(self) -> None:
        _require(self, "closures", self.closures, 1)


MODES: dict[str, type] = {each.__name__: each for each in (Async, BoundedStaleness, Geo, Sync)}
"""All modes by name."""


def check_mode(mode: object) -> Mode:
    """Return the mode, or raise ConfigurationError if it is not a mode."""
    if isinstance(mode, Mode) and type(mode) is not Mode:
        return mode
    raise ConfigurationError(
        "mode must be psnb.Async(), psnb.Sync(), psnb.BoundedStaleness(updates) or "
        f"psnb.Geo(closures), found {shown(mode)}"
    )


def _require(mode: Mode, name: str, value: object, least: int) -> None:
    """Make a field of a frozen mode an int, or raise ConfigurationError."""
    object.__setattr__(mode, name, integer(f"{shown(mode)}: {name}", value, least))
