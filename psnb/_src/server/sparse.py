"""SparseTable: a shard of an embedding. Pure, without Dask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.first_rows import Admission, Always, Initializer, read_only
from psnb._src.server import answers, kernels
from psnb._src.server.ctr import CtrAccessor, RowUse
from psnb._src.server.duplicates import distinct, summed
from psnb._src.server.growing import GrowingArray
from psnb._src.server.optimizers import Optimizer
from psnb._src.server.row_index import FixedRowIndex, GrowingRowIndex
from psnb._src.server.table import Table
from psnb._src.server.table_operations import (
    DescribeRows,
    EndDay,
    FetchRows,
    LookUpRows,
    MergeRows,
    Preview,
    PushRows,
    PutRows,
    ReadUse,
    RecordUse,
    Segment,
    ShrinkTable,
    SkipUpdates,
    TableOperation,
)
from psnb._src.server.updater import Updater
from psnb._src.shards import ROW_USE, ExpectedRows, check_array, check_ids, forms
from psnb._src.transport import halved
from psnb.errors import GradientError, InternalError

_ALWAYS = Always()
_COUNTS = np.dtype(np.float32)
_NONE = np.empty(0, np.int64)
_SIGHTINGS = (LookUpRows, FetchRows, Preview)
"""Reads that count as sightings of their ids."""


class SparseTable(Table):
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
        What `push` applies.
    admission : Admission
        Which ids get a row, if ``rows`` is None.
    accessor : CtrAccessor, optional
        How the use of rows is recorded, if ``rows`` is None; by default it is not recorded.
    """

    writes = (PushRows, PutRows, RecordUse, MergeRows, EndDay, SkipUpdates)

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
        self._name, self._dim, self._dtype = name, dim, np.dtype(dtype)
        self._initializer, self._seed = initializer, seed
        self._updater = Updater(name, optimizer)
        self._fixed = None if rows is None else (rows, index, shards)
        self._admission, self._accessor = admission, accessor
        self._strict = not isinstance(admission, Always)
        """Whether some ids may have no row."""
        self._expected = ExpectedRows(
            name,
            self._dtype,
            self._updater.slots,
            dim,
            self._fixed,
            uses=accessor is not None,
            waits=admission.sightings > 1,
        )
        self._rows: FixedRowIndex | GrowingRowIndex
        self._values: GrowingArray
        self._slots: dict[str, GrowingArray]
        self._clear()

    def run(self, operation: TableOperation) -> Any:
        match operation:
            case LookUpRows(ids, training, half):
                return halved(self.lookup(ids, training)) if half else self.lookup(ids, training)
            case PushRows(ids, gradients, norm, distinct, rate):
                return self.push(ids, gradients, norm, distinct, rate)
            case FetchRows(ids):
                return self.fetch(ids)
            case RecordUse(ids, shows, clicks):
                return self.record(ids, shows, clicks)
            case MergeRows(ids, values, slots, step, share):
                return self.merge(ids, values, slots, step, share)
            case PutRows(ids, values):
                return self.assign(ids, values)
            case EndDay():
                return self.end_day()
            case ReadUse(ids):
                return self.row_use(ids)
            case ShrinkTable(threshold, days, forget_waiting):
                return self.shrink(threshold, days, forget_waiting)
            case DescribeRows():
                return self.describe_rows()
        return super().run(operation)

    def lookup(self, ids: np.ndarray, training: bool = True) -> np.ndarray:
        """Return the rows of ``ids`` (uint64, ``(n,)``), ``(n, dim)``; zeros if not admitted.

        Without ``training`` no row is made and no id counts as sighted.
        """
        # First: this may replace the arrays with larger ones.
        rows = self._locate(ids) if training else self._rows.find(ids)
        found = answers.empty((ids.size, self._dim), self._dtype)
        kernels.take(read_only(self._values.rows), rows, found)
        if not training and self._admission.sightings == 1:
            at = np.flatnonzero(rows < 0)
            at = at[self._admission.may_enter(ids[at], self._seed)]
            first = np.empty((at.size, self._dim), self._dtype)
            self._initializer.fill(first, read_only(ids[at]), self._seed)
            found[at] = first
        return found

    def push(
        self,
        ids: np.ndarray,
        gradients: np.ndarray,
        norm: float | None = None,
        distinct: bool = False,
        rate: float | None = None,
    ) -> None:
        """Sum the gradients (``(n, dim)``) of equal ids, then let the optimizer apply them.

        ``norm`` is the norm of the whole embedding's summed gradient; if it is left out, this
        shard's is the whole. ``distinct`` says that no id occurs twice, so there is nothing to sum.
        ``rate`` is what `rate` said before; if it is left out, it is computed now.
        """
        self._updater.check()  # first: a push that is refused must not make rows
        self._apply(ids, gradients, norm, distinct, rate)

    def _rehearse(self, write: TableOperation) -> None:
        # Until it is committed, it counts neither as a sighting of its ids nor as a use of its
        # rows. (`end_day` is never among the writes of a closure: it happens at once.)
        if isinstance(write, PushRows):
            self._apply(
                *(write.ids, write.gradients, write.norm, write.distinct, write.rate),
                counting=False,
            )

    def _apply(
        self,
        ids: np.ndarray,
        gradients: np.ndarray,
        norm: float | None,
        distinct: bool,
        rate: float | None,
        counting: bool = True,
    ) -> None:
        check_ids(f"ids for {self._name!r}", ids)
        what = f"gradients for {self._name!r}"
        check_array(what, gradients, self._dtype, (ids.size, self._dim))
        if not distinct:
            ids, gradients = summed(ids, gradients)
        rows = self._locate(ids, counting=counting)
        if self._strict and (missing := rows < 0).any():
            rows, gradients = rows[~missing], gradients[~missing]
            if not rows.size:
                return  # a push without rows of this shard is no step
        self._changing(rows)
        slots = {name: slot.rows for name, slot in self._slots.items()}
        self._updater.apply(self._values.rows, slots, rows, gradients, norm, rate)

    def fetch(self, ids: np.ndarray) -> Segment:
        """Return the rows of those of the distinct ids that have one, and the step."""
        rows = self._locate(ids)
        segment = self.pick(rows[rows >= 0])
        return {**segment, "step": np.array([self._updater.step])}

    def merge(
        self,
        ids: np.ndarray,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        step: int,
        share: float,
    ) -> None:
        """Merge what a copy has learned of distinct ids; see `DenseTable.merge`."""
        check_ids(f"ids for {self._name!r}", ids)
        self._expected.check_learned(values, slots, (ids.size, self._dim))
        rows = self._locate(ids, counting=False)
        there = rows >= 0
        rows = rows[there]
        self._changing(rows)
        self._values.rows[rows] += values[there]
        for name, slot in slots.items():
            held = self._slots[name].rows
            held[rows] += (slot[there] - held[rows]) * held.dtype.type(share)
        self.advance(step)

    def advance(self, step: int) -> None:
        """Raise the count of updates to at least ``step``."""
        self._updater.step = max(self._updater.step, step)

    def assign(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Replace the rows of distinct ids by ``values`` (``(n, dim)``); that admits the ids."""
        check_ids(f"ids for {self._name!r}", ids)
        check_array(f"values for {self._name!r}", values, self._dtype, (ids.size, self._dim))
        rows = self._inserted(ids)
        self._changing(rows)
        self._values.rows[rows] = values

    def record(self, ids: np.ndarray, shows: np.ndarray, clicks: np.ndarray) -> None:
        """Add shows and clicks (float32, ``(n,)``) to the rows of ids that have one."""
        use, rows = self._known_use(), self._rows.find(ids)
        for name, counts in (("shows", shows), ("clicks", clicks)):
            check_array(f"{name} for {self._name!r}", counts, _COUNTS, (ids.size,))
        there = rows >= 0
        rows = rows[there]
        if self.watchers:
            changing, _ = distinct(rows.view(np.uint64))  # sorting takes five times as long
            self._changing(changing.view(np.int64))
        use.record(rows, shows[there], clicks[there])

    def row_use(self, ids: np.ndarray) -> np.ndarray:
        """Return show, click and days unseen of ids, ``(n, 3)``; zeros for those without a row."""
        return self._known_use().of(self._rows.find(ids))

    def end_day(self) -> None:
        """Let shows and clicks decay, and count a day unseen."""
        use = self._known_use()
        self._changing_use()
        use.end_day()

    def shrink(self, threshold: float, days: float, forget_waiting: bool) -> int:
        """Remove rows with a lower score or more days unseen; return how many."""
        use, rows = self._known_use(), self._growing()
        self._renumbering()
        kept = use.kept(threshold, days)
        removed = rows.count - int(kept.sum())
        # One array after the other, so that there is never a second copy of them all.
        self._values = self._values.kept(kept)
        for name, slot in self._slots.items():
            self._slots[name] = slot.kept(kept)
        use.keep(kept)
        rows.keep(kept, forget_waiting=forget_waiting)
        return removed

    def describe_rows(self) -> dict[str, int]:
        """Return how many rows there are and what they cost; see `EmbeddingStatistics`."""
        waiting = self._rows.waiting if isinstance(self._rows, GrowingRowIndex) else 0
        return {
            "rows": self._rows.count,
            "waiting": waiting,
            "nbytes": self.nbytes(),
            "index_nbytes": self._rows.nbytes(),
        }

    @property
    def extent(self) -> int:
        return self._rows.count

    @property
    def counted(self) -> int:
        return self.extent

    @property
    def row_nbytes(self) -> int:
        """Bytes that a row takes in a `segment`."""
        return sum(a.itemsize * math.prod(a.shape[1:]) for a in self.segment(0, 0).values())

    def segment(self, start: int, stop: int) -> Segment:
        """Return copies of rows: ``ids``, ``values``, ``slot.*``, ``show``, ``click``, ...."""
        return self.pick(slice(start, stop))

    def pick(self, rows: slice | np.ndarray) -> Segment:
        """Return copies of some rows, by their numbers, in the same form."""
        found = {"ids": self._rows.ids(rows), **self._numbers_of(rows)}
        return found if self._use is None else {**found, **self._use.state(rows)}

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        if name == "ids":
            return self._rows.ids(rows)
        if name in ROW_USE:
            return self._known_use().column(name, rows)
        return self._numbers_of(rows, name)[name]

    def _numbers_of(self, rows: slice | np.ndarray, only: str | None = None) -> Segment:
        slots = {f"slot.{name}": slot for name, slot in self._slots.items()}
        numbers = {"values": self._values, **slots}
        return {
            name: array.rows[rows].copy() for name, array in numbers.items() if only in (None, name)
        }

    def clear(self) -> None:
        self._renumbering()
        self._clear()

    def put(self, segment: Segment) -> None:
        """Load rows; that admits their ids."""
        self._expected.check_rows(forms(self._name, segment), segment)
        rows = self._inserted(segment["ids"])
        self._changing(rows)
        self._values.rows[rows] = segment["values"]
        for name, slot in self._slots.items():
            slot.rows[rows] = segment[f"slot.{name}"]
        if self._use is not None:
            self._use.load(rows, segment)

    def tail(self) -> Segment:
        """Return ``step``, and ``waiting.ids``, ``waiting.sightings`` of ids without a row."""
        waiting = {}
        if self._admission.sightings > 1:
            waiting["waiting.ids"], waiting["waiting.sightings"] = self._growing().waiting_ids()
        return {**super().tail(), **waiting}

    def check_tail(self, tail: Segment) -> None:
        self._expected.check_tail(forms(self._name, tail), tail)

    def finish(self, tail: Segment) -> None:
        self.check_tail(tail)
        if self._admission.sightings > 1:  # first: it may be refused
            rows, ids = self._growing(), tail["waiting.ids"]
            if (has := rows.find(ids) >= 0).any():
                raise GradientError(
                    f"waiting.ids of {self._name!r}: {ids[has][0]} has a row already"
                )
            rows.wait(ids, tail["waiting.sightings"])
        super().finish(tail)

    def check_state(self, state: Segment) -> None:
        self._expected.check_state(forms(self._name, state), state)

    def _saved(self, writes: Sequence[TableOperation]) -> Callable[[], None]:
        # Rows made for ids that are only in the writes remain: they have their initial values.
        ids = [write.ids for write in writes if isinstance(write, PushRows)]
        rows = self._locate(np.concatenate([np.empty(0, np.uint64), *ids]), counting=False)
        rows = rows[rows >= 0]
        values = self._values.rows[rows]
        slots = {name: slot.rows[rows] for name, slot in self._slots.items()}

        def undo() -> None:
            self._values.rows[rows] = values
            for name, slot in slots.items():
                self._slots[name].rows[rows] = slot

        return undo

    def changes(self, operation: TableOperation) -> bool:
        # A lookup may make rows, but a copy of the table would make the same rows.
        sees = isinstance(operation, _SIGHTINGS)
        return (sees and self._admission.sightings > 1) or super().changes(operation)

    def nbytes(self) -> int:
        """Return the bytes of parameters, optimizer state, index, and marks of what has changed.

        The room that a growing table reserves for more rows is not counted: it takes no memory yet.
        """
        arrays = [self._values, *self._slots.values()]
        beside = [self._rows, self._use, self._changed]
        return sum(array.rows.nbytes for array in arrays) + sum(
            each.nbytes() for each in beside if each is not None
        )

    def _known_use(self) -> RowUse:
        if self._use is None:
            raise InternalError(f"embedding {self._name!r} was made without an accessor")
        return self._use

    def _growing(self) -> GrowingRowIndex:
        if not isinstance(self._rows, GrowingRowIndex):
            raise InternalError(f"embedding {self._name!r} has fixed rows")
        return self._rows

    def _clear(self) -> None:
        if self._fixed is None:
            self._rows = GrowingRowIndex(self._admission, self._seed)
        else:
            self._rows = FixedRowIndex(*self._fixed)
        most = None if self._fixed is None else self._rows.count
        self._values = GrowingArray(self._dim, self._dtype, most)
        self._slots = {
            name: GrowingArray(self._dim, self._dtype, most) for name in self._updater.slots
        }
        self._use = RowUse(self._accessor) if self._accessor else None
        if self._fixed is not None:
            self._extend(0)

    def _locate(self, ids: np.ndarray, *, counting: bool = True) -> np.ndarray:
        before = self._rows.count
        rows = self._rows.locate(ids, counting=counting)
        if counting and self._admission.sightings > 1:
            self._changing(_NONE)  # ids may wait now, which are in no row
        if self._rows.count > before:
            self._extend(before)
        return rows

    def _inserted(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id; those without one get one, admitted or not."""
        if not isinstance(self._rows, GrowingRowIndex):
            return self._rows.find(ids)
        before = self._rows.count
        rows = self._rows.insert(ids)
        self._extend(before)
        return rows

    def _extend(self, start: int) -> None:
        """Initialise the rows from ``start`` on."""
        stop = self._rows.count
        for array in (self._values, *self._slots.values()):
            array.grow(stop)
        if self._use is not None:
            self._use.grow(stop)
        ids = read_only(self._rows.ids(slice(start, stop)))
        self._initializer.fill(self._values.rows[start:stop], ids, self._seed)
        for name, slot in self._slots.items():
            slot.rows[start:stop] = self._updater.initial_slot(name)
