"""Leased datasets inside a worker: iterators that ask the coordinator which part to read.

Closure threads share an iterator. What a closure takes is reported to the coordinator in its order,
with results or within `HELD_SECONDS`, and travels with the closure's commit: so when this worker
dies, either the coordinator knows of it, or the servers do, or it has had no effect.

In an epoch that has an order, each closure takes from a slot, and there is an iterator for each
slot that was read here. The closure asks first whether that is where the slot is, as another worker
may have read on.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from psnb._src.protocol.messages import (
    EFFECTIVE,
    AskLease,
    BeginLease,
    Lease,
    ReturnLease,
    Taken,
    TakenRange,
)
from psnb._src.protocol.packing import dumps
from psnb._src.utils.ownership import owned
from psnb._src.utils.profiling import READ, counted_as
from psnb._src.utils.text import counted
from psnb.errors import (
    ClosureCancelledError,
    ClosureInputError,
    ConfigurationError,
    DatasetError,
    SerializationError,
)

logger = logging.getLogger("psnb")

# TakenElements: what a closure has taken from its worker's iterators, for when it fails. Pure.
#
# They are kept until the closure ends, unless they are too much, and sent to the notebook only if
# it has failed: `Failure.rerun` gives them to it again.

MOST_BYTES = 8 << 20
"""Bytes of elements that are kept of one closure; one that takes more loses all."""

MOST_ELEMENTS = 64
"""Elements that are kept, likewise."""

_KEPT_ANYWAY = 64
"""Bytes that anything counts for that does not say its size."""


class ConsumedInputs(NamedTuple):
    """What was taken from one iterator.

    Attributes
    ----------
    elements : list
        In the order in which they were taken.
    ended : bool
        Whether the iterator was found at its end after them.
    """

    elements: list[Any]
    ended: bool


class TakenElements:
    """What one attempt at a closure takes; for its thread only.

    Attributes
    ----------
    counts : Counter
        How many elements of each iterator, also if they were too much to be kept.
    """

    def __init__(self) -> None:
        # By the iterators' identity: whoever takes from one holds it.
        self._taken: dict[int, tuple[object, list[Any]]] = {}
        self._ended: set[int] = set()
        self._leased: set[int] = set()
        self.counts: Counter[int] = Counter()
        self._bytes = 0
        self._too_much = False

    def add(self, iterator: object, element: Any, *, leased: bool = False) -> None:
        """Note that an element was taken; one that is leased is used once an epoch."""
        self.counts[id(iterator)] += 1
        if leased:
            self._leased.add(id(iterator))
        if self._too_much:
            return
        self._bytes += size(element)
        if self.counts.total() > MOST_ELEMENTS or self._bytes > MOST_BYTES:
            self._drop()
            return
        try:
            kept = owned(element)  # a step may change it in place
        except ConfigurationError:
            self._drop()
            return
        self._taken.setdefault(id(iterator), (iterator, []))[1].append(kept)

    def _drop(self) -> None:
        self._too_much = True
        self._taken.clear()

    def end(self, iterator: object) -> None:
        """Note that an iterator was found at its end."""
        self._taken.setdefault(id(iterator), (iterator, []))
        self._ended.add(id(iterator))

    def in_vain(self, before: Counter[int] | None = None) -> int:
        """Return how many elements would be lost if the step ended here without an effect.

        Those of an iterator that goes on without end, such as one of noise beside the data, are no
        loss.

        Parameters
        ----------
        before : Counter, optional
            What `counts` was when the step began; by default there was nothing.
        """
        taken = self.counts - (before or Counter())
        return sum(count for key, count in taken.items() if key in self._leased | self._ended)

    def packed(self, number_of: Callable[[object], int | None]) -> bytes:
        """Return the pickled `ConsumedInputs` of each iterator by number, or b"" if not kept."""
        if self._too_much:
            return b""
        taken = {
            number_of(iterator): ConsumedInputs(elements, key in self._ended)
            for key, (iterator, elements) in self._taken.items()
        }
        try:
            packed = dumps(taken, "what the closure has taken")
        except SerializationError:
            return b""
        # Elements that do not say their size have counted as small.
        return packed if len(packed) <= MOST_BYTES else b""


def taken_in_vain(count: int) -> ClosureInputError:
    """Return the error that a step has ended with StopIteration although it had taken elements.

    They would count as used, and have had no effect.
    """
    return ClosureInputError(
        f"the step had taken {counted(count, 'element')} when it found no more, and let the "
        "StopIteration through: what it had taken would count as used, without any effect. Take "
        "those behind the first with next(iterator, None), and train on what there is; or take one "
        "element a call, of a dataset in larger batches"
    )


def size(element: Any) -> int:
    """Return about how many bytes an element takes."""
    if isinstance(element, dict):
        return sum(map(size, element.values()), _KEPT_ANYWAY)
    if isinstance(element, list | tuple):
        return sum(map(size, element), _KEPT_ANYWAY)
    if isinstance(element, str | bytes):
        return len(element)
    nbytes = getattr(element, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else _KEPT_ANYWAY


class ReplayedInputs:
    """Stands for a worker's iterator where a failed closure is run again.

    Parameters
    ----------
    taken : Taken, optional
        What there is; nothing if the closure has not come to it.
    """

    def __init__(self, taken: ConsumedInputs | None) -> None:
        taken = taken or ConsumedInputs([], ended=False)
        self._left: Iterator[Any] = iter(taken.elements)
        self._count, self._ended = len(taken.elements), taken.ended

    def __iter__(self) -> ReplayedInputs:
        return self

    def __next__(self) -> Any:
        for element in self._left:
            return element
        if self._ended:
            raise StopIteration
        raise ClosureInputError(
            f"the closure had taken {counted(self._count, 'element')} from this iterator when it "
            "failed, and asks for more now: those behind them are not here"
        )


class NotReplayable:
    """Stands likewise for an iterator of which no elements are here.

    Parameters
    ----------
    why : str
        Why not.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def __iter__(self) -> NotReplayable:
        return self

    def __next__(self) -> Any:
        raise ClosureInputError(
            f"what the closure had taken from this iterator cannot be had: {self._why}"
        )


