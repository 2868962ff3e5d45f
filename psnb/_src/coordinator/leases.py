"""Leases: which worker reads which part of a dataset, each example once per epoch. Pure.

A dataset is cut into splits. A worker leases a split, and reports what each closure takes from it,
before the closure's result, but not before its effect: a message for each step would be half of
what the step costs the notebook. So that goes to the servers, too, beside the closure's commit.
When a worker dies, its leases wait until the servers have said which closures have had their effect
(`psnb._src.coordinator.resolve`) and what these have used. The rest is leased to another worker:
what lies between and what comes after. A closure without an effect runs again, on what it is known
to have taken, and else on whatever comes next. One that raised, was cancelled or was lost too often
has had no effect either, and its ranges are leased again. A split is done when all of it was used
by closures that have ended well, and the epoch is over when all splits are.

After the data service of TensorFlow (``tf.data.service``, dynamic sharding), which hands out splits
too, but at most once: what a dead worker had begun is not visited again.

Thread-safe: the coordinator's event loop writes, any thread reads `progress`.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from psnb._src.coordinator.closures import Execution, Work
from psnb._src.data.nodes.partitions import KnownPartitions
from psnb._src.protocol import messages
from psnb._src.utils.threads import Lock
from psnb.errors import ConfigurationError, DatasetError, InternalError

VERSION = 2
"""Version of the format of states."""

HELD_SECONDS = 0.5
"""Seconds for which a split waits for a worker that has its data and reads nothing yet."""


@dataclass(frozen=True, slots=True)
class SplitRange:
    """A part of a split that is to be read.

    Attributes
    ----------
    split : int
        Which split.
    state : object
        Where to begin: what the split's iterator returned as its state; None for the beginning.
    count : int or None
        How many elements; None for all up to the split's end.
    """

    split: int
    state: Any = None
    count: int | None = None


class Turn(NamedTuple):
    """Which closure asks for a lease, of an epoch that has an order: see `OrderedLeases`."""

    slot: int
    closure: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an epoch at one moment.

    Attributes
    ----------
    done, leased, left : int
        Splits that were used completely, splits that are being read or used, and the rest.
    visits : int
        Elements that were used by closures that have ended well; batches, if the dataset is
        batched.
    """

    done: int
    leased: int
    left: int
    visits: int

    @property
    def parts(self) -> tuple[int, int]:
        """How many splits are done, and how many there are."""
        return self.done, self.done + self.leased + self.left

    @property
    def over(self) -> bool:
        """Whether all splits are done."""
        return not self.leased and not self.left


@dataclass
class _OpenLease:
    holder: Hashable
    worker: str
    range_: SplitRange
    state: Any  # after what is known to be taken
    at: int = 0  # how many elements that is
    # What servers have said to be used beyond that: the worker's reports of it are to come, or not.
    used: list[messages.Taken] = field(default_factory=list)

    @property
    def left(self) -> int | None:
        return None if self.range_.count is None else self.range_.count - self.at


@dataclass
class _SplitLeases:
    open: int = 1  # parts, leases and ranges that are not done
    begun: bool = False


