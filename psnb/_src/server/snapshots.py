"""Snapshot: a table as it was at one moment, read in chunks while the table changes. Pure.

Copy on write: rows that change before they were read are copied first. So a snapshot takes the
memory of these rows, at most as much as the table (or that of a file, if the table is on disk), and
no operation waits for more than a chunk and for the rows that it changes itself. (The removal of
rows copies all unread rows, and so does the update of a variable as a whole: into
`PreallocatedPages`, if they were asked for in advance.)

It is read in one of two ways: in segments of rows, of which the last may be asked for once more; or
array by array, as files have them. A mark (`psnb._src.server.marks`) reads copies alone, again and
again.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from psnb._src.server.memory import in_small_pages, promise
from psnb._src.server.operations import SnapshotHeader
from psnb._src.server.tables.changed_rows import NO_IDS, Changes, Watcher
from psnb._src.server.tables.checks import REMOVED, ROW_USE
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.server.tables.operations import Segment, row_nbytes
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb._src.utils.standby import StandbyThreads
from psnb.errors import InternalError, ServerMemoryError

CHUNK = 1 << 22
"""Bytes of a chunk."""

_SMALL = 1 << 20
"""Bytes of an array's rest for which no chunk is wanted."""

_SHARED = 8
"""How many chunks several threads copy together, at least."""

TICKS = 2
"""Minutes after which unused memory is given back."""


