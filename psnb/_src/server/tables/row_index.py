"""RowIndex: from an id to its row in a table, in two ways. Pure.

`FixedRowIndex` computes it, `GrowingRowIndex` remembers it in a hash map. New ids get rows in two
steps: `prepare` and `reserve` get the memory, and `give`, which needs none, gives the rows. Neither
is thread-safe; the server's one thread is their only user.

Ids are uint64 of one axis, rows int64, dense from 0, and safe for compiled loops. Ids of another
form raise InvalidArrayError, ids that cannot have a row here raise IdOutOfRangeError; then nothing
is changed. So it is if there is no memory, which raises MemoryError.
"""

from __future__ import annotations

import uuid

import numpy as np

from psnb._src.server import hashing, kernels
from psnb._src.server.hashing import MOST_ROWS, distinct
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, addresses, promise, scratch
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.checks import check_ids
from psnb._src.server.tables.eviction import replacing
from psnb._src.server.tables.eviction.leaving import Leaving
from psnb._src.server.tables.growing_array import GrowingArray
from psnb.errors import IdOutOfRangeError, InternalError

ALL = slice(None)

_FIRST_SLOTS = 1024

_NEVER = 2**31 - 1
"""More occurrences than the hash map can count."""

_FIXED = "fixed"
_ALL_MAY = np.empty(0, np.bool_)


# The place of an index, for `hashing.find_rows`: the addresses of keys and rows of a hash map and
# how many slots it has; or none, and then the shards of the table and the rows of this one.


class RowRequest:
    """Ids that will get rows, and memory for their numbers.

    Attributes
    ----------
    ids : numpy.ndarray
        uint64; each once, if it takes several occurrences to get a row.
    rows : numpy.ndarray
        int64, for the row of each.
    admitted : numpy.ndarray
        bool, which of them may get a row; empty if all may.
    min_count : int
        How many occurrences it takes to get one; 0 if no id gets a row now.
    repeats : tuple of numpy.ndarray, optional
        If ids that were asked for repeat: where in ``ids`` each is, and memory for the row of each.
    numbering : str, optional
        The numbering in which all of them have rows, which are in ``rows`` already.
    promise : Promise, optional
        Keeps the room for new rows.
    """

    __slots__ = (
        *("admitted", "ids", "looked", "min_count", "numbering", "promise", "repeats", "rows"),
    )

    def __init__(
        self,
        ids: np.ndarray,
        rows: np.ndarray,
        admitted: np.ndarray = _ALL_MAY,
        min_count: int = 1,
        repeats: tuple[np.ndarray, np.ndarray] | None = None,
        numbering: str | None = None,
    ) -> None:
        # By hand: there is one for each push and lookup.
        self.ids, self.rows, self.admitted, self.min_count = ids, rows, admitted, min_count
        self.repeats, self.numbering = repeats, numbering
        self.promise: Promise | None = None
        self.looked: tuple[object, int, int] | None = None  # when ``rows`` were as they are

    @property
    def most_new(self) -> int:
        """How many rows it makes, at most."""
        return self.ids.size if self.min_count and self.numbering is None else 0


class FixedRowIndex:
    """A shard of a table with a known number of rows, dealt out in turn over the shards.

    Parameters
    ----------
    rows : int
        Rows of the whole table.
    index, shards : int
        The number of this shard, and how many there are. It has the ids with ``id % shards ==
        index``, so ids numbered by popularity load the servers evenly.
    """

    numbering = _FIXED

    def __init__(self, rows: int, index: int, shards: int) -> None:
        self._index, self._shards = index, shards
        self.count = len(range(index, rows, shards))
        self.place = np.array([0, 0, 0, shards, self.count], np.int64)
        self.waiting = self.spare = 0

    def prepare(self, ids: np.ndarray, *how: bool) -> RowRequest:
        return RowRequest(ids, self.find(ids), numbering=_FIXED)

    def give(self, request: RowRequest) -> np.ndarray:
        if request.numbering is not _FIXED:
            self._find(request.ids, request.rows)
        return request.rows

    def find(self, ids: np.ndarray) -> np.ndarray:
        check_ids("ids", ids)
        rows = scratch(ids.size, np.int64)
        self._find(ids, rows)
        return rows

    def ids(self, rows: slice | np.ndarray = ALL) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.count))
        return rows.astype(np.uint64) * np.uint64(self._shards) + np.uint64(self._index)

    def clear(self) -> None:
        pass  # the rows are always there

    def nbytes(self) -> int:
        return 0

    def _find(self, ids: np.ndarray, rows: np.ndarray) -> None:
        bad = kernels.divide(read_only(ids), self._shards, self.count, rows)
        if bad < ids.size:
            raise IdOutOfRangeError(
                f"rows of ids: expected 0 to {self.count - 1}, found "
                f"{int(ids[bad]) // self._shards}"
            )