LeaseInquiry = AskLease | BeginLease | ReturnLease

ASK_TIMEOUT = 60.0
"""Seconds in which the coordinator must answer; if it cannot, the session ends long before."""


class LeaseRequests:
    """What one attempt at a closure takes from leased datasets; for its thread only.

    Parameters
    ----------
    closure : int
        The closure.
    ask : callable
        Sends a question to the coordinator, if there are slots after all that was reported before,
        and returns the answer's future.
    report : callable
        Takes what is to be reported to the coordinator; does not wait.
    ranges : sequence of TakenRange
        What earlier attempts have taken: this one begins with it.
    slot : int, optional
        Where it takes from, in an epoch that has an order.

    Attributes
    ----------
    slot : int or None
        As given.
    ended : bool
        Whether some dataset had nothing to take.
    latest : str
        Which element was taken last, from any dataset, for messages; empty if none was.
    used : list of Taken
        What was taken from leases that is not being taken again.
    taken : TakenElements
        What was taken, from leased and from other iterators.
    replays : dict of int to _Replay
        By epoch, the range that is being taken again.
    """

    def __init__(
        self,
        closure: int,
        ask: Callable[[LeaseInquiry], Future[Any]],
        report: Callable[[Taken], object],
        ranges: Iterable[TakenRange],
        slot: int | None = None,
    ) -> None:
        self._closure, self._ask, self._report, self.slot = closure, ask, report, slot
        self._again = deque(ranges)
        self._given: set[tuple[int, int]] = set()  # epochs and numbers of leases
        self.used: list[Taken] = []
        self.ended = False
        self.latest = ""
        self.taken = TakenElements()
        self.replays: dict[int, _Replay] = {}

    def again(self, epoch: int) -> TakenRange | None:
        """Return the next range to be taken again from an epoch."""
        for range_ in self._again:
            if range_.epoch == epoch:
                self._again.remove(range_)
                return range_
        return None

    def lease(self, epoch: int) -> Lease | None:
        """Ask for a lease; None if there is nothing to read now."""
        found: Lease | None
        found = self._ask(AskLease(epoch, self._closure, self.slot)).result(ASK_TIMEOUT)
        if found is not None:
            self._given.add((epoch, found.number))
        return found

    def begin(self, epoch: int, lease: int, iterator: Iterated) -> None:
        """Say where a lease begins.

        Raises
        ------
        ClosureCancelledError
            If the coordinator has given this worker up.
        DatasetError
            If what it reads has changed since another part of it was read.
        """
        asked = BeginLease(epoch, lease, iterator.state(), iterator.partitions())
        answer = self._ask(asked).result(ASK_TIMEOUT)
        if isinstance(answer, str):
            raise DatasetError(answer)
        if not answer:
            raise ClosureCancelledError("the coordinator has given this worker up")

    def return_(self, epoch: int, lease: int) -> None:
        """Have what is left of a lease leased again; does not wait."""
        self._ask(ReturnLease(epoch, lease))

    def may_read(self, epoch: int, lease: int) -> bool:
        """Return whether this may take from a lease: one of a slot only if it was given to it."""
        return self.slot is None or (epoch, lease) in self._given

    def take(self, epoch: int, lease: int, at: int, size: int, after: Any, ended: bool) -> None:
        """Note that the next elements of a lease are taken; see `Taken`."""
        taken = Taken(epoch, lease, self._closure, at, size, after, ended)
        self.used.append(taken)
        self._report(taken)


