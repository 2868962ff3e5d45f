"""LeavingRows: a table of which rows leave, for others or as their time is over. Pure.

A new id takes the row of one that leaves, in its place. Where rows go without that, the last rows
take their places. A write that was prepared may find that its rows are gone when it is made: then
it makes them anew, as for ids that were never there. So for all writes under way there are rows
that may leave, one for each of their ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.hashing import distinct, each_once
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, scratch
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.changed_rows import Watcher
from psnb._src.server.tables.checks import MINUTES, POSITION, check_array, check_ids
from psnb._src.server.tables.eviction import replacing
from psnb._src.server.tables.eviction.leaving import Leaving
from psnb._src.server.tables.eviction.policy import LRU
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.server.tables.row_index import RowRequest
from psnb._src.server.tables.row_table import RowTable
from psnb._src.utils.process_memory.room import room as memory_room
from psnb.errors import ConfigurationError, InternalError, ServerMemoryError

_BLOCK = 1 << 14
"""Numbers of rows that begin together."""


def _word(nbytes: int) -> Any:
    """Return a dtype of which rows of so many bytes are copied."""
    return np.uint64 if nbytes % 8 == 0 else np.uint8


class LeavingRows(RowTable):
    """Rows by id, of which some may leave."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rehearses = False  # what is done will be undone
        if self._leaving is not None:
            count = max(1, _BLOCK // self.dim)
            self._into = scratch(count, np.int64), scratch(count, np.uint64)
            self._parts = {}
            for name in self.expected.numbers:
                dtype, shape = self.expected.form_of(name)
                self._parts[name.removeprefix("slot.")] = scratch((count, *shape), dtype)
            half = self.dtype != self.computed
            shape = count, self.dim
            self._begun = scratch(shape, self.computed) if half else self._parts["values"]

    def requested(
        self,
        ids: np.ndarray,
        counting: bool = True,
        repeated: bool = True,
        inserted: bool = False,
        found: np.ndarray | None = None,
    ) -> RowRequest:
        """Get and keep the memory for the rows of ids, and rows that may leave for them.

        ``found`` are the rows that they have now, if they are looked up at once.

        Raises
        ------
        ServerMemoryError
            If there may not be so many rows.
        ConfigurationError
            If a user's function fails that says which rows leave.
        """
        leaving = self._leaving
        if leaving is None:
            return super().requested(ids, counting, repeated, inserted, found)
        rows = self._growing()
        if self._rehearses:  # those that are to have rows have them
            return rows.prepare(ids, counting=False, repeated=repeated)
        request, known = rows.prepare(ids, counting, repeated, inserted), -1
        if found is not None and request.ids is ids:
            request.rows, known = found, int(np.count_nonzero(found < 0))
        missing = rows.look(request, known)
        may_miss = missing or found is None  # what is written later may find its rows gone by then
        if repeated and request.repeats is None and may_miss:  # a new id takes one row
            each, position = distinct(ids)
            repeated = each.size < ids.size
            if repeated:
                into = request.rows
                request = rows.prepare(each, counting, False, inserted)
                request.repeats = position, into
                missing = rows.look(request)
        size = request.ids.size
        # What is looked up now, and there, takes no rows, nor keeps those that others will take.
        if (missing or self.promises or found is None) and self._lacks(size):
            if repeated and request.repeats is None:
                size = each_once(request.ids).size
            if self._lacks(size):
                self._check_bound(size)
                self.choose(self._lowest(size))
        new = min(self.held + missing, max(0, leaving.bound - rows.count))
        # All that are under way may find their rows gone, and wait: beside those that took them.
        waits = self._admission.min_count > 1
        waiting = self.promised + self.present + size if waits else 0
        if new > self._room - rows.count or new + waiting > rows.spare:
            self.reserve_rows(new, waiting)
        request.promise = Promise([self], missing, size - missing)
        return request

    def to_load(self, ids: np.ndarray) -> RowRequest:
        """Get and keep the memory for the rows of ids, which are loaded: none leaves for them."""
        request = self.index.prepare(ids, True, True, True)
        if self.promises and self._lacks(ids.size):
            self._check_bound(ids.size)
            self.choose(self._lowest(ids.size))
        return self._with_room(request)

    def give(self, request: RowRequest, *, begun: bool = True, pushed: bool = False) -> np.ndarray:
        leaving = self._leaving
        if leaving is None or not begun:
            return super().give(request, begun=begun)
        rows, before = self._growing(), self.index.count
        if known := rows.holds(request):
            count, new = before, 0
            self._note(request.rows)
        else:
            count = rows.choose(request, leaving)
            self._note(request.rows)
            new = self._begin_chosen(request, count)
        replaced = new - (count - before)
        if not known:
            rows.give_chosen(request, count, replaces=replaced > 0)
            if replaced:
                self.moved.forget()
                self._gone = True  # some that prepared commits had found, maybe
        if not self._rehearses:  # else all of them are used already
            leaving.touch(request.rows, self.updater.step)
            leaving.evicted += replaced
            leaving.pushed += request.ids.size if pushed else 0
            leaving.gone += replaced if pushed else 0
        if request.promise is not None:
            request.promise.release()
        if request.min_count > 1:
            self.changing(request.rows[:0])  # ids may wait now, which are in no row
        if request.repeats is None:
            return request.rows
        position, out = request.repeats
        return request.rows.take(position, out=out, mode="clip")

    def _begin_chosen(self, request: RowRequest, count: int) -> int:
        """Have chosen rows begin, of which there are ``count`` then; return how many these are."""
        before, start, new = self.index.count, 0, 0
        for array in self.row_arrays():
            array.grow(count)
        for name in self._slots:
            self._parts[name][:] = self.updater.required().initial_slot(name)
        try:
            while True:
                start, some = replacing.next_chosen(
                    request.rows, read_only(request.ids), start, *self._into
                )
                if not some:
                    return new
                new += some
                rows, ids = (each[:some] for each in self._into)
                self._initializer.fill(self._begun[:some], read_only(ids), self._seed)
                self._begin_rows(rows, self._begun[:some])
        except BaseException:  # a bug, but no id may have what is another's
            for array in self.row_arrays():
                array.grow(before)
            lost = -2 - request.rows[request.rows < -1]
            self._remove(np.sort(lost[lost < before]))
            raise

    def _begin_rows(self, rows: np.ndarray, values: np.ndarray) -> None:
        arrays: dict[str, GrowingArray] = {"values": self._values, **self._slots}
        for name, array in arrays.items():
            first = self._parts[name][: rows.size]
            if name == "values" and self._begun is not self._parts[name]:
                first[:] = values
            word = _word(first.strides[0])
            replacing.put_rows(array.rows.view(word), rows, first.view(word))
        if self._use is not None:
            self._use.rows[rows] = 0
        assert self._leaving is not None
        self._leaving.begin(rows)

    def _note(self, chosen: np.ndarray) -> None:
        """Tell watchers which rows change, and which ids lose theirs."""
        index = self._growing()

        def note(watcher: Watcher) -> None:
            rows = np.where(chosen < -1, -2 - chosen, chosen)[chosen != -1]
            changing, _ = distinct(rows.view(np.uint64))
            watcher.changing(changing.view(np.int64))
            lost = -2 - chosen[chosen < -1]
            if (lost := lost[lost < index.count]).size:
                watcher.removing(index.ids(lost))

        self._watched(note)

    # Which rows leave.

    def _under_way(self, size: int) -> int:
        """Return how many rows must be there to leave for a write of ``size`` ids, and others."""
        assert self._leaving is not None
        free = max(0, self._leaving.bound - self.index.count)
        return self.promised + self.present + size - free

    def _lacks(self, size: int) -> bool:
        leaving = self._leaving
        if leaving is None or leaving.eviction.max_rows is None:
            return False
        return leaving.flagged < self._under_way(size)

    def _check_bound(self, size: int) -> None:
        if self._under_way(size) <= self.index.count:
            return
        assert self._leaving is not None
        held = self.promised + self.present
        raise ServerMemoryError(
            f"a shard of embedding {self.name!r} may have {self._leaving.bound:,} rows (max_rows= "
            f"divided by the shards), and {size:,} ids are to have one at once"
            + (f", beside {held:,} of updates that are prepared" if held else "")
            + ". Nothing was changed. Make the table with a larger max_rows=, or use smaller "
            "batches, or fewer closures at a time"
        )

    def _lowest(self, size: int, evict: str | None = None) -> np.ndarray:
        return self._first_to_leave(min(self._under_way(size), self.index.count), evict)

    def _first_to_leave(
        self, needed: int, evict: str | None = None, *, whole: bool = False
    ) -> np.ndarray:
        ids = read_only(self._growing().last_ids(0))
        of = ids, self.updater.step, self._use, self.name, evict
        return self._required().lowest(needed, *of, whole=whole) if needed else ids[:0]

    def choices(self, size: int, read: np.ndarray | None) -> Iterator[ops.TableChange]:
        """Yield what must be done first on all replicas, for a write of ``size`` ids.

        Or for a lookup of ids of which none may be new: then no rows are chosen.

        Raises
        ------
        ConfigurationError
            If a user's function fails that says which rows leave.
        """
        bound, waiting = self._required().bound, self.index.waiting
        if waiting and waiting + size > bound:
            # More than must be: to look for them takes as long, however many they are.
            yield ops.ForgetWaiting(max(0, bound - max(size, bound // 4)))
        if not self._lacks(size):
            return
        if read is not None and not self.promises and (self._growing().find(read) >= 0).all():
            return
        yield ops.ChooseLeaving(self._lowest(size))

    def choose(self, ids: np.ndarray) -> None:
        """Have the rows of ids leave next, in their order."""
        check_ids(f"ids for {self.name!r}", ids)
        self._growing().flag(self._required(), ids)

    def forget_waiting(self, most: int) -> None:
        """Limit how many ids wait for a row."""
        self._growing().forget_waiting(most)
        self.changing(np.empty(0, np.int64))

    @property
    def excess(self) -> int:
        return 0 if self._leaving is None else max(0, self.index.count - self._leaving.bound)

    def settling(self) -> Iterator[ops.TableChange]:
        """Yield what removes as many rows as there are too many, after rows were loaded.

        Raises
        ------
        ConfigurationError
            At the end: if a user's function failed. By then the least recently used have left.
        """
        if not self.excess:
            return
        evict, failed, excess = None, None, self.excess
        try:
            gone = self._first_to_leave(excess, whole=True)[:excess]
        except ConfigurationError as error:  # too late to refuse: the rows are there
            evict, failed = LRU, error
            gone = self._first_to_leave(excess, LRU, whole=True)[:excess]
        yield ops.RemoveRows(gone)
        # Some that were to leave for updates that are prepared are gone themselves.
        if self._lacks(0):
            yield ops.ChooseLeaving(self._lowest(0, evict))
        if failed is not None:
            reason = str(failed).removesuffix(". Nothing was changed")
            raise ConfigurationError(
                f"{reason}. More rows were loaded than max_rows= lets a shard have, and this "
                f"function was to say which leave: {gone.size:,} that were used least recently "
                "have left instead"
            ) from failed

    def count_minute(self) -> None:
        """Count a minute; rows whose time is over go."""
        leaving = self._required()
        gone = leaving.over(self.updater.step, self._growing().last_ids(0))
        self._remove(gone)
        leaving.minutes += 1
        leaving.expired += gone.size
        self.changing(gone[:0])

    def remove(self, ids: np.ndarray) -> None:
        """Remove the rows of ids, if they have some."""
        rows = self._growing().find(ids)
        self._remove(np.unique(rows[rows >= 0]))

    def _remove(self, gone: np.ndarray) -> None:
        """Remove rows, which ascend; the last rows take their places."""
        index = self._growing()
        if 2 * gone.size > index.count:  # then memory is given back
            kept = np.ones(index.count, np.bool_)
            kept[gone] = False
            self._keep(kept)
            return
        if not gone.size:
            return
        count = index.count - gone.size
        holes, others = np.split(gone, [np.searchsorted(gone, count)])
        movers = np.setdiff1d(np.arange(count, index.count), others, assume_unique=True)
        changing, lost = np.concatenate([gone, movers]), index.ids(gone)

        def note(watcher: Watcher) -> None:
            if self.leaves:
                watcher.changing(changing)
                watcher.removing(lost)
            elif not movers.size:
                watcher.shrinking(gone)
            else:  # what is saved of it says nothing of ids that have lost their rows
                watcher.renumbering()

        self._watched(note)
        index.remove(gone, holes, movers)
        self.moved.forget()
        for array in self.row_arrays():
            kernels.copy_rows(array.rows.view(np.uint8), movers, holes)
            array.grow(count)
        if self._leaving is not None:
            self._growing().follow(self._leaving)
        self._gone = True

    def _keep(self, kept: np.ndarray, *, forget_waiting: bool = False) -> None:
        """Remove rows that are not ``kept`` (bool); the others move up."""
        rows = self._growing()
        # Prepared commits may make again all that goes now.
        room = rows.count + self.held if self.promises else 0
        with memory_room.for_a_moment():  # it makes room: what it needs is there for a moment only
            index = rows.kept(kept, forget_waiting=forget_waiting, room=room)
        self._watched(lambda watcher: watcher.renumbering())
        self.moved.forget()
        # One array after the other, so that there is never a second copy of them all.
        for array in self.row_arrays():
            array.keep(kept, room)
        self.replace_index(index)
        self.measure()
        if self._leaving is not None:
            self._growing().follow(self._leaving)
        self._gone = True

    def _required(self) -> Leaving:
        if self._leaving is None:
            raise InternalError(f"no rows leave embedding {self.name!r}")
        return self._leaving

    # What replicas need beside rows.

    def tail(self) -> ops.Segment:
        tail = super().tail()
        if self._leaving is not None:
            tail[MINUTES] = np.array([self._leaving.minutes])
        return tail

    def finish(self, tail: ops.Segment) -> None:
        super().finish(tail)
        if self._leaving is not None:
            minutes = int(tail[MINUTES][0]) if MINUTES in tail else 0
            if self._leaving.undated:
                self.changing(None)
            self._leaving.dated(self.updater.step, minutes)

    def beside(self) -> ops.Segment:
        leaving = self._leaving
        if leaving is None:
            return super().beside()
        queue = leaving.queue[leaving.head :]
        rows = self._growing().find(queue)
        there = rows >= 0
        there[there] = (leaving.stamps[rows[there]] & replacing.FLAG) > 0
        counts = [leaving.evicted, leaving.expired, leaving.gone, leaving.pushed]
        return {**super().beside(), "queue": queue[there], "counts": np.array(counts)}

    def check_beside(self, beside: ops.Segment) -> None:
        super().check_beside(beside)
        if self._leaving is None:
            return
        check_ids(f"ids to leave {self.name!r}", beside["queue"])
        check_array(f"counts of {self.name!r}", beside["counts"], POSITION, (4,))

    def take_beside(self, beside: ops.Segment) -> None:
        super().take_beside(beside)
        leaving = self._leaving
        if leaving is None:
            return
        self.choose(beside["queue"])
        if self.promises and self._lacks(0):  # of a mark: more may be under way now than then
            self.choose(self._lowest(0))
        leaving.evicted, leaving.expired, leaving.gone, leaving.pushed = beside["counts"].tolist()