class GrowingRowIndex:
    """A shard of a table that takes any 64-bit id, in the order of their first appearance.

    Its hash map is half to two thirds full, so with the list of ids it takes 26 to 32 bytes an id.

    Parameters
    ----------
    admission : Admission
        Which ids get a row.
    seed : int
        The table's.
    """

    def __init__(self, admission: Admission | None = None, seed: int = 0) -> None:
        self._admission, self._seed = admission or Always(), seed
        self.count = 0
        self.numbering = _numbering()  # as long as no id gets another row for its own
        self._replaced = 0  # how often ids have lost their rows to others
        self._ids = GrowingArray(1, np.dtype(np.uint64))  # by row: the inverse of the hash map
        self.place = np.zeros(hashing.INDEX_PLACE, np.int64)
        self._take(*_slots(_FIRST_SLOTS))
        self._free = self._limit()

    @property
    def waiting(self) -> int:
        """How many ids have been seen, but not often enough for a row."""
        return self._limit() - self._free - self.count

    @property
    def spare(self) -> int:
        """How many ids may come before more memory is needed."""
        return min(self._free, self._ids.room - self.count, MOST_ROWS - self.count)

    def prepare(
        self, ids: np.ndarray, counting: bool = True, repeated: bool = True, inserted: bool = False
    ) -> RowRequest:
        """Get the memory for the rows of ids, some of which may be new.

        ``counting`` says whether this is one more occurrence, ``repeated`` whether ids may repeat,
        ``inserted`` whether they get rows, admitted or not.
        """
        check_ids("ids", ids)
        if inserted:
            return RowRequest(ids, scratch(ids.size, np.int64))
        needed = self._admission.min_count
        if needed > 1 and not counting:
            return RowRequest(ids, scratch(ids.size, np.int64), min_count=0)
        repeats = None
        if needed > 1 and repeated:  # a lookup or push counts once for an id
            rows = scratch(ids.size, np.int64)
            ids, position = distinct(ids)
            repeats = position, rows
        any_may = isinstance(self._admission, Always)
        admitted = _ALL_MAY if any_may else self._admission.may_enter(ids, self._seed)
        return RowRequest(ids, scratch(ids.size, np.int64), admitted, needed, repeats)

    def look(self, request: RowRequest, missing: int = -1) -> int:
        """Return how many rows a request makes at most, as things are now.

        If the rows of its ids are in it, ``missing`` is how many have none.
        """
        if missing < 0:
            found = hashing.find(self._keys, self._rows, read_only(request.ids), request.rows)
            missing = int(found)
        request.looked = self._looked()
        if not missing:
            request.numbering = self.numbering
        elif request.admitted.size:
            missing = int(np.count_nonzero(request.admitted & (request.rows < 0)))
        return missing

    def reserve(self, more: int, waiting: int = 0) -> None:
        """Get room for ``more`` additional ids with a row, and for some that wait.

        Raises
        ------
        MemoryError
            If there is no memory; nothing is changed.
        """
        before = self._ids.room
        self._ids.reserve(self.count + more)
        more += waiting
        if more <= self._free:
            return
        used = self._limit() - self._free
        least = (used + more) * 3 // 2 + 2
        try:
            keys, rows = _slots(max(least, self._keys.size * 4 // 3))
        except MemoryError:
            try:
                keys, rows = _slots(least)
            except MemoryError:
                self._ids.give_back(before)
                raise
        hashing.move(self._keys, self._rows, keys, rows)
        self._take(keys, rows)
        self._free = self._limit() - used

    def give(self, request: RowRequest) -> np.ndarray:
        """Return the row of each id; -1 for ids that are not admitted. Takes no memory.

        Ids that are new get rows at the end, for which there is room.
        """
        ids, rows = read_only(request.ids), request.rows
        if not request.min_count:
            hashing.find(self._keys, self._rows, ids, rows)
        elif request.numbering is not self.numbering:
            done, count, self._free = hashing.find_or_add(
                *(self._keys, self._rows, ids, request.admitted, request.min_count),
                *(self.count, self._free, rows, self._ids.whole[:, 0]),
            )
            if count > self.count:
                self.count = count
                self._ids.grow(count)
            if done < ids.size:
                raise InternalError(f"there was room for {done} of {ids.size} ids only")
        if request.repeats is None:
            return rows
        position, out = request.repeats
        return rows.take(position, out=out, mode="clip")

    def _looked(self) -> tuple[object, int, int]:
        """Return what differs when ids have other rows, have lost theirs, or have one now."""
        return self.numbering, self._replaced, self.count

    def holds(self, request: RowRequest) -> bool:
        """Return whether all ids of a request have the rows that are in it."""
        looked = request.looked
        return (
            request.numbering is not None
            and looked is not None
            and looked[:2] == self._looked()[:2]
        )

    def choose(self, request: RowRequest, leaving: Leaving) -> int:
        """Choose the rows that ids will get, of which some take those of others.

        They are in the request; see `replacing.choose_rows`. Returns how many rows there are then.
        """
        ids = read_only(request.ids)
        done, leaving.head, count, taken = replacing.choose_rows(
            *(self._keys, self._rows, ids, request.admitted, request.min_count, leaving.stamps),
            *(leaving.rows, leaving.head, self.count, leaving.bound),
            *(request.min_count == 1 and request.looked == self._looked(), request.rows),
        )
        leaving.flagged -= taken
        if done < ids.size:
            raise InternalError(f"there were rows for {done} of {ids.size} ids only")
        return int(count)

    def give_chosen(self, request: RowRequest, count: int, *, replaces: bool) -> None:
        """Give ids the rows that were chosen, of which some may be others'. Takes no memory."""
        self._ids.grow(count)
        self._free -= replacing.take_rows_of(
            *(self._keys, self._rows, read_only(request.ids), request.admitted, request.min_count),
            *(self.count, self._ids.rows[:, 0], request.rows),
        )
        self.count = count
        self._replaced += replaces

    def remove(self, gone: np.ndarray, holes: np.ndarray, movers: np.ndarray) -> None:
        """Forget the ids of rows; those of ``movers`` are in the ``holes`` then."""
        ids = self._ids.rows[:, 0]
        replacing.delete_rows(self._keys, self._rows, ids, gone, holes, movers)
        self._free += gone.size
        self.count -= gone.size
        self._ids.grow(self.count)
        self.numbering = _numbering()

    def flag(self, leaving: Leaving, ids: np.ndarray) -> None:
        """Flag the rows of the ids that are to leave next, and no others."""
        replacing.set_flags(leaving.rows[leaving.head :], leaving.stamps, np.uint32(0))
        leaving.queue, leaving.rows, leaving.head = ids, self.find(ids), 0
        leaving.flagged = replacing.set_flags(leaving.rows, leaving.stamps, replacing.FLAG)

    def follow(self, leaving: Leaving) -> None:
        """Find the rows of the ids that are to leave next again, as some were removed."""
        leaving.rows = self.find(leaving.queue)
        leaving.flagged = int(np.count_nonzero(leaving.stamps & replacing.FLAG))

    def take_back(self, count: int) -> None:
        """Take back the rows from ``count`` on, the last that were given."""
        # An id that had waited has a slot before others, so it waits on.
        left = hashing.EMPTY if self._admission.min_count == 1 else np.int32(-2)
        ids = self._ids.rows[count:, 0]
        hashing.take_back(self._keys, self._rows, read_only(ids), left)
        if left == hashing.EMPTY:
            self._free += ids.size
        self._ids.grow(count)
        self.count, self.numbering = count, _numbering()

    def locate(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id, of new ones too."""
        request = self.prepare(ids)
        if request.most_new > self.spare:
            self.reserve(self.look(request))
        return self.give(request)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id, -1 for ids without a row."""
        check_ids("ids", ids)
        rows = scratch(ids.size, np.int64)
        hashing.find(self._keys, self._rows, read_only(ids), rows)
        return rows

    def wait(self, ids: np.ndarray, counts: np.ndarray) -> None:
        """Load what `waiting_ids` returned, checked before; none of the ids has a row here."""
        values, rows = -1 - counts.astype(np.int32), scratch(ids.size, np.int64)
        self.reserve(ids.size)
        self.give(RowRequest(ids, rows, min_count=_NEVER))
        hashing.put(self._keys, self._rows, read_only(ids), values)

    def ids(self, rows: slice | np.ndarray = ALL) -> np.ndarray:
        """Return the ids of some rows; a copy."""
        return self._ids.rows[rows, 0].copy()

    def last_ids(self, start: int) -> np.ndarray:
        """Return the ids of the rows from ``start`` on; valid until there are more."""
        return self._ids.rows[start:, 0]

    def waiting_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids that wait for a row, and how often each was seen (uint32)."""
        waiting = self._rows < hashing.EMPTY
        return self._keys[waiting], (-1 - self._rows[waiting]).astype(np.uint32)

    def forget_waiting(self, most: int) -> None:
        """Forget ids that wait for a row until there are ``most``: first those seen least often.

        Of equal ones by their hash, so that all replicas forget the same.
        """
        ids, counts = self.waiting_ids()
        if ids.size <= most:
            return
        hashes = np.empty_like(ids)
        hashing.hash_ids(read_only(ids), hashes)
        order = counts.astype(np.uint64) << np.uint64(32) | hashes >> np.uint64(32)
        gone = ids[order <= np.partition(order, ids.size - most - 1)[ids.size - most - 1]]
        replacing.delete_ids(self._keys, self._rows, read_only(gone))
        self._free += gone.size

    def kept(self, kept: np.ndarray, *, forget_waiting: bool, room: int = 0) -> GrowingRowIndex:
        """Return an index without the rows that are not ``kept`` (bool); the others move up.

        It has room for that number of ids.
        """
        other = GrowingRowIndex(self._admission, self._seed)
        ids = self.ids()[kept]
        waiting, counts = self.waiting_ids()
        other.reserve(max(room, ids.size) + (0 if forget_waiting else waiting.size))
        other.give(other.prepare(ids, inserted=True))
        if not forget_waiting:
            other.wait(waiting, counts)
        return other

    def clear(self) -> None:
        """Forget all ids; the room stays."""
        self.count, self.numbering = 0, _numbering()
        self._ids.clear()
        self._rows.fill(hashing.EMPTY)
        self._free = self._limit()

    def nbytes(self) -> int:
        return self._keys.nbytes + self._rows.nbytes + self._ids.rows.nbytes

    def _take(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Use other slots, and note where they are for compiled loops."""
        self.place[:3] = kernels.address(keys), kernels.address(rows), keys.size
        self._keys, self._rows = keys, rows

    def _limit(self) -> int:
        return self._keys.size * 2 // 3  # probes stay short


def _slots(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the slots of an empty hash map."""
    keys, rows = addresses((count,), np.uint64), addresses((count,), np.int32)
    promise(keys.nbytes + rows.nbytes)
    rows.fill(hashing.EMPTY)
    return keys, rows


def _numbering() -> str:
    """Return the name of a numbering of rows: other servers have other ones."""
    return uuid.uuid4().hex


RowIndex = FixedRowIndex | GrowingRowIndex