def joined(taken: list[Taken], effective: set[int]) -> list[Taken]:
    """Join what steps of runs have taken side by side, those that have had their effect."""
    if not effective:
        return taken
    found: list[Taken] = []
    for each in taken:
        if each.closure in effective:
            each = each._replace(closure=EFFECTIVE)
            last = found[-1] if found else None
            if (
                last is not None
                and last[:3] == each[:3]
                and last.at + last.size == each.at
                and not last.ended
            ):
                found[-1] = each._replace(at=last.at, size=last.size + each.size)
                continue
        found.append(each)
    return found


class Iterated(Protocol):
    """An iterator with a state."""

    def __next__(self) -> Any:
        """Return the next element."""

    def state(self) -> Any:
        """Return where it is."""

    def partitions(self) -> list[list[Any]]:
        """Return number, rows and checksum of each partition that was read."""

    def latest(self) -> str:
        """Return which element came last, for messages."""

    def close(self) -> None:
        """End what it has opened, also while another thread is in `__next__`: that one ends it."""


class Split(Protocol):
    """A dataset that can be read from a given state on."""

    def iterator(self, state: Any = None) -> Iterated:
        """Return an iterator."""


@dataclass
class _OpenLease:
    """A lease that is being read."""

    number: int
    split: int
    left: int | None
    iterator: Iterated | None  # None: to be made, with the state
    state: Any = None
    ahead: AheadIterator | None = None  # the iterator, if it is one
    at: int = 0  # how many elements were taken
    slow: int = 0  # how many of them took longer than `WORTH_AHEAD`


@dataclass
class _Replay:
    """A range that a closure takes again."""

    split: int
    iterator: Iterated
    left: int


class _Slot:
    """Where the closures of one slot take from; all that have none share one."""

    def __init__(self) -> None:
        # A turn: one thread at a time asks for the slot's lease, and is in its iterator. So it is
        # held while the coordinator is asked, and while a remote file is read: a waiter
        # wants just the result of that, and nothing else is under it.
        self.turn = threading.Lock()
        self.lease: _OpenLease | None = None  # what is being read
        self.slow = False  # whether most elements of the last lease have taken `WORTH_AHEAD`