class PreallocatedPages:
    """Pieces of memory that are there already, for copies that requests wait for.

    The system provides a page of memory when it is first written, which takes five times as long as
    to copy a page into it. So one of the server's `StandbyThreads` writes to all pages ahead, while
    requests go on, until there is enough room. A chunk that was taken belongs to its taker; it goes
    back to the system with its last reference.

    Used by the server's one thread, but for what ``threads`` call.

    Parameters
    ----------
    threads : StandbyThreads
        Make them, and help to copy.
    """

    def __init__(self, threads: StandbyThreads) -> None:
        self._threads = threads
        self._lock = threading.Lock()  # guards the next three
        self._missing = 0  # chunks that are still to be made
        self._fills = False  # one of the threads makes them, or will
        self._most: int | None = None  # chunks that there is memory for, if that is known
        self._chunks: deque[np.ndarray] = deque()
        self._ticks = 0

    def want(self, chunks: int) -> bool:
        """Have ``chunks`` chunks made; return whether they are there. Call it again to see.

        If there is no memory for all of them, fewer do.
        """
        self._ticks = 0
        with self._lock:
            if self._most is not None:
                chunks = min(chunks, self._most)
            self._missing = max(0, chunks - len(self._chunks))
            if self._missing and not self._fills:
                self._fills = True
                self._threads.submit(self._fill)
            return not self._missing

    def copies(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return copies of arrays of one axis, of a `CHUNK` at most each; several at a time."""
        if len(arrays) < _SHARED or os.cpu_count() == 1:
            return [self._copy(each) for each in arrays]
        return self._threads.share(self._copy, arrays)

    def _copy(self, array: np.ndarray) -> np.ndarray:
        if array.nbytes <= _SMALL:
            return array.copy()
        try:
            chunk = self._chunks.popleft()
        except IndexError:
            chunk = _chunk()
        found = chunk[: array.nbytes].view(array.dtype)
        np.copyto(found, array)
        return found

    def clear(self) -> None:
        """Give back what was not taken."""
        with self._lock:
            self._missing, self._most = 0, None
            self._chunks.clear()

    def tick(self) -> None:
        """Count a minute."""
        self._ticks += 1
        if self._ticks >= TICKS:
            self.clear()

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not self._missing:
                    self._fills = False
                    return
            try:
                chunk = _chunk()
            except MemoryError:
                with self._lock:
                    self._missing, self._most, self._fills = 0, len(self._chunks), False
                return
            chunk.fill(0)  # without the GIL
            with self._lock:
                if self._missing:  # it may have been cleared
                    self._missing -= 1
                    self._chunks.append(chunk)


def _chunk() -> np.ndarray:
    found = in_small_pages((CHUNK,), np.uint8)
    promise(CHUNK)
    return found


_BLOCK = 1 << 16  # rows that are copied at a time
_NO_HELP = StandbyThreads("psnb-none", 0)


class Snapshot(Watcher):
    """A table at one moment.

    Attributes
    ----------
    rows : int
        How many rows the table had.
    form : Segment
        A segment without rows.
    tail : Segment
        All that is not by row.
    shapes : mapping of str to tuple of int
        The shapes of the whole arrays that are by row.
    """

    shapes: dict[str, tuple[int, ...]]

    def __init__(self, table: Table, rows: int) -> None:
        self._table, self.rows = table, rows
        self.form, self.tail = table.segment(0, 0), table.tail()
        self._lapsed = False
        self._read_to = 0  # by `read`
        self._last: tuple[int, Segment] = (-1, {})

    def lapse(self) -> None:
        """End: changing rows could not be copied first."""
        self._lapsed = True
        self.close()

    def close(self) -> None:
        """Stop copying; idempotent."""
        if self in self._table.watchers:
            self._table.watchers.remove(self)

    def _check(self) -> None:
        if self._lapsed:
            raise ServerMemoryError(
                "a server had no memory to keep rows as they were when the snapshot began, because "
                "they changed before they were read: what was read or written of it is not whole. "
                "Give the processes of servers more memory, or save when less is updated"
            )

    def read(self, start: int, stop: int) -> Segment:
        """Return the rows from ``start`` to ``stop``; ranges come in order, each twice at most."""
        self._check()
        if start != self._last[0]:
            if start != self._read_to:
                raise InternalError(f"rows {start} to {stop} of a snapshot read to {self._read_to}")
            segment = {name: self.column(name, start, stop) for name in self.form}
            self._read_to, self._last = stop, (start, segment)
        return self._last[1]

    @property
    def lapsed(self) -> bool:
        """Whether there was no memory to keep what has changed."""
        return self._lapsed

    @abstractmethod
    def column(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return these rows of one array; nothing may have been `read`."""


def snapshot(
    table: Table,
    only: np.ndarray | None = None,
    room: PreallocatedPages | None = None,
    removed: np.ndarray = NO_IDS,
) -> Snapshot:
    """Return a snapshot of a table at this moment.

    Parameters
    ----------
    table : Table
        The table.
    only : numpy.ndarray, optional
        Of an embedding, the numbers of the rows that it shall have, ascending.
    room : PreallocatedPages, optional
        Where a variable is copied to.
    removed : numpy.ndarray
        Ids that have lost their rows, if it shall have some rows only.
    """
    taken = (
        RowSnapshot(table, only, removed)
        if isinstance(table, SparseTable)
        else WholeSnapshot(table, PreallocatedPages(_NO_HELP) if room is None else room)
    )
    table.watchers.append(taken)  # at last: there may be no memory for it
    return taken


def chunks_wanted(table: Table) -> int:
    """Return how many `PreallocatedPages` a snapshot of a table takes, if the table changes."""
    if not isinstance(table, DenseTable):
        return 0
    sizes = [table.flat(name).nbytes for name in table.expected.numbers]
    return sum(nbytes // CHUNK + (nbytes % CHUNK > _SMALL) for nbytes in sizes)


class WholeSnapshot(Snapshot):
    """Of a variable, of which the parts that change are copied: mostly all that were not read."""

    _table: DenseTable

    def __init__(self, table: Table, room: PreallocatedPages) -> None:
        assert isinstance(table, DenseTable)
        super().__init__(table, table.extent)
        self._room = room
        self.form = {name: array.reshape(-1) for name, array in self.form.items()}
        self.shapes = dict.fromkeys(self.form, table.shape)
        self._seen = dict.fromkeys(self.form, 0)  # how far each array was read
        # For each array the copied parts, by their numbers.
        self._kept: dict[str, dict[int, np.ndarray]] = {name: {} for name in self.form}

    def changing(self, rows: np.ndarray | None) -> None:
        """Copy all that was not read."""
        for name in self.form:
            step = self._step(name)
            self._keep(name, range(self._seen[name] // step, -(-self.rows // step)))

    def changing_parts(self, rows: np.ndarray, width: int) -> None:
        """Copy the parts in which these rows are."""
        for name in self.form if width else ():
            step = self._step(name)
            first, last = rows * width // step, (rows * width + width - 1) // step
            if (last - first).max(initial=0) > 1:
                return self.changing(None)
            numbers = np.unique(np.concatenate([first, last]))
            self._keep(name, numbers[numbers >= self._seen[name] // step].tolist())
        return None

    def column(self, name: str, start: int, stop: int) -> np.ndarray:
        self._check()
        self._seen[name] = stop
        step, kept, found = self._step(name), self._kept[name], [self.form[name]]
        for number in range(start // step, -(-stop // step)):
            at = number * step
            part = slice(max(start, at), min(stop, at + step))
            if number in kept:
                found.append(kept[number][part.start - at : part.stop - at])
            else:
                found.append(self._table.column(name, part))
        return found[1] if len(found) == 2 else np.concatenate(found)

    def close(self) -> None:
        super().close()
        self._kept = {}

    @property
    def touched(self) -> bool:
        """Whether anything has changed that was not read before."""
        return any(self._kept.values())

    def _step(self, name: str) -> int:
        """Return how many numbers of an array a part has."""
        return CHUNK // self.form[name].itemsize

    def _keep(self, name: str, numbers: Iterable[int]) -> None:
        new = [number for number in numbers if number not in self._kept[name]]
        step, whole = self._step(name), self._table.flat(name)
        copies = self._room.copies([whole[at * step : (at + 1) * step] for at in new])
        self._kept[name].update(zip(new, copies, strict=True))


class _Copies(GrowingArray):
    """Rows as they were, in a file if the table is; else in memory that is there when written."""

    def _larger(self, count: int) -> np.ndarray:
        if self._file is not None:
            return super()._larger(count)
        assert self._most is not None
        return in_small_pages((self._most, self.whole.shape[1]), self.whole.dtype)


class RowSnapshot(Snapshot):
    """Of a table whose rows are copied when they change; its rows are numbered among its own."""

    _table: SparseTable

    def __init__(self, table: SparseTable, only: np.ndarray | None, removed: np.ndarray) -> None:
        super().__init__(table, table.extent if only is None else only.size)
        if table.leaves:
            self.tail[REMOVED] = removed
        self._only = only
        self.shapes = {name: (self.rows, *array.shape[1:]) for name, array in self.form.items()}
        self._apart = False  # nothing of it is in the table any more
        # For each row, where its copy is, from 1 on; 0 if there is none. (The system provides
        # memory for zeros only when they are written.)
        self._place = np.zeros(self.rows, np.int32)
        self._kept: dict[str, GrowingArray] = {}
        self._count = 0
        self._use: Segment = {}  # of all rows, once the whole has changed

    def changing(self, rows: np.ndarray | None) -> None:
        """Copy the rows that were not read yet."""
        if self._apart:
            return
        if rows is not None:
            self._keep(self._own(rows))
            return
        for start in range(self._read_to, self.rows, _BLOCK):
            self._keep(np.arange(start, min(start + _BLOCK, self.rows)))

    def changing_use(self) -> None:
        """Copy the use of all rows, a few bytes of each."""
        if not self._apart and not self._use:
            self._use = {n: self.column(n, 0, self.rows) for n in ROW_USE if n in self.form}

    def shrinking(self, rows: np.ndarray) -> None:
        """Copy the rows that go; the others stay where they are."""
        self.changing(rows)

    def renumbering(self) -> None:
        """Copy all that was not read: it cannot be found any more."""
        self.changing(None)
        self._apart = True

    def changed(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows that have changed, and the ids that have got one since.

        None if more than these have changed, or other things.
        """
        table = self._table
        if self._apart or self._use or table.leaves or table.expected.waits:
            return None
        rows = np.flatnonzero(self._place)
        there = rows[rows < table.extent]  # of the others, each comes back to its place
        since = table.index.ids(slice(self.rows, None))[::-1]  # so the last rows go first
        few = 2 * since.size <= table.extent  # else their removal gives all rows other numbers
        if not few or not np.array_equal(table.index.ids(there), self.kept("ids", there)):
            return None
        return rows, since

    def kept(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of one array that were copied, as all are after `renumbering`."""
        self._check()
        if name in self._use:
            return self._use[name][rows]
        form = self.form[name]
        if not rows.size:
            return np.empty((0, *form.shape[1:]), form.dtype)
        copies: np.ndarray = self._kept[name].rows[self._place[rows] - 1]
        return copies.reshape(-1, *form.shape[1:])

    def column(self, name: str, start: int, stop: int) -> np.ndarray:
        self._check()
        if name in self._use:
            return self._use[name][start:stop]
        place, form = self._place[start:stop], self.form[name]
        last = stop - 1 if self._only is None or start == stop else int(self._only[stop - 1])
        extent = 0 if self._apart else self._table.extent
        if start == stop or last < extent:
            array = self._table.column(name, self._in_table(slice(start, stop)))
        else:  # all of them, or some at the end, are not there any more, and were kept
            rows = np.arange(start, stop) if self._only is None else self._only[start:stop]
            array = np.empty((stop - start, *form.shape[1:]), form.dtype)
            array[rows < extent] = self._table.column(name, rows[rows < extent])
        kept = np.flatnonzero(place)
        if kept.size:
            copies = self._kept[name].rows[place[kept] - 1]
            array[kept] = copies.reshape(-1, *form.shape[1:])
        return array

    def close(self) -> None:
        super().close()
        self._kept, self._use = {}, {}

    def _own(self, rows: np.ndarray) -> np.ndarray:
        """Return the copies of unread rows of the table."""
        if self._only is not None:
            at = np.searchsorted(self._only, rows)
            at[at == self.rows] = 0
            rows = at[self._only[at] == rows] if self.rows else at[:0]
        return rows[(rows >= self._read_to) & (rows < self.rows)]

    def _in_table(self, rows: slice | np.ndarray) -> slice | np.ndarray:
        return rows if self._only is None else self._only[rows]

    def _keep(self, rows: np.ndarray) -> None:
        rows = rows[self._place[rows] == 0]
        if not rows.size:
            return
        if not self._kept:
            self._kept = {
                name: _Copies(math.prod(form.shape[1:]), form.dtype, self.rows, self._table.disk)
                for name, form in self.form.items()
            }
        start, self._count = self._count, self._count + rows.size
        for name, array in self._table.pick(self._in_table(rows)).items():
            self._kept[name].grow(self._count)
            self._kept[name].rows[start:] = array.reshape(rows.size, -1)
        self._place[rows] = np.arange(start + 1, self._count + 1)


# OpenSnapshots: the snapshots of a server's tables that are being read, by name. Pure.
#
# A reader that died never ends its snapshot: one that was not read for `TICKS` minutes ends. The
# server's one thread is the only user.

_ALL_OPEN = Changes("", None, nothing=False)

SNAPSHOT_TICKS = 2
"""Minutes after which a snapshot that is not read ends."""


class OpenSnapshots:
    """The snapshots of a server.

    Parameters
    ----------
    room : PreallocatedPages
        Memory for them.
    """

    def __init__(self, room: PreallocatedPages) -> None:
        self._numbers = itertools.count()
        # Each with the minutes since it was last used.
        self._open: dict[str, tuple[Snapshot, int]] = {}
        self._room = room

    def begin(self, key: str, table: Table, since: str | None) -> SnapshotHeader:
        """Take a snapshot of a table as it is now; see `TakeSnapshot`.

        Its name tells the server by this key.
        """
        changes = _ALL_OPEN if since is None else table.changed_since(since)
        if changes.nothing:
            return SnapshotHeader("", 0, 0, {}, {}, changes.mark, whole=False)
        name = f"{key}/{next(self._numbers)}"
        taken = snapshot(table, changes.rows, self._room, changes.removed)
        self._open[name] = taken, 0
        return SnapshotHeader(
            *(name, taken.rows, row_nbytes(taken.form), taken.form, taken.tail),
            *(changes.mark, changes.rows is None),
        )

    def read(self, name: str, start: int, stop: int) -> Segment | None:
        """Return some rows; None if the snapshot does not exist any more."""
        if name not in self._open:
            return None
        taken, _ = self._open[name]
        self._open[name] = taken, 0
        return taken.read(start, stop)

    def take(self, files: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Snapshot]] | None:
        """Return the snapshots of each file, the caller's to close now; None if one has ended."""
        if not self._open.keys() >= {*itertools.chain.from_iterable(files.values())}:
            return None
        return {
            file: {name: self._open.pop(name)[0] for name in names} for file, names in files.items()
        }

    def release(self, name: str) -> None:
        """End a snapshot, if it is there."""
        if name in self._open:
            self._open.pop(name)[0].close()

    def tick(self) -> None:
        """Count a minute."""
        for name, (taken, ticks) in list(self._open.items()):
            self._open[name] = taken, ticks + 1
            if ticks + 1 >= SNAPSHOT_TICKS:
                self.release(name)
