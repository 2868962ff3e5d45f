"""RowTable: the rows of a shard of an embedding, and the memory for more. Pure.

What a shard does with them is in `psnb._src.server.tables.sparse`, and what is done with the rows
of several tables at once in `psnb._src.server.tables.fused`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.disk import DiskSpace
from psnb._src.server.hashing import MOST_ROWS
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, Reservable, scratch
from psnb._src.server.optimizer import Optimizer, Workspace
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.checks import ROW_USE, ExpectedRows, check_array, check_ids
from psnb._src.server.tables.eviction.leaving import Leaving
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.server.tables.initializers import Initializer
from psnb._src.server.tables.moved_rows import MovedRows
from psnb._src.server.tables.row_index import FixedRowIndex, GrowingRowIndex, RowIndex, RowRequest
from psnb._src.server.tables.row_use import CtrAccessor, RowUse
from psnb._src.server.tables.table import Table
from psnb._src.server.tables.updater import Updater
from psnb._src.transport import half_width
from psnb.errors import InternalError, ServerMemoryError

_ALWAYS = Always()
_NONE = np.empty(0, np.int64)

_BLOCK = 1 << 14
"""Numbers of half width that are rounded at a time."""


class RowTable(Table, Reservable):
    """Rows by id, with their optimizer state, and the memory for more.

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
        How the values are stored: ``"float32"``, ``"float64"``, ``"bfloat16"`` or ``"float16"``.
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
    storage : str
        ``"memory"``, or ``"disk"`` for values, optimizer state and use in files.
    disk : DiskSpace, optional
        Where these are.
    slot_dtype : str, optional
        How the optimizer's state is stored; by default as it is computed with.
    eviction : Eviction, optional
        When rows leave, if ``rows`` is None; by default they stay.

    Attributes
    ----------
    dim : int
        Floats a row.
    dtype, computed : numpy.dtype
        Of the rows, as they are stored and as they are computed with.
    index : RowIndex
        From ids to rows.
    selects : bool
        Whether there is more to do for ids that all have a row, or some may have none, though they
        were looked up or pushed.
    moved : MovedRows
        How far rows have moved.
    disk : DiskSpace or None
        Where its rows are in files, if they are.
    at : int
        The address of its place, where compiled loops find its arrays; see
        `psnb._src.server.kernels`.
    """

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
        storage: str = "memory",
        disk: DiskSpace | None = None,
        slot_dtype: str | None = None,
        eviction: Eviction | None = None,
    ) -> None:
        super().__init__()
        self.disk = (disk or DiskSpace()) if storage == "disk" else None
        self.name, self.dim, self.dtype = name, dim, np.dtype(dtype)
        self.computed = half_width.computed(self.dtype)
        slot_kind = np.dtype(slot_dtype) if slot_dtype else None
        self._initializer, self._seed = initializer, seed
        self._coming = 0  # rows that there is room for, as they will be loaded
        self._gone = False  # whether rows may have gone that reserved writes will make again
        self._fixed = None if rows is None else (rows, index, shards)
        self._admission, self._accessor = admission, accessor
        # Some ids may have no row, unless all get one when first seen.
        make = partial(Workspace.of_rows, dim, self.computed)
        gaps = not isinstance(admission, Always)
        arrays = 1 + len(optimizer.slots if optimizer else ())
        self.paging = None if self.disk is None else self.disk.paging(arrays)
        self.updater = Updater(name, optimizer, make, gaps=gaps, seed=seed, paging=self.paging)
        self._leaving = None if eviction is None else Leaving(eviction)
        recency = self._leaving.names if self._leaving else ()
        self.leaves, self.expires = eviction is not None, bool(eviction and eviction.expires)
        self.expected = ExpectedRows(
            *(name, self.dtype, self.updater.slots, (dim,), self._fixed),
            uses=accessor is not None,
            waits=admission.min_count > 1,
            slot_dtype=slot_kind,
            row_wise=optimizer.row_wise if optimizer else frozenset(),
            recency=recency,
        )
        # Where rows of half width begin, before they are rounded.
        half = self.dtype != self.computed
        self._first = scratch((max(1, _BLOCK // dim) if half else 0, dim), self.computed)
        self._names = ("ids", *self.expected.numbers, *(ROW_USE if accessor else ()), *recency)
        self.kind = self.dtype, slot_kind, dim
        self.counts = admission.min_count > 1 or self.leaves
        self.selects = gaps or self.leaves
        self._place = np.zeros(kernels.PLACE, np.int64)
        self.at = kernels.address(self._place)
        self.moved = MovedRows()
        self.index: RowIndex
        self._values: GrowingArray
        self._slots: dict[str, GrowingArray]
        self._use: RowUse | None
        self._begin()

    @property
    def extent(self) -> int:
        return self.index.count

    def nbytes(self) -> int:
        """Return the bytes of parameters, optimizer state, index, and marks of changes, in all.

        The room that a growing table reserves for more rows is not counted: it takes no memory yet.
        """
        changed = 0 if self._changed is None else self._changed.nbytes()
        arrays = sum(array.rows.nbytes for array in self.row_arrays())
        return arrays + self.index.nbytes() + changed

    def disk_nbytes(self) -> int:
        """Return how many of the bytes are in files."""
        return sum(array.disk_nbytes for array in self.row_arrays())

    def _known_use(self) -> RowUse:
        if self._use is None:
            raise InternalError(f"embedding {self.name!r} was made without an accessor")
        return self._use

    def use_of(self, rows: slice) -> tuple[np.ndarray, ...] | None:
        """Return shows, clicks, days unseen and scores of rows; None if they are not recorded."""
        if self._use is None:
            return None
        show, click, unseen = (self._use.column(name, rows) for name in ROW_USE)
        return show, click, unseen, self._use.accessor.score(show, click)

    def _growing(self) -> GrowingRowIndex:
        if not isinstance(self.index, GrowingRowIndex):
            raise InternalError(f"embedding {self.name!r} has fixed rows")
        return self.index

    def in_parts(self, count: int) -> Iterable[slice]:
        """Return which of ``count`` rows are touched together."""
        return [slice(0, count)] if self.paging is None else self.paging.parts(0, count)

    @property
    def values(self) -> np.ndarray:
        """All rows as they are stored, valid until there are more."""
        return self._values.rows.view(self.dtype)

    def matrices(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the codes of values and slots of all rows, valid until there are more."""
        return self._values.rows, {name: slot.rows for name, slot in self._slots.items()}

    def first_rows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of ids without a row would get one at once, and what would be in it."""
        at = np.flatnonzero(self._admission.may_enter(ids, self._seed))
        first = np.empty((at.size, self.dim), self.computed)
        self._initializer.fill(first, read_only(ids[at]), self._seed)
        return at, half_width.rounded(first, self.dtype)

    def _begin(self) -> None:
        """Make it empty, in new memory."""
        most = None if self._fixed is None else len(range(self._fixed[1], *self._fixed[::2]))
        values = self._array("values", most)
        slots = {name: self._array(f"slot.{name}", most) for name in self.updater.slots}
        for each in (values, *slots.values()):
            each.reserve(most or 0)
        index = (
            GrowingRowIndex(self._admission, self._seed)
            if self._fixed is None
            else FixedRowIndex(*self._fixed)
        )
        self._use = RowUse(self._accessor, self.disk) if self._accessor else None
        if self._leaving is not None:
            self._leaving.clear()
        self._values, self._slots = values, slots
        self.replace_index(index)
        # An optimizer with more slots than that has no loop that looks for them here.
        for at, each in zip(
            range(kernels.VALUES, kernels.PLACE), (values, *slots.values()), strict=False
        ):
            each.noted_in(self._place[at : at + 1])
        self._extend(0, self.index.ids())
        self.measure()

    def _array(self, name: str, most: int | None) -> GrowingArray:
        dtype, (columns,) = self.expected.form_of(name)
        return GrowingArray(columns, half_width.code_dtype(dtype), most, self.disk)

    def row_arrays(self) -> list[GrowingArray]:
        """Return all arrays that have a row for each id."""
        use: list[GrowingArray] = [] if self._use is None else [self._use]
        recency = [] if self._leaving is None else self._leaving.arrays
        return [self._values, *self._slots.values(), *use, *recency]

    def requested(
        self,
        ids: np.ndarray,
        counting: bool = True,
        repeated: bool = True,
        inserted: bool = False,
        found: np.ndarray | None = None,
    ) -> RowRequest:
        """Get and keep the memory for the rows of ids; see `GrowingRowIndex.prepare`.

        ``found`` are the rows that they have now, if they are looked up at once.
        """
        request = self.index.prepare(ids, counting, repeated, inserted)
        return self._with_room(request)

    def _with_room(self, request: RowRequest) -> RowRequest:
        new = most = request.most_new
        if most:  # none, if the rows are fixed
            spare = min(self._room - self.index.count, self.index.spare) - self.held
            if most > spare:
                new = self._growing().look(request)  # mostly, all of them are there
            if new > spare:
                self.reserve_rows(self.held + new)
        request.promise = Promise([self], new, most - new)
        return request

    @property
    def held(self) -> int:
        """How many rows reserved writes may make."""
        self._gone = self._gone and self.promises > 0
        return self.promised + (self.present if self._gone else 0)

    def reserve_rows(self, more: int, waiting: int = 0) -> None:
        """Get memory for more rows, and for ids that wait.

        Small arrays may keep some if there is none for the rest.
        """
        rows = self._growing()
        if rows.count + more > MOST_ROWS:
            raise ServerMemoryError(
                f"a shard of embedding {self.name!r} has {rows.count:,} rows and was to get up to "
                f"{more:,} more: it has {MOST_ROWS:,} at most. Nothing was changed. Make "
                "the strategy with more servers or more shards=, into which a checkpoint can be "
                "restored, or hold fewer rows (admission=, shrink)"
            )
        before = [(array, array.room) for array in self.row_arrays()]
        try:
            for array, _ in before:
                array.reserve(rows.count + more)
            rows.reserve(more, waiting)
        except MemoryError:  # what this push may not have, the next may need
            for array, room in before:
                array.give_back(room)
            raise
        finally:
            self.measure()

    def tick(self, loading: bool = False) -> None:
        super().tick()
        if self._fixed is None and not loading:  # rows for which there is memory may not come
            for array in self.row_arrays():
                array.give_back(self.index.count + self.held)
            self.measure()

    def measure(self) -> None:
        """Note for how many rows there is memory."""
        self._room = min(array.room for array in self.row_arrays())

    def replace_index(self, index: RowIndex) -> None:
        """Take another index, for the rows as they are now."""
        self.index = index
        self._place[0] = kernels.address(index.place)

    def give(self, request: RowRequest, *, begun: bool = True, pushed: bool = False) -> np.ndarray:
        """Return the rows of ids, and make new ones. Takes no memory.

        Not ``begun``, what is in new ones is written next. ``pushed`` says that gradients are.
        """
        before = self.index.count
        found = self.index.give(request)
        if self.index.count > before:
            rows = self._growing()
            try:
                self._extend(before, rows.last_ids(before), begun=begun)
            except BaseException:  # a bug, but no id may be known without its row
                rows.take_back(before)
                for array in self.row_arrays():
                    array.grow(before)
                raise
        if request.promise is not None:
            request.promise.release()
        if request.min_count > 1:
            self.changing(_NONE)  # ids may wait now, which are in no row
        return found

    def _extend(self, start: int, ids: np.ndarray, *, begun: bool = True) -> None:
        """Add the rows of ``ids``, from the row ``start`` on; initialised if they are ``begun``."""
        stop = self.index.count
        for array in self.row_arrays():
            array.grow(stop)
        if not begun:
            return
        if self._first.size:
            values, step = self.values[start:stop], len(self._first)
            for at in range(0, len(values), step):
                some = self._first[: min(step, len(values) - at)]
                self._initializer.fill(some, read_only(ids[at : at + step]), self._seed)
                with np.errstate(over="ignore"):  # as `half_width.rounded`
                    values[at : at + step] = some
        else:
            self._initializer.fill(self.values[start:stop], read_only(ids), self._seed)
        for name, slot in self._slots.items():
            dtype, _ = self.expected.form_of(f"slot.{name}")
            slot.rows.view(dtype)[start:stop] = self.updater.required().initial_slot(name)

    def _check_rows(self, ids: np.ndarray, numbers: np.ndarray, what: str) -> None:
        check_ids(f"ids for {self.name!r}", ids)
        check_array(f"{what} for {self.name!r}", numbers, self.computed, (ids.size, self.dim))
