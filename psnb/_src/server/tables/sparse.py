"""SparseTable: a shard of an embedding. Pure, without Dask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.hashing import MOST_ROWS, distinct, summed
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, Reservable, answer_array
from psnb._src.server.optimizer import Optimizer, Workspace
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.changed_rows import Watcher
from psnb._src.server.tables.checks import ROW_USE, ExpectedRows, check_array, check_ids, forms
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.server.tables.initializers import Initializer
from psnb._src.server.tables.row_index import FixedRowIndex, GrowingRowIndex, RowIndex, RowRequest
from psnb._src.server.tables.row_use import CtrAccessor, RowUse
from psnb._src.server.tables.table import Table
from psnb._src.server.tables.updater import Updater
from psnb._src.transport.message import halved
from psnb.errors import InternalError, InvalidArrayError, ServerMemoryError

_ALWAYS = Always()
_COUNTS = np.dtype(np.float32)
_NONE = np.empty(0, np.int64)
_COUNTING = (ops.LookUpRows, ops.FetchRows, ops.Preview)
"""Reads that count as occurrences of their ids."""


class SparseTable(Table, Reservable):
    """A shard of an embedding table.

    Parameters
    ----------
    name : str
        The embedding's name, for messages.
    dim : int
        Floats a row.
    rows : int or None
        Rows of the whole table; None for any 64-bit id.
    index, shards : int
        Which shard this is, and of how many.
    dtype : str
        ``"float32"`` or ``"float64"``.
    initializer : Initializer
        First values of a row.
    seed : int
        The table's own seed, 0 to 2**64 - 1.
    optimizer : Optimizer or None
        What `PushRows` applies.
    admission : Admission
        Which ids get a row, if ``rows`` is None.
    accessor : CtrAccessor, optional
        How the use of rows is recorded, if ``rows`` is None; by default it is not recorded.

    Attributes
    ----------
    dim : int
        Floats a row.
    dtype : numpy.dtype
        Of the rows.
    """

    writes = (ops.PushRows, ops.PutRows, ops.RecordUse, ops.MergeRows, ops.EndDay, ops.SkipUpdates)
    by_row = True

    expected: ExpectedRows

    def __init__(
        self,
        name: str,
        dim: int,
        rows: int | None,
        index: int,
        shards: int,
        dtype: str,
        initializer: Initializer,
        seed: int,
        optimizer: Optimizer | None,
        admission: Admission = _ALWAYS,
        accessor: CtrAccessor | None = None,
    ) -> None:
        super().__init__()
        self._name, self.dim, self.dtype = name, dim, np.dtype(dtype)
        self._initializer, self._seed = initializer, seed
        self._fixed = None if rows is None else (rows, index, shards)
        self._admission, self._accessor = admission, accessor
        # Some ids may have no row, unless all get one when first seen.
        make = partial(Workspace.of_rows, dim, self.dtype)
        gaps = not isinstance(admission, Always)
        self.updater = Updater(name, optimizer, make, gaps=gaps)
        self.expected = ExpectedRows(
            *(name, self.dtype, self.updater.slots, (dim,), self._fixed),
            uses=accessor is not None,
            waits=admission.min_count > 1,
        )
        self._names = ("ids", *self.expected.numbers, *(ROW_USE if accessor else ()))
        self._rows: RowIndex
        self._values: GrowingArray
        self._slots: dict[str, GrowingArray]
        self._use: RowUse | None
        self._begin()

    def run(self, operation: ops.TableOperation) -> Any:
        match operation:
            case ops.LookUpRows(ids, training, half):
                return halved(self.lookup(ids, training)) if half else self.lookup(ids, training)
            case ops.FetchRows(ids):
                return self.fetch(ids)
            case ops.ReadUse(ids):
                return self.row_use(ids)
            case ops.ShrinkTable(threshold, days, forget_waiting):
                return self.shrink(threshold, days, forget_waiting)
            case ops.DescribeRows():
                return self.describe_rows()
        if isinstance(operation, self.writes):
            return self.reserve(operation)()
        return super().run(operation)

    def reserve(self, write: ops.TableOperation, *, counting: bool = True) -> Callable[[], None]:
        match write:
            case ops.PushRows(ids, gradients, norm, once, rate):
                self.check_push(write)
                if not once:
                    ids, gradients = summed(ids, gradients)
                request = self.requested(ids, counting=counting, repeated=False)
                return partial(self._push, request, gradients, norm, rate)
            case ops.PutRows(ids, values):
                self._check_rows(ids, values, "values")
                return partial(self._assign, self.requested(ids, inserted=True), values)
            case ops.MergeRows(ids, values, slots):
                check_ids(f"ids for {self._name!r}", ids)
                self.expected.check_learned(values, slots, (ids.size, self.dim))
                request = self.requested(ids, counting=False)
                return partial(self._merge, request, write)
            case ops.RecordUse(ids, shows, clicks):
                use, rows = self._known_use(), self._rows.find(ids)
                for name, counts in (("shows", shows), ("clicks", clicks)):
                    check_array(f"{name} for {self._name!r}", counts, _COUNTS, (ids.size,))
                return partial(self._record, use, RowRequest(ids, rows, min_count=0), shows, clicks)
            case ops.EndDay():
                return partial(self._end_day, self._known_use())
            case ops.SkipUpdates(count):
                return partial(self.updater.skip, count)
        raise self.unknown(write)

    def check_push(self, push: ops.PushRows) -> None:
        """Raise ConfigurationError unless a push can be made."""
        self.updater.required()
        self._check_rows(push.ids, push.gradients, "gradients")

    def round_push(
        self, push: ops.PushRows, rows: np.ndarray, admitted: np.ndarray
    ) -> Callable[[], None]:
        """Return what makes a push of distinct ids, for whose rows there is room.

        ``rows`` (int64) is memory; ``admitted`` is that of what `requested` returned.
        """
        request = RowRequest(push.ids, rows, admitted, self._admission.min_count)
        return partial(self._push, request, push.gradients, push.norm, push.rate)

    def lookup(self, ids: np.ndarray, training: bool = True) -> np.ndarray:
        """Return the rows of ``ids`` (uint64, ``(n,)``), ``(n, dim)``; zeros if not admitted.

        Without ``training`` no row is made and no id counts as seen.
        """
        request = self.requested(ids) if training else None
        rows = self._rows.find(ids) if request is None else request.rows
        found = answer_array((ids.size, self.dim), self.dtype)
        # After all memory: a lookup that fails must not count as an occurrence.
        if request is not None:
            rows = self._give(request)
        kernels.take(read_only(self._values.rows), rows, found)
        if not training and self._admission.min_count == 1:
            at = np.flatnonzero(rows < 0)
            at = at[self._admission.may_enter(ids[at], self._seed)]
            first = np.empty((at.size, self.dim), self.dtype)
            self._initializer.fill(first, read_only(ids[at]), self._seed)
            found[at] = first
        return found

    def _rehearse(self, write: ops.TableOperation) -> None:
        # Until it is committed, it counts neither as an occurrence of its ids nor as a use of its
        # rows. (`end_day` is never among the writes of a closure: it happens immediately.)
        if isinstance(write, ops.PushRows):
            self.reserve(write, counting=False)()

    def fetch(self, ids: np.ndarray) -> ops.Segment:
        """Return the rows of the distinct ids, where they have one, and the step."""
        rows = self._give(self.requested(ids))
        segment = self.pick(rows[rows >= 0])
        return {**segment, "step": np.array([self.updater.step])}

    def row_use(self, ids: np.ndarray) -> np.ndarray:
        """Return show, click and days unseen of ids, ``(n, 3)``; zeros for those without a row."""
        return self._known_use().of(self._rows.find(ids))

    def shrink(self, threshold: float, days: float, forget_waiting: bool) -> int:
        """Remove rows with a lower score or more days unseen; return how many."""
        use, rows = self._known_use(), self._growing()
        kept = use.kept(threshold, days)
        removed = rows.count - int(np.count_nonzero(kept))
        # Prepared commits may make again all that goes now.
        room = rows.count + self.promised if self.promises else 0
        index = rows.kept(kept, forget_waiting=forget_waiting, room=room)
        self._watched(lambda watcher: watcher.renumbering())
        # One array after the other, so that there is never a second copy of them all.
        for array in self._by_row():
            array.keep(kept, room)
        self._rows = index
        self._measure()
        return removed

    # The rest takes no memory; see `reserve`.

    def _push(
        self, request: RowRequest, gradients: np.ndarray, norm: float | None, rate: float | None
    ) -> None:
        rows = self._give(request)
        self._changing(rows)
        slots = {name: slot.rows for name, slot in self._slots.items()}
        self.updater.apply(self._values.rows, slots, rows, gradients, norm, rate)

    def _assign(self, request: RowRequest, values: np.ndarray) -> None:
        rows = self._give(request)
        self._changing(rows)
        self._values.rows[rows] = values

    def _merge(self, request: RowRequest, of: ops.MergeRows) -> None:
        rows = read_only(self._give(request))
        self._changing(rows)
        kernels.add_rows(self._values.rows, rows, read_only(of.values))
        for name, slot in of.slots.items():
            part = slot.dtype.type(of.share)
            kernels.approach_rows(self._slots[name].rows, rows, read_only(slot), part)
        self.updater.step = max(self.updater.step, of.step)

    def _record(
        self, use: RowUse, request: RowRequest, shows: np.ndarray, clicks: np.ndarray
    ) -> None:
        rows = self._rows.give(request)  # as they are now

        def note(watcher: Watcher) -> None:
            changing, _ = distinct(rows.view(np.uint64))  # sorting takes five times as long
            watcher.changing(changing.view(np.int64))

        self._watched(note)
        use.record(rows, shows, clicks)

    def _end_day(self, use: RowUse) -> None:
        self._watched(lambda watcher: watcher.changing_use())
        use.end_day()

    def describe_rows(self) -> dict[str, int]:
        """Return how many rows there are and what they cost; see `EmbeddingStatistics`."""
        return {
            "rows": self._rows.count,
            "waiting": self._rows.waiting,
            "nbytes": self.nbytes(),
            "index_nbytes": self._rows.nbytes(),
        }

    @property
    def extent(self) -> int:
        return self._rows.count

    def segment(self, start: int, stop: int) -> ops.Segment:
        """Return copies of rows: ``ids``, ``values``, ``slot.*``, ``show``, ``click``, ...."""
        return self.pick(slice(start, stop))

    def pick(self, rows: slice | np.ndarray) -> ops.Segment:
        """Return copies of some rows, by their numbers, in the same form."""
        return {name: self.column(name, rows) for name in self._names}

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        if name == "ids":
            return self._rows.ids(rows)
        if name in ROW_USE:
            return self._known_use().column(name, rows)
        array = self._values if name == "values" else self._slots[name.removeprefix("slot.")]
        return array.rows[rows].copy()

    def clear(self) -> None:
        self._watched(lambda watcher: watcher.renumbering())
        if not self.promises and self._fixed is None:
            self._begin()
            return
        # In the memory that is there: prepared commits may make as many rows again. The ids of
        # fixed rows first, as these take memory.
        ids = self._rows.ids(slice(None if self._fixed else 0))
        self._rows.clear()
        for array in self._by_row():
            array.clear()
        self._extend(0, ids)

    def put(self, segment: ops.Segment) -> None:
        """Load rows; that admits their ids."""
        self.expected.check_rows(forms(self._name, segment), segment.__getitem__)
        rows = self._give(self.requested(segment["ids"], inserted=True))
        self._changing(rows)
        self._values.rows[rows] = segment["values"]
        for name, slot in self._slots.items():
            slot.rows[rows] = segment[f"slot.{name}"]
        if self._use is not None:
            self._use.load(rows, segment)

    def tail(self) -> ops.Segment:
        """Return ``step``, and ``waiting.ids``, ``waiting.frequencies`` of ids without a row."""
        waiting = {}
        if self._admission.min_count > 1:
            waiting["waiting.ids"], waiting["waiting.frequencies"] = self._growing().waiting_ids()
        return {**super().tail(), **waiting}

    def finish(self, tail: ops.Segment) -> None:
        self.expected.check_tail(forms(self._name, tail), tail.__getitem__)
        if self._admission.min_count > 1:  # first: it may be refused
            rows, ids = self._growing(), tail["waiting.ids"]
            if (has := rows.find(ids) >= 0).any():
                raise InvalidArrayError(
                    f"waiting.ids of {self._name!r}: {ids[has][0]} has a row already"
                )
            rows.reserve(self.promised + ids.size)
            rows.wait(ids, tail["waiting.frequencies"])
        super().finish(tail)

    def _saved(self, writes: Sequence[ops.TableOperation]) -> Callable[[], None]:
        # Rows made for ids that are only in the writes remain: they have their initial values.
        ids = [write.ids for write in writes if isinstance(write, ops.PushRows)]
        known = np.concatenate([np.empty(0, np.uint64), *ids])
        rows = self._give(self.requested(known, counting=False))
        rows = rows[rows >= 0]
        values = self._values.rows[rows]
        slots = {name: slot.rows[rows] for name, slot in self._slots.items()}

        def undo() -> None:
            self._values.rows[rows] = values
            for name, slot in slots.items():
                self._slots[name].rows[rows] = slot

        return undo

    def changes(self, operation: ops.TableOperation) -> bool:
        # A lookup may make rows, but a copy of the table would make the same rows.
        sees = isinstance(operation, _COUNTING)
        return (sees and self._admission.min_count > 1) or super().changes(operation)

    def nbytes(self) -> int:
        """Return the bytes of parameters, optimizer state, index, and marks of changes.

        The room that a growing table reserves for more rows is not counted: it takes no memory yet.
        """
        changed = 0 if self._changed is None else self._changed.nbytes()
        arrays = sum(array.rows.nbytes for array in self._by_row())
        return arrays + self._rows.nbytes() + changed

    def _known_use(self) -> RowUse:
        if self._use is None:
            raise InternalError(f"embedding {self._name!r} was made without an accessor")
        return self._use

    def _growing(self) -> GrowingRowIndex:
        if not isinstance(self._rows, GrowingRowIndex):
            raise InternalError(f"embedding {self._name!r} has fixed rows")
        return self._rows

    def _begin(self) -> None:
        """Make it empty, in new memory."""
        most = None if self._fixed is None else len(range(self._fixed[1], *self._fixed[::2]))
        values = GrowingArray(self.dim, self.dtype, most)
        slots = {name: GrowingArray(self.dim, self.dtype, most) for name in self.updater.slots}
        for array in (values, *slots.values()):
            array.reserve(most or 0)
        self._rows = (
            GrowingRowIndex(self._admission, self._seed)
            if self._fixed is None
            else FixedRowIndex(*self._fixed)
        )
        self._values, self._slots = values, slots
        self._use = RowUse(self._accessor) if self._accessor else None
        self._extend(0, self._rows.ids())
        self._measure()

    def _by_row(self) -> list[GrowingArray]:
        return [self._values, *self._slots.values(), *([] if self._use is None else [self._use])]

    def requested(
        self, ids: np.ndarray, counting: bool = True, repeated: bool = True, inserted: bool = False
    ) -> RowRequest:
        """Get and keep the memory for the rows of ids; see `GrowingRowIndex.prepare`."""
        request = self._rows.prepare(ids, counting, repeated, inserted)
        if new := request.most_new:  # none, if the rows are fixed
            spare = min(self._room - self._rows.count, self._rows.spare) - self.promised
            if new > spare:
                new = self._growing().look(request)  # mostly, all of them are there
            if new > spare:
                self._reserve(self.promised + new)
        request.promise = Promise(self, new)
        return request

    def _reserve(self, more: int) -> None:
        """Get memory for more rows; a part stays if there is none for the rest."""
        rows = self._growing()
        if rows.count + more > MOST_ROWS:
            raise ServerMemoryError(
                f"a shard of embedding {self._name!r} has {rows.count:,} rows and was to get up to "
                f"{more:,} more: it has {MOST_ROWS:,} at most. Nothing was changed. Make "
                "the strategy with more servers or more shards=, into which a checkpoint can be "
                "restored, or hold fewer rows (admission=, shrink)"
            )
        rows.reserve(more)
        for array in self._by_row():
            array.reserve(rows.count + more)
        self._measure()

    def _measure(self) -> None:
        """Note for how many rows there is memory."""
        self._room = min(len(array.whole) for array in self._by_row())

    def _give(self, request: RowRequest) -> np.ndarray:
        """Return the rows of ids, and make new ones. Takes no memory."""
        before = self._rows.count
        found = self._rows.give(request)
        if self._rows.count > before:
            rows = self._growing()
            try:
                self._extend(before, rows.last_ids(before))
            except BaseException:  # a bug, but no id may be known without its row
                rows.take_back(before)
                for array in self._by_row():
                    array.grow(before)
                raise
        if request.promise is not None:
            request.promise.release()
        if request.min_count > 1:
            self._changing(_NONE)  # ids may wait now, which are in no row
        return found

    def _extend(self, start: int, ids: np.ndarray) -> None:
        """Initialise the rows of ``ids``, from the row ``start`` on."""
        stop = self._rows.count
        for array in self._by_row():
            array.grow(stop)
        self._initializer.fill(self._values.rows[start:stop], read_only(ids), self._seed)
        for name, slot in self._slots.items():
            slot.rows[start:stop] = self.updater.required().initial_slot(name)

    def _check_rows(self, ids: np.ndarray, numbers: np.ndarray, what: str) -> None:
        check_ids(f"ids for {self._name!r}", ids)
        check_array(f"{what} for {self._name!r}", numbers, self.dtype, (ids.size, self.dim))