WORTH_AHEAD = 0.002
"""Seconds: if most elements of a lease take as long, those of the next one are read ahead.

To hand an element from thread to thread takes 0.1 ms, and up to 0.4 if both threads want the
interpreter all the time. Not from within a lease: what a generator has opened may belong to the
thread that began it.
"""


# Protocols: `psnb._src.worker.read_ahead` needs the context, which refers to this module.


class AheadIterator(Iterated, Protocol):
    """One that is read ahead."""

    @property
    def seconds(self) -> float:
        """What it took to read the element that was taken last."""


class ReadAhead(Protocol):
    """Reads ahead.

    Attributes
    ----------
    slowest : float
        Seconds that the slowest element so far has taken.
    """

    slowest: float

    def iterate(self, make: Callable[[], Iterated], count: int | None) -> AheadIterator:
        """Return an iterator that is made, and read, elsewhere; ``count`` elements at most."""

    def wait(self) -> None:
        """Wait until nothing is being read."""


class LeasedSplitReader:
    """An epoch over the splits that this worker leases; closure threads share it.

    Parameters
    ----------
    splits : sequence of Split
        All splits of the dataset.
    epoch : int
        The epoch's number.
    lease_requests : callable
        Returns the `LeaseRequests` of the calling thread's closure.
    prepare : callable
        Makes sure that this worker has given splits.
    ahead : callable, optional
        Returns what reads ahead, where slots have no order: those of an order move from worker to
        worker. None: nothing is read ahead.
    """

    def __init__(
        self,
        splits: Sequence[Split],
        epoch: int,
        lease_requests: Callable[[], LeaseRequests],
        prepare: Callable[[Sequence[int]], None] = lambda splits: None,
        ahead: Callable[[], ReadAhead] | None = None,
    ) -> None:
        self._splits, self._epoch = splits, epoch
        # Both belong to whose turn it is in the slot without an order.
        self._make_ahead: Callable[[], ReadAhead] | None = ahead
        self._ahead: ReadAhead | None = None
        self._slowest = 0.0  # seconds, of all elements so far
        self._lease_requests, self._prepare = lease_requests, prepare
        self._slots: dict[int | None, _Slot] = {}  # `setdefault` alone changes it, atomically

    def __iter__(self) -> LeasedSplitReader:
        return self

    @counted_as(READ)
    def __next__(self) -> Any:
        requests = self._lease_requests()
        replay = self._replay(requests)
        if replay is not None:
            element = self._next_again(requests, replay)
        else:
            slot = self._slots.setdefault(requests.slot, _Slot())
            with slot.turn:
                while (found := self._next(requests, slot)) is None:
                    self._get_lease(requests, slot)
            (element,) = found
        requests.taken.add(self, element, leased=True)
        return element

    def _get_lease(self, requests: LeaseRequests, slot: _Slot) -> None:
        """Get a lease and begin with it; if that fails, whoever asks next begins with it."""
        lease = requests.lease(self._epoch)
        if lease is None:
            requests.ended = True
            requests.taken.end(self)
            raise StopIteration
        before = slot.lease  # that of another closure, if there are slots
        if before is not None:
            if before.number == lease.number:
                return
            _close(before)
        try:
            slot.lease = self._begin(requests, lease, slot.slow and requests.slot is None)
        except BaseException:  # whatever a dataset raises: nobody else knows of this lease
            requests.return_(self._epoch, lease.number)
            raise

    def _begin(self, requests: LeaseRequests, lease: Lease, worth_ahead: bool) -> _OpenLease:
        self._prepare(lease.owned)
        make = partial(self._splits[lease.split].iterator, lease.state)
        ahead = self._begin_ahead(make, lease.count) if worth_ahead else None
        iterator = ahead or make()
        if lease.state is None:
            requests.begin(self._epoch, lease.number, iterator)
        return _OpenLease(lease.number, lease.split, lease.count, iterator, ahead=ahead)

    def _begin_ahead(self, make: Callable[[], Iterated], count: int | None) -> AheadIterator | None:
        if self._make_ahead is not None:
            try:
                self._ahead = self._ahead or self._make_ahead()
                self._ahead.slowest = self._slowest
                return self._ahead.iterate(make, count)
            except BaseException:  # the closure meets it, too, if it is not of the thread
                self._make_ahead = self._ahead = None
        return None

    def _replay(self, requests: LeaseRequests) -> _Replay | None:
        """Return what the closure takes again, if there is anything left of it; prepared."""
        replay = requests.replays.get(self._epoch)
        if replay is None:
            range_ = requests.again(self._epoch)
            if range_ is not None:
                self._prepare([range_.split])
                self._wait_ahead()
                iterator = self._splits[range_.split].iterator(range_.state)
                replay = _Replay(range_.split, iterator, range_.count)
                requests.replays[self._epoch] = replay
        return replay

    def _next_again(self, requests: LeaseRequests, replay: _Replay) -> Any:
        # Without a lock: the iterator is this closure's alone.
        element = next(replay.iterator)
        requests.latest = self._name(replay.iterator, replay.split)
        replay.left -= 1
        if not replay.left:
            replay.iterator.close()
            del requests.replays[self._epoch]
        return element

    def _next(self, requests: LeaseRequests, slot: _Slot) -> tuple[Any] | None:
        """Return the next element of what is leased, if there is one."""
        lease = slot.lease
        if lease is None or not requests.may_read(self._epoch, lease.number):
            return None
        number, at, begin = lease.number, lease.at, perf_counter()
        try:
            found = self._next_ahead(lease) or self._next_here(lease)
        except StopIteration:
            requests.take(self._epoch, number, at, 0, None, True)
            self._end_lease(slot, lease)
            return None
        except Exception:  # a dataset may raise anything; the next element comes after this one
            if lease.iterator is not None:
                requests.take(self._epoch, number, at, 0, lease.iterator.state(), False)
            else:
                slot.lease = None
                requests.return_(self._epoch, number)
            raise
        seconds = perf_counter() - begin if lease.ahead is None else lease.ahead.seconds
        iterator = lease.iterator
        assert iterator is not None
        requests.latest = self._name(iterator, lease.split)
        lease.at += 1
        lease.slow += seconds > WORTH_AHEAD
        self._slowest = max(self._slowest, seconds)
        if lease.left is not None:
            lease.left -= 1
        ended = lease.left == 0
        requests.take(self._epoch, number, at, 1, iterator.state(), ended)
        if ended:
            self._end_lease(slot, lease)
        return found

    def _next_here(self, lease: _OpenLease) -> tuple[Any]:
        if lease.iterator is None:
            lease.iterator = self._splits[lease.split].iterator(lease.state)
        return (next(lease.iterator),)

    def _next_ahead(self, lease: _OpenLease) -> tuple[Any] | None:
        """Return the next element if it is read ahead; if that fails, it is not any more."""
        if lease.ahead is None:
            return None
        try:
            return (next(lease.ahead),)
        except StopIteration:
            raise
        except BaseException as error:  # the closure meets it, too, if it is not of the thread
            if isinstance(error, TimeoutError):
                logger.warning(
                    "an element of split %d took so long that it is read again, and that none is "
                    "read ahead any more in this epoch",
                    lease.split,
                )
            self._make_ahead = self._ahead = None
        lease.ahead.close()
        lease.state, lease.ahead, lease.iterator = lease.ahead.state(), None, None
        return None

    def _wait_ahead(self) -> None:
        """Let no function of the dataset be called by two threads where there is one closure."""
        if (ahead := self._ahead) is not None:
            with suppress(TimeoutError):
                ahead.wait()

    def _name(self, iterator: Iterated, split: int) -> str:
        return f"{iterator.latest()} of split {split} of {len(self._splits)}"

    def _end_lease(self, slot: _Slot, lease: _OpenLease) -> None:
        slot.lease, slot.slow = None, 2 * lease.slow > lease.at
        _close(lease)


def _close(lease: _OpenLease) -> None:
    if lease.iterator is not None:
        lease.iterator.close()
