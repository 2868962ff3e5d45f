"""Leases: which worker reads which part of a dataset, each example once per epoch. Pure.

A dataset is cut into splits. A worker leases a split, and reports what each closure takes from it,
before the closure's result, but not before its effect: a message for each step would be half of
what the step costs the notebook. So that goes to the servers, too, beside the closure's commit.
When a worker dies, its leases wait until the servers have said which closures have had their
effect (`psnb._src.coordinator.workers.resolve`) and what these have used. The rest is leased to
another worker: what lies between and what comes after. A closure without an effect runs again: what
it is known to have taken is leased to it alone, and it takes that before whatever comes next. It
may take less: the attempt that has its effect says what is used, and what it has left is leased
again. One that raised, was cancelled or was lost too often has had no effect, and its ranges are
leased again, too. A split is done when all of it was used by closures that have ended well, and the
epoch is over when all splits are.

After the data service of TensorFlow (``tf.data.service``, dynamic sharding), which hands out splits
too, but at most once: what a dead worker had begun is not visited again.

Nothing that is asked for each lease goes through all splits: there are tens of thousands, and the
notebook's event loop answers.

Thread-safe: the coordinator's event loop writes, any thread reads `progress`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from psnb._src.coordinator.scheduling.free_parts import FreeParts, SplitRange
from psnb._src.data.nodes.partitions import KnownPartitions
from psnb._src.protocol import messages
from psnb._src.utils.interrupts import Lock
from psnb.errors import ConfigurationError, InternalError

VERSION = 2
"""Version of the format of states."""


HELD_SECONDS = 0.5
"""Seconds for which a split waits for a worker that has its data and reads nothing yet."""


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
        self._owners = dict(owners or {})
        self._owned: dict[str, list[int]] = {}  # by owner, also what it has owned before
        for split, owner in self._owners.items():
            self._owned.setdefault(owner, []).append(split)
        self._told: dict[Hashable, int] = {}  # how many of these each holder has heard of
        self._holders: dict[int, Set[str]] = {}
        self._away: set[int] = set()  # splits whose data is not there
        self._present: Collection[str] = ()
        self._absent: set[str] = set()  # workers that may have free parts, and are not present
        self._splits = splits
        # By split: free parts, leases and closures' ranges. Those that are done are not here.
        self._open: Counter[int] = Counter(range_.split for range_ in ranges)
        self._overdone = False  # a fault: some split has less than none
        begun = {range_.split for range_ in ranges if range_ != SplitRange(range_.split)}
        self._untouched = self._open.keys() - begun
        self._free = FreeParts({split: self._lists_of(split) for split in range(splits)})
        self._free.add_first(ranges)
        self._leases: dict[int, _OpenLease] = {}
        self._reading: Counter[str] = Counter()  # open leases by worker
        # What open closures have taken; the leases of what earlier attempts at them had taken, and
        # their numbers by closure.
        self._closures: dict[int, list[SplitRange]] = {}
        self._again: dict[int, _OpenLease] = {}
        self._again_of: dict[int, list[int]] = {}
        self._number = 0
        self._visits = visits
        self._clock, self._begun = clock, clock()
        self._latest: dict[str, float] = {}  # when each worker leased something

    def place(
        self, holders: Mapping[int, Set[str]], there: Mapping[int, bool] = MappingProxyType({})
    ) -> None:
        """Note which workers have the data of splits, by their names: these lease them first.

        Another worker leases such a split only while its holders are busy: they read another one,
        or have leased nothing for `HELD_SECONDS`. What was noted of other splits stays.

        Parameters
        ----------
        holders : mapping of int to set of str
            By split; one whose data no worker has is for any of them.
        there : mapping of int to bool
            Whether the data of splits is there or will be: no other is leased. At first all is.
        """
        with self._lock:
            self._holders.update(holders)
            self._away.difference_update(split for split, found in there.items() if found)
            self._away.update(split for split, found in there.items() if not found)
            self._put_in_lists({*holders, *there})

    def needed(self, ahead: int) -> list[int]:
        """Return the splits that are read or used now, and those of the next free parts."""
        with self._lock:
            leases = (*self._leases.values(), *self._again.values())
            now = [lease.range_.split for lease in leases]
            used = [each.split for ranges in self._closures.values() for each in ranges]
            free: dict[int, None] = {}
            for each in self._free:
                if len(free) == ahead:
                    break
                free[each.split] = None
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
            The names of the workers that are there: the same object until others are.
        turn : Turn, optional
            Which closure asks, if the epoch has an order.
        """
        with self._lock:
            range_ = self._first_for(worker, present)
            return None if range_ is None else self._hold(range_, holder, worker, present)

    def owned(self, holder: Hashable, worker: str) -> list[int]:
        """Return the splits that a worker owns; each holder hears of each of them once."""
        with self._lock:
            owned = self._owned.get(worker)
            if owned is None:
                return []
            new, self._told[holder] = owned[self._told.get(holder, 0) :], len(owned)
            return sorted(each for each in new if self._owners[each] == worker)

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
            if self._reading[worker]:
                return True
            return not (self._free or self._leases) or self._first_for(worker, present) is not None

    def slots(self) -> list[int]:
        """Return the slots of an epoch that has an order in which there is something to read."""
        return []

    def _hold(
        self, range_: SplitRange, holder: Hashable, worker: str, present: Collection[str]
    ) -> tuple[int, SplitRange]:
        self._free.remove(range_)
        if self._owners.get(range_.split, worker) != worker:
            self._move(range_.split, worker, present)
        self._untouched.discard(range_.split)
        self._latest[worker] = self._clock()
        number, self._number = self._number, self._number + 1
        self._leases[number] = _OpenLease(holder, worker, range_, range_.state)
        self._reading[worker] += 1
        return number, range_

    def _move(self, split: int, worker: str, present: Collection[str]) -> None:
        """Have a worker own a split of another one, and all of that one's if it is lost."""
        owner, moved = self._owners[split], [split]
        if owner not in present:
            moved = [each for each in self._owned.pop(owner) if self._owners[each] == owner]
        self._owners.update(dict.fromkeys(moved, worker))
        self._owned.setdefault(worker, []).extend(moved)
        self._put_in_lists(moved)

    def _put_in_lists(self, splits: Iterable[int]) -> None:
        lists = {split: self._lists_of(split) for split in splits}
        self._free.put_in(lists)
        self._note_absent(lists)

    def _lists_of(self, split: int) -> tuple[Hashable, ...]:
        """Return in which lists of free parts those of a split are: its workers', or nobody's."""
        if split in self._away:
            return ()
        if split in self._owners:
            return (self._owners[split],)
        return tuple(self._holders.get(split, ())) or (None,)

    def _first_for(self, worker: str, present: Collection[str]) -> SplitRange | None:
        if present is not self._present:
            self._present = present
            self._absent = {n for n in self._free.names() if isinstance(n, str)}.difference(present)
        found = self._free.first(worker) or self._free.first(None)
        if found is not None:
            return found
        for absent in sorted(self._absent):
            for range_ in self._free.of(absent):
                if not self._here(range_, present):
                    return range_
        if self._owners:
            return None
        # The last of the worker that has most: what it comes to last.
        names = [each for each in self._free.names() if isinstance(each, str)]
        busy = [(self._free.count(each), each) for each in names if self._busy(each)]
        return self._free.last(max(busy)[1]) if busy else None

    def _here(self, range_: SplitRange, present: Collection[str]) -> set[str]:
        return set(self._holders.get(range_.split, ())).intersection(present)

    def _busy(self, worker: str) -> bool:
        if self._reading[worker]:
            return True
        return self._clock() - self._latest.get(worker, self._begun) > HELD_SECONDS

    def _note_absent(self, splits: Iterable[int]) -> None:
        """Note which workers have parts of splits, which are free now, and are not present."""
        names = {name for split in splits for name in self._lists_of(split)}
        self._absent.update(n for n in names if isinstance(n, str) and n not in self._present)

    def _count(self, split: int, change: int) -> None:
        """Count free parts, leases and closures' ranges of a split."""
        self._open[split] += change
        self._overdone |= self._open[split] < 0
        if not self._open[split]:
            del self._open[split]

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
            leases = self._again if taken.lease in self._again else self._leases
            lease = leases.get(taken.lease)
            if lease is None or lease.holder != holder:
                return
            split = lease.range_.split
            # If servers have said before that it is used, it is counted already.
            if taken.closure == messages.EFFECTIVE:
                self._visits += taken.size - sum(_overlap(taken, each) for each in lease.used)
            elif taken.size and all(each.closure != taken.closure for each in lease.used):
                range_ = SplitRange(lease.range_.split, lease.state, taken.size)
                self._closures.setdefault(taken.closure, []).append(range_)
                self._count(split, 1)
            lease.at += taken.size
            if taken.ended or lease.left == 0:
                if leases is self._leases:
                    self._reading[lease.worker] -= 1
                del leases[taken.lease]
                self._count(split, -1)
            else:
                lease.state = taken.after

    def note_used(self, taken: messages.Taken) -> None:
        """Note what a closure has used that has had its effect; its worker may not have said so."""
        with self._lock:
            lease = self._again.get(taken.lease) or self._leases.get(taken.lease)
            if lease is None or taken in lease.used:
                return
            if (new := taken.at + taken.size - lease.at) > 0:
                lease.used.append(taken)
                self._visits += min(new, taken.size)

    def again(self, holder: Hashable, closure: int) -> list[tuple[int, SplitRange]]:
        """Lease what a closure has taken before to the holder that runs it again, for it alone.

        Returns
        -------
        list of tuple
            The leases' numbers and their parts, in the order in which they were taken.
        """
        with self._lock:
            found: list[tuple[int, SplitRange]] = []
            for range_ in [*self._closures.pop(closure, ()), *self._left_again(closure)]:
                number, self._number = self._number, self._number + 1
                self._again[number] = _OpenLease(holder, "", range_, range_.state)
                self._again_of.setdefault(closure, []).append(number)
                found.append((number, range_))
            return found

    def end(self, closure: int, *, succeeded: bool) -> None:
        """Note that a closure has ended for good: what it took is done, or free again."""
        with self._lock:
            ranges = self._closures.pop(closure, [])
            left = self._left_again(closure)
            for range_ in ranges if succeeded else ():
                self._count(range_.split, -1)
                self._visits += range_.count or 0
            if back := left if succeeded else ranges + left:
                self._take_back(back)

    def _left_again(self, closure: int) -> list[SplitRange]:
        """Close the leases that are a closure's alone; return what is not taken of them."""
        left: list[SplitRange] = []
        for number in self._again_of.pop(closure, ()):
            if number in self._again:
                left += self._closed(self._again.pop(number))
        return left

    def lose(self, holder: Hashable) -> None:
        """Note that a holder is lost: the rest of its leases is free again.

        Its closures keep what is theirs alone: they run again elsewhere, or end.
        """
        with self._lock:
            self._told.pop(holder, None)
            for number, lease in list(self._leases.items()):
                if lease.holder == holder:
                    self._close(number)

    def _take_back(self, ranges: list[SplitRange]) -> None:
        """Have ranges that a closure has not used leased again."""
        self._free.add_last(ranges)
        self._note_absent(each.split for each in ranges)

    def _close(self, number: int) -> None:
        """Have what is left of a lease leased again, before all others."""
        lease = self._leases.pop(number)
        self._reading[lease.worker] -= 1
        self._free.add_first(self._closed(lease))
        self._note_absent([lease.range_.split])

    def _closed(self, lease: _OpenLease) -> list[SplitRange]:
        """Return what is left of a lease that is closed, as parts of its split."""
        left = _left_of(lease)
        self._count(lease.range_.split, len(left) - 1)
        return left

    def state(self) -> dict[str, Any]:
        """Return the parts that are not used yet, in JSON's types.

        Portions of closures that have not ended count as not used: call it while nothing runs.
        """
        with self._lock:
            ranges = [  # of each split in the order in which they are read
                *(range_ for ranges in self._closures.values() for range_ in ranges),
                *(range_ for lease in self._again.values() for range_ in _left_of(lease)),
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
            if self._overdone:
                raise InternalError("a split was done more often than it was begun")
            left, open_ = len(self._untouched), len(self._open)
            return Progress(self._splits - open_, open_ - left, left, self._visits)


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


def _overlap(one: messages.Taken, other: messages.Taken) -> int:
    """Return how many elements of a lease two closures say that they have taken."""
    end = min(one.at + one.size, other.at + other.size)
    return max(0, end - max(one.at, other.at))