class EpochLeases:
    """The leases of one epoch.

    Parameters
    ----------
    splits : int
        How many splits there are.
    state : dict, optional
        From `state`: the epoch goes on where that was taken.
    owners : mapping of int to str, optional
        By split, the worker that has its data: only that worker leases it, as long as it is there.
    dataset : mapping
        Tells it from other datasets, in JSON's types.
    order : sequence of int, optional
        In which splits are read; by their numbers by default.
    clock : callable
        Returns seconds.

    Raises
    ------
    ConfigurationError
        If the state is not valid, or of an epoch over another dataset or number of splits.
    """

    def __init__(
        self,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
        order: Sequence[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = Lock()  # guards everything here, for a moment each
        ranges = [SplitRange(index) for index in (range(splits) if order is None else order)]
        visits, self._partitions = 0, KnownPartitions()
        if state is not None:
            ranges, visits, self._partitions = _checked(splits, state, dataset)
        self._dataset = dict(dataset)
        self._free = deque(ranges)
        self._owners = dict(owners or {})
        self._splits = [_SplitLeases(open=0, begun=state is not None) for _ in range(splits)]
        for range_ in ranges:
            self._splits[range_.split].open += 1
            self._splits[range_.split].begun = range_ != SplitRange(range_.split)
        self._leases: dict[int, _OpenLease] = {}
        self._closures: dict[int, list[SplitRange]] = {}
        self._number = 0
        self._visits = visits
        self._holders: Mapping[int, Set[str]] = {}
        self._there: Set[int] | None = None
        self._clock, self._begun = clock, clock()
        self._latest: dict[str, float] = {}  # when each worker leased something

    def place(self, holders: Mapping[int, Set[str]], there: Set[int] | None = None) -> None:
        """Note which workers have the data of splits, by their names: these lease them first.

        Another worker leases such a split only while its holders are busy: they read another one,
        or have leased nothing for `HELD_SECONDS`.

        Parameters
        ----------
        holders : mapping of int to set of str
            By split; one whose data no worker has is for any of them.
        there : set of int, optional
            The splits whose data is there or will be: no other is leased. None: all.
        """
        with self._lock:
            self._holders, self._there = holders, there

    def needed(self, ahead: int) -> list[int]:
        """Return the splits that are read or used now, and those of the next free parts."""
        with self._lock:
            now = [lease.range_.split for lease in self._leases.values()]
            used = [each.split for ranges in self._closures.values() for each in ranges]
            free = list(dict.fromkeys(each.split for each in self._free))[:ahead]
            return list(dict.fromkeys((*now, *used, *free)))

    def lease(
        self,
        holder: Hashable,
        worker: str = "",
        present: Collection[str] = (),
        turn: Turn | None = None,
    ) -> tuple[int, SplitRange] | None:
        """Lease a part to a holder; return the lease's number and the part, or None.

        It is None if no part suits the holder now. Parts may become free again, when a worker dies
        or a closure raises: see `progress`. A worker that leases a part of a lost owner becomes the
        owner of all of that owner's splits.

        Parameters
        ----------
        holder : hashable
            Who asks: a worker's session.
        worker : str
            The worker's name, as in ``owners``.
        present : collection of str
            The names of the workers that are there.
        turn : Turn, optional
            Which closure asks, if the epoch has an order.
        """
        with self._lock:
            range_ = self._first_for(worker, present)
            return None if range_ is None else self._hold(range_, holder, worker, present)

    def owned(self, worker: str) -> list[int]:
        """Return the splits that a worker owns."""
        with self._lock:
            return [split for split, owner in self._owners.items() if owner == worker]

    def unread(self) -> bool:
        """Return whether there are elements that no closure has taken."""
        with self._lock:
            return bool(self._free or self._leases)

    def suits(self, worker: str, present: Collection[str], slot: int | None = None) -> bool:
        """Return whether a worker has something to read, or no worker has.

        In the latter case there may still be closures that run again with what they took before.
        ``slot`` is that of the closure, if the epoch has an order.
        """
        with self._lock:
            if any(lease.worker == worker for lease in self._leases.values()):
                return True
            return not (self._free or self._leases) or self._first_for(worker, present) is not None

    def slots(self) -> list[int]:
        """Return the slots of an epoch that has an order in which there is something to read."""
        return []

    def _hold(
        self, range_: SplitRange, holder: Hashable, worker: str, present: Collection[str]
    ) -> tuple[int, SplitRange]:
        self._free.remove(range_)
        owner = self._owners.get(range_.split, worker)
        if owner != worker:
            lost = owner not in present
            moved = {split for split, each in self._owners.items() if lost and each == owner}
            self._owners |= dict.fromkeys({range_.split, *moved}, worker)
        self._splits[range_.split].begun = True
        self._latest[worker] = self._clock()
        number, self._number = self._number, self._number + 1
        self._leases[number] = _OpenLease(holder, worker, range_, range_.state)
        return number, range_

    def _first_for(self, worker: str, present: Collection[str]) -> SplitRange | None:
        if self._holders or self._there is not None:
            return self._placed_for(worker, present)
        lost = None
        for range_ in self._free:
            owner = self._owners.get(range_.split, worker)
            if owner == worker:
                return range_
            if lost is None and owner not in present:
                lost = range_
        return lost

    def _placed_for(self, worker: str, present: Collection[str]) -> SplitRange | None:
        """Return the next part for a worker, by where the data of splits is: see `place`."""
        nobodys, others = None, []
        for range_ in self._free:
            if self._there is not None and range_.split not in self._there:
                continue
            here = self._here(range_, present)
            if worker in here:
                return range_
            if here:
                others.append((min(here), range_))
            elif nobodys is None:
                nobodys = range_
        if nobodys is not None:
            return nobodys
        # The last of the worker that has most: what it comes to last.
        left = Counter(holder for holder, _ in others)
        busy = [(left[holder], holder) for holder in left if self._busy(holder)]
        if not busy:
            return None
        _, holder = max(busy)
        return [range_ for other, range_ in others if other == holder][-1]

    def _here(self, range_: SplitRange, present: Collection[str]) -> set[str]:
        return set(self._holders.get(range_.split, ())).intersection(present)

    def _busy(self, worker: str) -> bool:
        if any(lease.worker == worker for lease in self._leases.values()):
            return True
        return self._clock() - self._latest.get(worker, self._begun) > HELD_SECONDS

    def begin(
        self, holder: Hashable, number: int, state: Any, partitions: Iterable[list[Any]] = ()
    ) -> bool:
        """Note where a lease begins; return whether the holder has it.

        Raises
        ------
        DatasetError
            If a partition has other rows than where another part of it was read.
        """
        with self._lock:
            lease = self._leases.get(number)
            if lease is None or lease.holder != holder:
                return False
            self._partitions.add(partitions)
            lease.state = state
            return True

    def return_(self, holder: Hashable, number: int) -> None:
        """Have what is left of a lease leased again: its holder could not read it."""
        with self._lock:
            lease = self._leases.get(number)
            if lease is not None and lease.holder == holder:
                self._close(number)

    def take(self, holder: Hashable, taken: messages.Taken) -> None:
        """Note what a closure has taken; in the order in which that was taken from the lease.

        Parameters
        ----------
        holder : hashable
            Whose lease it is. Nothing happens if it does not have it any more.
        taken : Taken
            The closure's id in it is the same for all its attempts.
        """
        with self._lock:
            lease = self._leases.get(taken.lease)
            if lease is None or lease.holder != holder:
                return
            split = self._splits[lease.range_.split]
            # If servers have said before that it is used, it is counted already.
            if taken.closure == messages.EFFECTIVE:
                self._visits += taken.size
            elif taken.size and all(each.closure != taken.closure for each in lease.used):
                range_ = SplitRange(lease.range_.split, lease.state, taken.size)
                self._closures.setdefault(taken.closure, []).append(range_)
                split.open += 1
            lease.at += taken.size
            if taken.ended or lease.left == 0:
                del self._leases[taken.lease]
                split.open -= 1
            else:
                lease.state = taken.after

    def note_used(self, taken: messages.Taken) -> None:
        """Note what a closure has used that has had its effect; its worker may not have said so."""
        with self._lock:
            lease = self._leases.get(taken.lease)
            if lease is None or taken in lease.used:
                return
            if (new := taken.at + taken.size - lease.at) > 0:
                lease.used.append(taken)
                self._visits += min(new, taken.size)

    def ranges(self, closure: int) -> tuple[SplitRange, ...]:
        """Return what a closure has taken before, in order: it uses the same if it runs again."""
        with self._lock:
            return tuple(self._closures.get(closure, ()))

    def end(self, closure: int, *, succeeded: bool) -> None:
        """Note that a closure has ended for good: its ranges are done, or free again."""
        with self._lock:
            ranges = self._closures.pop(closure, [])
            if not succeeded:
                self._take_back(ranges)
                return
            for range_ in ranges:
                self._splits[range_.split].open -= 1
                self._visits += range_.count or 0

    def lose(self, holder: Hashable) -> None:
        """Note that a holder is lost: the rest of its leases is free again.

        Its closures keep their ranges: they run again elsewhere, or end.
        """
        with self._lock:
            for number, lease in list(self._leases.items()):
                if lease.holder == holder:
                    self._close(number)

    def _take_back(self, ranges: list[SplitRange]) -> None:
        """Have the ranges of a closure that has had no effect leased again."""
        self._free.extend(ranges)

    def _close(self, number: int) -> None:
        """Have what is left of a lease leased again, before all others."""
        lease = self._leases.pop(number)
        left = _left_of(lease)
        self._free.extendleft(reversed(left))
        self._splits[lease.range_.split].open += len(left) - 1

    def state(self) -> dict[str, Any]:
        """Return the parts that are not used yet, in JSON's types.

        Portions of closures that have not ended count as not used: call it while nothing runs.
        """
        with self._lock:
            ranges = [  # of each split in the order in which they are read
                *(range_ for ranges in self._closures.values() for range_ in ranges),
                *(range_ for lease in self._leases.values() for range_ in _left_of(lease)),
                *self._free,
            ]
            return {
                "version": VERSION,
                "dataset": self._dataset,
                "visits": self._visits,
                "ranges": [[each.split, each.state, each.count] for each in ranges],
                "partitions": self._partitions.listed(),
            }

    def progress(self) -> Progress:
        """Return the progress of the epoch."""
        with self._lock:
            done = sum(not split.open for split in self._splits)
            left = sum(not split.begun for split in self._splits)
            if any(split.open < 0 for split in self._splits):
                raise InternalError("a split was done more often than it was begun")
            return Progress(done, len(self._splits) - done - left, left, self._visits)


def _left_of(lease: _OpenLease) -> list[SplitRange]:
    """Return what is not taken of a lease, in order."""
    split, at, state, ended = lease.range_.split, lease.at, lease.state, False
    left: list[SplitRange] = []
    for each in sorted(lease.used, key=lambda used: used.at):
        if each.at + each.size <= at:
            continue
        if each.at > at:
            left.append(SplitRange(split, state, each.at - at))
        at, state, ended = each.at + each.size, each.after, each.ended
    count = None if lease.range_.count is None else lease.range_.count - at
    if not ended and count != 0:
        left.append(SplitRange(split, state, count))
    return left


def _checked(
    splits: int, state: Any, dataset: Mapping[str, Any]
) -> tuple[list[SplitRange], int, KnownPartitions]:
    try:
        version, found, visits = state["version"], dict(state["dataset"]), state["visits"]
        ranges = [SplitRange(int(split), at, number) for split, at, number in state["ranges"]]
        partitions = KnownPartitions(state.get("partitions", ()))  # earlier states have none
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            "this is not a state of an epoch, or one of an earlier psnb: take one with "
            "iterator.state(), or begin a new epoch"
        ) from error
    same = version == VERSION and found == dataset
    if not same or any(not 0 <= range_.split < splits for range_ in ranges):
        raise ConfigurationError(
            "the state is of an epoch over another dataset: of other files, with another batch "
            "size or function, shuffled otherwise or cut otherwise (splits=). Make it as it was, "
            f"or begin a new epoch; expected {dict(dataset)} (version {VERSION}), found "
            f"{found!r:.500} (version {version!r:.20})"
        )
    return ranges, int(visits), partitions


# OrderedLeases: which worker reads which part of a dataset, in an order that no worker changes.
#
# For rounds of synchronous updates: which elements meet in a round must not depend on which worker
# is faster, or dies. So the splits belong to slots, each to one, and closures take from the slot
# that they were scheduled for, one after the other (`run_epoch` schedules them, `RoundGate` has one
# of a slot run at a time). A closure goes on where the one before it in its slot has stopped. One
# that has had no effect gives back what it took, at the place where that was. Pure, and thread-safe
# like its base.


class _LatestTurn(NamedTuple):
    lease: int
    closure: int
    split: int


class OrderedLeases(EpochLeases):
    """The leases of one epoch whose splits are read in slots.

    A split is in the slot of its number modulo the number of slots. States are those of other
    epochs: with the same number of slots, an epoch goes on in the same order.

    Closures without a turn take what is free, in the order of the splits.

    Parameters
    ----------
    slots : int
        How many.
    splits, state, owners, dataset, order
        As for `EpochLeases`. If splits have owners, a closure takes from one split only: the next
        one may be another worker's.
    """

    def __init__(
        self,
        slots: int,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__(splits, state, owners, dataset, order)
        self._count = slots
        self._turns: dict[int, _LatestTurn] = {}  # by slot

    def place(self, holders: Mapping[int, Set[str]], there: Set[int] | None = None) -> None:
        """Note where data is; a slot's order stays: who reads what is not there waits for it."""
        super().place(holders)

    def needed(self, ahead: int) -> list[int]:
        """Return the splits that are read or used now, and the next of each slot."""
        with self._lock:
            free = [each.split for each in self._free]
        count, each = self._count, max(1, ahead // self._count) if ahead else 0
        first = [
            split
            for slot in range(count)
            for split in itertools.islice((n for n in free if n % count == slot), each)
        ]
        return list(dict.fromkeys((*super().needed(0), *first)))

    def lease(
        self,
        holder: Hashable,
        worker: str = "",
        present: Collection[str] = (),
        turn: Turn | None = None,
    ) -> tuple[int, SplitRange] | None:
        """Lease the next part of a closure's slot; see `EpochLeases.lease`.

        The holder that leased it last goes on with that lease, if it was not closed meanwhile.
        """
        if turn is None:
            return super().lease(holder, worker, present)
        with self._lock:
            slot, closure = turn
            number = self._open_in(slot)
            if number is not None and self._leases[number].holder != holder:
                self._close(number)
                number = None
            range_ = self._next_in(slot)
            latest = self._turns.get(slot)
            if range_ is None or (
                self._owners
                and latest is not None
                and latest.closure == closure
                and latest.split != range_.split
            ):
                return None
            if number is None:
                number, range_ = self._hold(range_, holder, worker, present)
            self._turns[slot] = _LatestTurn(number, closure, range_.split)
            return number, range_

    def suits(self, worker: str, present: Collection[str], slot: int | None = None) -> bool:
        """Return whether a worker should read a slot next.

        It is the owner of what comes next there. Without an owner, it is always the same worker, as
        long as the same ones are there: it goes on with what it has open.
        """
        if slot is None:
            return super().suits(worker, present)
        with self._lock:
            range_ = self._next_in(slot)
            owner = None if range_ is None else self._owners.get(range_.split)
            if owner in present:
                return worker == owner
            if range_ is not None and (here := self._here(range_, present)):
                return worker in here
            names = sorted(present)
            return not names or worker == names[slot % len(names)]

    def slots(self) -> list[int]:
        """Return the slots in which there is something to read, in order."""
        with self._lock:
            open_ = [slot for slot in self._turns if self._open_in(slot) is not None]
            return sorted({*open_, *(range_.split % self._count for range_ in self._free)})

    def _open_in(self, slot: int) -> int | None:
        latest = self._turns.get(slot)
        return latest.lease if latest is not None and latest.lease in self._leases else None

    def _next_in(self, slot: int) -> SplitRange | None:
        number = self._open_in(slot)
        if number is not None:
            lease = self._leases[number]
            return SplitRange(lease.range_.split, lease.state, lease.left)
        return next((each for each in self._free if each.split % self._count == slot), None)

    def _take_back(self, ranges: list[SplitRange]) -> None:
        for slot in {range_.split % self._count for range_ in ranges}:
            if (number := self._open_in(slot)) is not None:
                self._close(number)
        self._free.extendleft(reversed(ranges))


# LeaseRegistry: the leases of all epochs of a coordinator's datasets. Pure, thread-safe.
#
# Connections pass workers' questions on, the queue says how closures have ended, and the notebook
# reads the progress of an epoch.


class LeaseRegistry:
    """The `EpochLeases` of all epochs, by number.

    Parameters
    ----------
    round_size : int, optional
        Closures a round, in which case each epoch is ordered, in that number of slots.

    Attributes
    ----------
    round_size : int or None
        As given.
    """

    def __init__(self, round_size: int | None = None) -> None:
        self.round_size = round_size
        self._lock = Lock()  # guards the dicts; held while an epoch's leases change
        self._epochs: dict[int, EpochLeases] = {}
        self._users: dict[int, set[int]] = {}  # the epochs that a closure has taken from
        # Closures that have failed or were cancelled, as long as a worker may run them.
        self._over: WeakValueDictionary[int, Execution] = WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._present: dict[Hashable, str] = {}  # workers' names by their sessions
        self._watching: dict[int, Callable[[], object]] = {}  # by epoch

    def enter(self, holder: Hashable, worker: str) -> None:
        """Note that a worker's session has begun."""
        with self._lock:
            self._present[holder] = worker

    def present(self) -> set[str]:
        """Return the names of the workers that are there; cheap."""
        with self._lock:
            return set(self._present.values())

    def open(
        self,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
        order: Sequence[int] | None = None,
    ) -> int:
        """Begin an epoch over a number of splits, or go on with one; return the epoch's number.

        Raises
        ------
        ConfigurationError
            If the state does not fit.
        """
        leases = (
            EpochLeases(splits, state, owners, dataset, order)
            if self.round_size is None
            else OrderedLeases(self.round_size, splits, state, owners, dataset, order)
        )
        with self._lock:
            number = next(self._numbers)
            self._epochs[number] = leases
            return number

    def close(self, epoch: int) -> None:
        """Forget an epoch; may be called in the middle of a garbage collection."""
        self._epochs.pop(epoch, None)  # atomic: the lock may be this very thread's
        self._watching.pop(epoch, None)

    def watch(self, epoch: int, asked: Callable[[], object]) -> None:
        """Have a function called each time that a worker asks for a lease; on the event loop."""
        self._watching[epoch] = asked

    def place(
        self, epoch: int, holders: Mapping[int, Set[str]], there: Set[int] | None = None
    ) -> None:
        """Note where the data of an epoch's splits is: see `EpochLeases.place`."""
        if (leases := self._epochs.get(epoch)) is not None:
            leases.place(holders, there)

    def needed(self, epoch: int, ahead: int) -> list[int]:
        """Return the splits of an epoch whose data is needed now: see `EpochLeases.needed`."""
        leases = self._epochs.get(epoch)
        return [] if leases is None else leases.needed(ahead)

    def state(self, epoch: int) -> dict[str, Any]:
        """Return the part of an epoch that is not used yet."""
        return self._epochs[epoch].state()

    def states(self) -> list[dict[str, Any]]:
        """Return the states of the epochs that are not over, in the order of their beginning."""
        with self._lock:
            epochs = sorted(self._epochs.items())
        return [leases.state() for _, leases in epochs if not leases.progress().over]

    def progress(self, epoch: int) -> Progress:
        """Return the progress of an epoch."""
        return self._epochs[epoch].progress()

    def unread(self, epoch: int) -> bool:
        """Return whether an epoch has examples that no closure has taken."""
        return self._epochs[epoch].unread()

    def slots(self, epoch: int) -> list[int]:
        """Return the slots of an ordered epoch in which there is something to read."""
        return self._epochs[epoch].slots()

    def suits(self, epoch: int, worker: str, slot: int | None = None) -> bool:
        """Return whether closures that read an epoch, or a slot, should go to a worker; cheap."""
        with self._lock:
            present = set(self._present.values())
            return self._epochs[epoch].suits(worker, present, slot)

    def lease(self, holder: Hashable, asked: messages.AskLease) -> messages.Lease | None:
        """Lease a part of an epoch to a worker's session; None if there is nothing to read now."""
        with self._lock:
            leases = self._epochs.get(asked.epoch)
            if leases is None or asked.closure in self._over:
                return None
            self._watching.get(asked.epoch, bool)()
            worker = self._present.get(holder, "")
            turn = None if asked.slot is None else Turn(asked.slot, asked.closure)
            found = leases.lease(holder, worker, set(self._present.values()), turn)
            if found is None:
                return None
            number, part = found
            owned = leases.owned(worker)
            return messages.Lease(number, part.split, part.state, part.count, owned)

    def begin(self, holder: Hashable, asked: messages.BeginLease) -> bool | str:
        """Note where a lease of a worker's session begins; see `BeginLease` for the answer."""
        with self._lock:
            leases = self._epochs.get(asked.epoch)
            try:
                return leases is not None and leases.begin(
                    holder, asked.lease, asked.state, asked.partitions
                )
            except DatasetError as error:
                return str(error)

    def return_(self, holder: Hashable, asked: messages.ReturnLease) -> bool:
        """Have what is left of a lease of a worker's session leased again."""
        with self._lock:
            if (leases := self._epochs.get(asked.epoch)) is not None:
                leases.return_(holder, asked.lease)
            return True

    def take(self, holder: Hashable, taken: messages.Taken) -> None:
        """Note what a closure has taken from a lease of a worker's session."""
        with self._lock:
            leases = self._epochs.get(taken.epoch)
            if leases is None:
                return
            leases.take(holder, taken)
            if taken.closure == messages.EFFECTIVE:
                return
            if taken.closure in self._over:
                # It was cancelled while it ran: what it takes is free again.
                leases.end(taken.closure, succeeded=False)
            else:
                self._users.setdefault(taken.closure, set()).add(taken.epoch)

    def note_used(self, used: Iterable[messages.Taken]) -> None:
        """Note what a closure has taken that has had its effect, as servers say."""
        with self._lock:
            for taken in used:
                if taken.epoch in self._epochs:
                    self._epochs[taken.epoch].note_used(taken)

    def ranges(self, closure: int) -> Sequence[messages.TakenRange]:
        """Return what a closure has taken before."""
        if closure not in self._users:
            return ()
        with self._lock:
            return [
                messages.TakenRange(closure, epoch, part.split, part.state, part.count or 0)
                for epoch in sorted(self._users.get(closure, ()))
                if epoch in self._epochs
                for part in self._epochs[epoch].ranges(closure)
            ]

    def end(self, closure: Work) -> None:
        """Note that a closure has ended for good: steps that are not done have had no effect."""
        if not closure.left:
            return
        with self._lock:
            for number in closure.numbers:
                self._over[number] = closure.execution  # one may be taking at this moment
                self._end(number, False)

    def end_steps(self, closure: Work, steps: int) -> None:
        """Note that the next steps have had their effect; cheap for those that took nothing."""
        if not self._users:
            return
        numbers = closure.numbers[:steps]
        if not self._users.keys().isdisjoint(numbers):
            with self._lock:
                for number in numbers:
                    self._end(number, True)

    def give_back(self, number: int) -> None:
        """Have what a step has taken read again: it wrote nothing, and no more is known of it."""
        with self._lock:
            self._end(number, False)

    def _end(self, number: int, succeeded: bool) -> None:
        for epoch in self._users.pop(number, ()):
            if epoch in self._epochs:
                self._epochs[epoch].end(number, succeeded=succeeded)

    def leave(self, holder: Hashable) -> None:
        """Note that a worker's session is over; its leases stay, until `lose`."""
        with self._lock:
            self._present.pop(holder, None)

    def lose(self, holder: Hashable) -> None:
        """Note that all is known that a session's closures have used, which is over."""
        with self._lock:
            for leases in list(self._epochs.values()):
                leases.lose(holder)
