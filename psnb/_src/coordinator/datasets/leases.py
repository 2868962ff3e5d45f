"""Leases: which worker reads which part of a dataset, each example once per epoch. Pure.

A dataset is cut into splits. A worker leases a split, and reports what each closure takes from it
*before* the closure's effect can reach a server. So when a worker dies, `EpochLeases` knows what
every closure in flight may have used, and the rest of the split is leased to another worker. If
the closure has had its effect (`psnb._src.coordinator.queue.resolver` finds that out), its portions
were used; if not, it runs again on them. A closure that raised, was cancelled or was lost too often
has had no effect, and its portions are leased anew. A split is done when all of it was used by
closures that have ended well, and the epoch is over when all splits are.

After the data service of TensorFlow (``tf.data.service``, dynamic sharding), which hands out splits
too, but at most once: what a dead worker had begun is not visited again.

Thread-safe: the coordinator's event loop writes, any thread reads `progress`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from psnb._src.threads import Lock
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
