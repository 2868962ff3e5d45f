"""Leased datasets inside a worker: iterators that ask the coordinator which part to read.

Closure threads share an iterator. What a closure takes is reported to the coordinator in its order,
with results or within `HELD_SECONDS`, and travels with the closure's commit: so when this worker
dies, either the coordinator knows of it, or the servers do, or it has had no effect.

In an epoch that has an order, each closure takes from a slot, and there is an iterator for each
slot that was read here. The closure asks first whether that is where the slot is, as another worker
may have read on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from psnb._src.data.dataset import Dataset
from psnb._src.data.iterator import DatasetIterator
from psnb._src.protocol.messages import Lease
from psnb._src.utils.phases import READ, counted_as
from psnb._src.worker.lease_requests import LeaseRequests, Replay
from psnb._src.worker.read_ahead import AheadIterator, NotReadError, ReadAhead


@dataclass
class _OpenLease:
    """A lease that is being read."""

    number: int
    split: int
    left: int | None
    iterator: DatasetIterator | AheadIterator
    at: int = 0  # how many elements were taken
    slow: int = 0  # how many of them took longer than `WORTH_AHEAD`


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


class LeasedSplitReader:
    """An epoch over the splits that this worker leases; closure threads share it.

    Parameters
    ----------
    splits : sequence of Dataset
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
        splits: Sequence[Dataset],
        epoch: int,
        lease_requests: Callable[[], LeaseRequests],
        prepare: Callable[[Sequence[int]], None] = lambda splits: None,
        ahead: Callable[[], ReadAhead] | None = None,
    ) -> None:
        self._splits, self._epoch = splits, epoch
        # Guarded by the turn of the slot without an order, as are the next two.
        self._make_ahead = ahead
        self._ahead: ReadAhead | None = None
        self._slowest = 0.0  # seconds, of all elements so far
        self._lease_requests, self._prepare = lease_requests, prepare
        self._unprepared: set[int] = set()  # splits that this worker must have, by its leases
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
            before.iterator.close()
        try:
            slot.lease = self._begin(requests, lease, slot.slow and requests.slot is None)
        except BaseException:  # whatever a dataset raises: nobody else knows of this lease
            requests.return_(self._epoch, lease.number)
            raise

    def _begin(self, requests: LeaseRequests, lease: Lease, worth_ahead: bool) -> _OpenLease:
        self._unprepared.update(lease.owned)
        owned = [*self._unprepared]
        self._prepare(owned)  # all at once: sources are read for many as fast as for one
        self._unprepared.difference_update(owned)
        iterator: DatasetIterator | AheadIterator | None = None
        make = self._splits[lease.split].iterator
        if worth_ahead and self._make_ahead is not None:
            try:
                self._ahead = self._ahead or self._make_ahead()
                self._ahead.slowest = self._slowest
                iterator = self._ahead.iterate(make, lease)
            except BaseException:  # the closure meets it, too, if it is not of the thread
                self._make_ahead = self._ahead = None
        iterator = iterator or make(lease.state)
        if lease.state is None:
            state, partitions = iterator.state(), iterator.partitions()
            requests.begin(self._epoch, lease.number, state, partitions)
        return _OpenLease(lease.number, lease.split, lease.count, iterator)

    def _replay(self, requests: LeaseRequests) -> Replay | None:
        """Return what the closure takes again, if there is anything left of it; prepared."""
        replay = requests.replays.get(self._epoch)
        if replay is None:
            range_ = requests.again(self._epoch)
            if range_ is not None:
                self._prepare([range_.split])
                if self._ahead is not None:
                    self._ahead.wait()
                iterator = self._splits[range_.split].iterator(range_.state)
                replay = requests.replays[self._epoch] = Replay(range_, iterator)
        return replay

    def _next_again(self, requests: LeaseRequests, replay: Replay) -> Any:
        # Without a lock: the iterator is this closure's alone.
        element, range_ = next(replay.iterator), replay.range_
        requests.latest = self._name(replay.iterator, range_.split)
        at, replay.at = replay.at, replay.at + 1
        ended = replay.at == range_.count
        requests.take(self._epoch, range_.lease, at, 1, replay.iterator.state(), ended)
        if ended:
            replay.iterator.close()
            del requests.replays[self._epoch]
        return element

    def _next(self, requests: LeaseRequests, slot: _Slot) -> tuple[Any] | None:
        """Return the next element of what is leased, if there is one."""
        lease = slot.lease
        if lease is None or not requests.may_read(self._epoch, lease.number):
            return None
        begin = perf_counter()
        take = partial(requests.take, self._epoch, lease.number, lease.at)
        try:
            element = self._read(requests, slot, lease)
        except StopIteration:
            take(0, None, True)
            self._end_lease(slot, lease)
            return None
        except Exception:  # a dataset may raise anything; the next element comes after this one
            if slot.lease is lease:
                take(0, lease.iterator.state(), False)
            raise
        seconds, iterator = perf_counter() - begin, lease.iterator
        if isinstance(iterator, AheadIterator):
            seconds = iterator.seconds
        requests.latest = self._name(iterator, lease.split)
        lease.at += 1
        lease.slow += seconds > WORTH_AHEAD
        self._slowest = max(self._slowest, seconds)
        if lease.left is not None:
            lease.left -= 1
        ended = lease.left == 0
        take(1, iterator.state(), ended)
        if ended:
            self._end_lease(slot, lease)
        return (element,)

    def _read(self, requests: LeaseRequests, slot: _Slot, lease: _OpenLease) -> Any:
        with suppress(NotReadError):
            return next(lease.iterator)
        self._make_ahead = self._ahead = None
        try:
            lease.iterator = self._splits[lease.split].iterator(lease.iterator.state())
        except BaseException:  # likewise: another worker may have what is not here any more
            slot.lease = None
            requests.return_(self._epoch, lease.number)
            raise
        return next(lease.iterator)

    def _name(self, iterator: DatasetIterator | AheadIterator, split: int) -> str:
        return f"{iterator.latest()} of split {split} of {len(self._splits)}"

    def _end_lease(self, slot: _Slot, lease: _OpenLease) -> None:
        slot.lease, slot.slow = None, 2 * lease.slow > lease.at
        lease.iterator.close()
