"""Leases: which worker reads which part of a dataset, each example once per epoch. Pure.

A dataset is cut into splits. A worker leases a split, and reports what each closure takes from it
*before* the closure's effect can reach a server. So when a worker dies, `EpochLeases` knows what
every closure in flight may have used, and the rest of the split is leased to another worker. If
the closure has had its effect (`psnb._src.coordinator.resolve` finds that out), its portions
were used; if not, it runs again on them. A closure that raised, was cancelled or was lost too often
has had no effect, and its portions are leased anew. A split is done when all of it was used by
closures that have ended well, and the epoch is over when all splits are.

After the data service of TensorFlow (``tf.data.service``, dynamic sharding), which hands out splits
too, but at most once: what a dead worker had begun is not visited again.

Thread-safe: the coordinator's event loop writes, any thread reads `progress`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from psnb._src.coordinator.closures import Closure, Execution
from psnb._src.protocol import messages
from psnb._src.utils.threads import Lock
from psnb.errors import ConfigurationError, InternalError

VERSION = 2
"""Version of the format of states."""


@dataclass(frozen=True, slots=True)
class LeasedPart:
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

    lane: int
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
class _HeldLease:
    holder: Hashable
    worker: str
    piece: LeasedPart
    state: Any
    left: int | None


@dataclass
class _SplitLeases:
    open: int = 1  # parts, leases and portions that are not done
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
    ) -> None:
        self._lock = Lock()  # guards everything here, for a moment each
        pieces = [LeasedPart(index) for index in range(splits)]
        visits = 0
        if state is not None:
            pieces, visits = _checked(splits, state, dataset)
        self._dataset = dict(dataset)
        self._free = deque(pieces)
        self._owners = dict(owners or {})
        self._splits = [_SplitLeases(open=0, begun=state is not None) for _ in range(splits)]
        for piece in pieces:
            self._splits[piece.split].open += 1
            self._splits[piece.split].begun = piece != LeasedPart(piece.split)
        self._leases: dict[int, _HeldLease] = {}
        self._closures: dict[int, list[LeasedPart]] = {}
        self._number = 0
        self._visits = visits

    def lease(
        self,
        holder: Hashable,
        worker: str = "",
        present: Collection[str] = (),
        turn: Turn | None = None,
    ) -> tuple[int, LeasedPart] | None:
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
            piece = self._first_for(worker, present)
            return None if piece is None else self._hold(piece, holder, worker, present)

    def owned(self, worker: str) -> list[int]:
        """Return the splits that a worker owns."""
        with self._lock:
            return [split for split, owner in self._owners.items() if owner == worker]

    def unread(self) -> bool:
        """Return whether there are elements that no closure has taken."""
        with self._lock:
            return bool(self._free or self._leases)

    def suits(self, worker: str, present: Collection[str], lane: int | None = None) -> bool:
        """Return whether a worker has something to read, or no worker has.

        In the latter case there may still be closures that run again with what they took before.
        ``lane`` is that of the closure, if the epoch has an order.
        """
        with self._lock:
            if any(lease.worker == worker for lease in self._leases.values()):
                return True
            return not (self._free or self._leases) or self._first_for(worker, present) is not None

    def lanes(self) -> list[int]:
        """Return the lanes of an epoch that has an order in which there is something to read."""
        return []

    def _hold(
        self, piece: LeasedPart, holder: Hashable, worker: str, present: Collection[str]
    ) -> tuple[int, LeasedPart]:
        self._free.remove(piece)
        owner = self._owners.get(piece.split, worker)
        if owner != worker:
            lost = owner not in present
            moved = {split for split, each in self._owners.items() if lost and each == owner}
            self._owners |= dict.fromkeys({piece.split, *moved}, worker)
        self._splits[piece.split].begun = True
        number, self._number = self._number, self._number + 1
        self._leases[number] = _HeldLease(holder, worker, piece, piece.state, piece.count)
        return number, piece

    def _first_for(self, worker: str, present: Collection[str]) -> LeasedPart | None:
        lost = None
        for piece in self._free:
            owner = self._owners.get(piece.split, worker)
            if owner == worker:
                return piece
            if lost is None and owner not in present:
                lost = piece
        return lost

    def take(
        self,
        holder: Hashable,
        number: int,
        closure: int,
        count: int,
        before: Any,
        after: Any,
        ended: bool,
    ) -> bool:
        """Note that a closure is going to use the next elements of a lease.

        Parameters
        ----------
        holder : hashable
            Whose lease it is.
        number : int
            The lease's number.
        closure : int
            The closure's id, the same for all its attempts.
        count : int
            How many elements; 0 if only the end was found.
        before, after : object
            The iterator's state before and after them.
        ended : bool
            Whether the part has no elements after them.

        Returns
        -------
        bool
            False if the holder does not have the lease (any more): the closure must not go on.
        """
        with self._lock:
            lease = self._leases.get(number)
            if lease is None or lease.holder != holder:
                return False
            split = self._splits[lease.piece.split]
            if count:
                portion = LeasedPart(lease.piece.split, before, count)
                self._closures.setdefault(closure, []).append(portion)
                split.open += 1
            lease.state = after
            if lease.left is not None:
                lease.left -= count
            if ended or lease.left == 0:
                del self._leases[number]
                split.open -= 1
            return True

    def portions(self, closure: int) -> tuple[LeasedPart, ...]:
        """Return what a closure has taken before, in order: it uses the same if it runs again."""
        with self._lock:
            return tuple(self._closures.get(closure, ()))

    def end(self, closure: int, *, succeeded: bool) -> None:
        """Note that a closure has ended for good: its portions are done, or free again."""
        with self._lock:
            portions = self._closures.pop(closure, [])
            if not succeeded:
                self._take_back(portions)
                return
            for portion in portions:
                self._splits[portion.split].open -= 1
                self._visits += portion.count or 0

    def lose(self, holder: Hashable) -> None:
        """Note that a holder is lost: the rest of its leases is free again.

        Its closures keep their portions: they run again elsewhere, or end.
        """
        with self._lock:
            for number, lease in list(self._leases.items()):
                if lease.holder == holder:
                    self._close(number)

    def _take_back(self, portions: list[LeasedPart]) -> None:
        """Have the portions of a closure that has had no effect leased anew."""
        self._free.extend(portions)

    def _close(self, number: int) -> None:
        """Have the rest of a lease leased anew, before all else."""
        lease = self._leases.pop(number)
        self._free.appendleft(LeasedPart(lease.piece.split, lease.state, lease.left))

    def state(self) -> dict[str, Any]:
        """Return the parts that are not used yet, in JSON's types.

        Portions of closures that have not ended count as not used: call it while nothing runs.
        """
        with self._lock:
            pieces = [  # of each split in the order in which they are read
                *(portion for portions in self._closures.values() for portion in portions),
                *(
                    LeasedPart(each.piece.split, each.state, each.left)
                    for each in self._leases.values()
                ),
                *self._free,
            ]
            return {
                "version": VERSION,
                "dataset": self._dataset,
                "visits": self._visits,
                "pieces": [[each.split, each.state, each.count] for each in pieces],
            }

    def progress(self) -> Progress:
        """Return the progress of the epoch."""
        with self._lock:
            done = sum(not split.open for split in self._splits)
            left = sum(not split.begun for split in self._splits)
            if any(split.open < 0 for split in self._splits):
                raise InternalError("a split was done more often than it was begun")
            return Progress(done, len(self._splits) - done - left, left, self._visits)


def _checked(splits: int, state: Any, dataset: Mapping[str, Any]) -> tuple[list[LeasedPart], int]:
    try:
        version, found, visits = state["version"], dict(state["dataset"]), state["visits"]
        pieces = [LeasedPart(int(split), at, number) for split, at, number in state["pieces"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            "this is no state of an epoch; take one with iterator.state()"
        ) from error
    same = version == VERSION and found == dataset
    if not same or any(not 0 <= piece.split < splits for piece in pieces):
        raise ConfigurationError(
            "the state is of an epoch over another dataset: of other files, with another batch "
            "size or function, shuffled otherwise or cut otherwise (splits=). Make it as it was, "
            f"or begin a new epoch; expected {dict(dataset)} (version {VERSION}), found "
            f"{found!r:.500} (version {version!r:.20})"
        )
    return pieces, int(visits)


# OrderedLeases: which worker reads which part of a dataset, in an order that no worker changes.
#
# For rounds of synchronous updates: which elements meet in a round must not depend on which worker
# is faster, or dies. So the splits belong to lanes, each to one, and closures take from the lane
# that they were scheduled for, one after the other (`run_epoch` schedules them, `RoundGate` has one
# of a lane run at a time). A closure goes on where the one before it in its lane has stopped. One
# that has had no effect gives back what it took, at the place where that was. Pure, and thread-safe
# like its base.


class _LatestTurn(NamedTuple):
    lease: int
    closure: int
    split: int


class OrderedLeases(EpochLeases):
    """The leases of one epoch whose splits are read in lanes.

    A split is in the lane of its number modulo the number of lanes. States are those of other
    epochs: with the same number of lanes, an epoch goes on in the same order.

    Closures without a turn take what is free, in the order of the splits.

    Parameters
    ----------
    lanes : int
        How many.
    splits, state, owners, dataset
        As for `EpochLeases`. If splits have owners, a closure takes from one split only: the next
        one may be another worker's.
    """

    def __init__(
        self,
        lanes: int,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(splits, state, owners, dataset)
        self._count = lanes
        self._turns: dict[int, _LatestTurn] = {}  # by lane

    def lease(
        self,
        holder: Hashable,
        worker: str = "",
        present: Collection[str] = (),
        turn: Turn | None = None,
    ) -> tuple[int, LeasedPart] | None:
        """Lease the next part of a closure's lane; see `EpochLeases.lease`.

        The holder that leased it last goes on with that lease, if it was not closed meanwhile.
        """
        if turn is None:
            return super().lease(holder, worker, present)
        with self._lock:
            lane, closure = turn
            number = self._open_in(lane)
            if number is not None and self._leases[number].holder != holder:
                self._close(number)
                number = None
            piece = self._next_in(lane)
            latest = self._turns.get(lane)
            if piece is None or (
                self._owners
                and latest is not None
                and latest.closure == closure
                and latest.split != piece.split
            ):
                return None
            if number is None:
                number, piece = self._hold(piece, holder, worker, present)
            self._turns[lane] = _LatestTurn(number, closure, piece.split)
            return number, piece

    def suits(self, worker: str, present: Collection[str], lane: int | None = None) -> bool:
        """Return whether a worker should read a lane next.

        It is the owner of what comes next there. Where nobody is, it is always the same worker, as
        long as the same ones are there: it goes on with what it has open.
        """
        if lane is None:
            return super().suits(worker, present)
        with self._lock:
            piece = self._next_in(lane)
            owner = None if piece is None else self._owners.get(piece.split)
            if owner in present:
                return worker == owner
            names = sorted(present)
            return not names or worker == names[lane % len(names)]

    def lanes(self) -> list[int]:
        """Return the lanes in which there is something to read, in order."""
        with self._lock:
            open_ = [lane for lane in self._turns if self._open_in(lane) is not None]
            return sorted({*open_, *(piece.split % self._count for piece in self._free)})

    def _open_in(self, lane: int) -> int | None:
        latest = self._turns.get(lane)
        return latest.lease if latest is not None and latest.lease in self._leases else None

    def _next_in(self, lane: int) -> LeasedPart | None:
        number = self._open_in(lane)
        if number is not None:
            lease = self._leases[number]
            return LeasedPart(lease.piece.split, lease.state, lease.left)
        return next((each for each in self._free if each.split % self._count == lane), None)

    def _take_back(self, portions: list[LeasedPart]) -> None:
        for lane in {portion.split % self._count for portion in portions}:
            if (number := self._open_in(lane)) is not None:
                self._close(number)
        self._free.extendleft(reversed(portions))


# LeaseRegistry: the leases of all epochs of a coordinator's datasets. Pure, thread-safe.
#
# Connections pass workers' questions on, the queue says how closures have ended, and the notebook
# reads the progress of an epoch.


class LeaseRegistry:
    """The `EpochLeases` of all epochs, by number.

    Parameters
    ----------
    seats : int, optional
        How many closures a round has, in which case each epoch is ordered, in so many lanes.

    Attributes
    ----------
    seats : int or None
        As given.
    """

    def __init__(self, seats: int | None = None) -> None:
        self.seats = seats
        self._lock = Lock()  # guards the dicts; held while an epoch's leases change
        self._epochs: dict[int, EpochLeases] = {}
        self._users: dict[int, set[int]] = {}  # the epochs that a closure has taken from
        # Closures that have failed or were cancelled, as long as a worker may run them.
        self._over: WeakValueDictionary[int, Execution] = WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._present: dict[Hashable, str] = {}  # workers' names by their sessions

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
    ) -> int:
        """Begin an epoch over a number of splits, or go on with one; return the epoch's number.

        Raises
        ------
        ConfigurationError
            If the state does not fit.
        """
        leases = (
            EpochLeases(splits, state, owners, dataset)
            if self.seats is None
            else OrderedLeases(self.seats, splits, state, owners, dataset)
        )
        with self._lock:
            number = next(self._numbers)
            self._epochs[number] = leases
            return number

    def close(self, epoch: int) -> None:
        """Forget an epoch; may be called in the middle of a garbage collection."""
        self._epochs.pop(epoch, None)  # atomic: the lock may be this very thread's

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

    def lanes(self, epoch: int) -> list[int]:
        """Return the lanes of an ordered epoch in which there is something to read."""
        return self._epochs[epoch].lanes()

    def suits(self, epoch: int, worker: str, lane: int | None = None) -> bool:
        """Return whether closures that read an epoch, or a lane, should go to a worker; cheap."""
        with self._lock:
            present = set(self._present.values())
            return self._epochs[epoch].suits(worker, present, lane)

    def lease(self, holder: Hashable, asked: messages.AskLease) -> messages.Lease | None:
        """Lease a part of an epoch to a worker's session; None if there is nothing to read now."""
        with self._lock:
            leases = self._epochs.get(asked.epoch)
            if leases is None or asked.closure in self._over:
                return None
            worker = self._present.get(holder, "")
            turn = None if asked.lane is None else Turn(asked.lane, asked.closure)
            found = leases.lease(holder, worker, set(self._present.values()), turn)
            if found is None:
                return None
            number, part = found
            owned = leases.owned(worker)
            return messages.Lease(number, part.split, part.state, part.count, owned)

    def take(self, holder: Hashable, elements: messages.TakeElements) -> bool:
        """Note that a closure is going to use elements of a lease.

        Returns
        -------
        bool
            False if the worker's session does not have the lease (any more), or the closure was
            cancelled: it must not go on.
        """
        with self._lock:
            leases = self._epochs.get(elements.epoch)
            if leases is None:
                return False
            taken = leases.take(
                holder,
                elements.lease,
                elements.closure,
                elements.count,
                elements.before,
                elements.after,
                elements.ended,
            )
            if taken and elements.closure in self._over:
                # It was cancelled while it ran: what it takes is free again.
                leases.end(elements.closure, succeeded=False)
                return False
            if taken:
                self._users.setdefault(elements.closure, set()).add(elements.epoch)
            return taken

    def portions(self, closure: int) -> Sequence[messages.Portion]:
        """Return what a closure has taken before."""
        if closure not in self._users:
            return ()
        with self._lock:
            return [
                messages.Portion(epoch, part.split, part.state, part.count or 0)
                for epoch in sorted(self._users.get(closure, ()))
                if epoch in self._epochs
                for part in self._epochs[epoch].portions(closure)
            ]

    def end(self, closure: Closure, succeeded: bool) -> None:
        """Note that a closure has ended for good; cheap for those that took nothing."""
        # One that has returned takes nothing any more; another may be taking at this moment.
        number = closure.id
        if succeeded and number not in self._users:
            return
        with self._lock:
            if not succeeded:
                self._over[number] = closure.execution
            for epoch in self._users.pop(number, ()):
                if epoch in self._epochs:
                    self._epochs[epoch].end(number, succeeded=succeeded)

    def lose(self, holder: Hashable) -> None:
        """Note that a worker's session is over."""
        with self._lock:
            self._present.pop(holder, None)
            for leases in list(self._epochs.values()):
                leases.lose(holder)
