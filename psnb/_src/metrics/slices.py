"""Sliced: a metric by slice, of bounded size and yet merged exactly. Pure.

At most so many slices have a row: those whose keys have the lowest ranks (`psnb._src.metrics.keys`)
of all that occurred; the others have one row together. A key among the lowest of a whole is among
the lowest of each part in which it occurs, so all of its examples are in its row, whatever was
merged first; and what has left for the others stays there. A state keeps the lowest rank that
has left as its *bound*: after a subtraction, too, nothing from there on may have a row again.

A metric of groups bounds its groups in each slice in the same way, by *cuts*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from psnb._src.metrics.forms import StateForm
from psnb._src.metrics.keys import KeyColumn, key_of_bytes, key_to_bytes
from psnb._src.metrics.metric import MergeableMetric, MetricState
from psnb._src.metrics.rows import NO_CUT, RowKind
from psnb._src.metrics.slice_table import SliceRow, SliceTable, worst_first
from psnb._src.utils.checks import integer
from psnb.errors import ConfigurationError

SLICES = 100
"""How many slices have a row, unless the caller says another number."""

MOST_SLICES = 1000

_HEAD = np.dtype([("slices", "<i8"), ("width", "<i8"), ("rows", "<i8")])
"""What the dtype of a state follows from; in front of it where it is saved."""

_PARTS = ("bound", "ranks", "keys", "examples", "cuts", "rows")

_NO_PART = "subtract only a state of some of the same examples"


@dataclass(frozen=True)
class Table:
    """A state's parts. Slices are numbered by rank; behind the last one are the others.

    Attributes
    ----------
    bound : numpy.uint64
        The lowest rank that the others may have; `NO_CUT` if they have no examples.
    ranks, keys : numpy.ndarray
        Of the slices; the keys as bytes.
    examples : numpy.ndarray
        How many each slice has, and the others.
    cuts : numpy.ndarray
        The lowest rank of a group that was left out, likewise; empty unless groups are bounded.
    rows : numpy.ndarray
        Of the row kind's dtype, sorted.
    """

    bound: np.uint64
    ranks: np.ndarray
    keys: np.ndarray
    examples: np.ndarray
    cuts: np.ndarray
    rows: np.ndarray


def unsliced(rows: np.ndarray, cuts: np.ndarray, examples: int = 0) -> Table:
    """Return a table without slices: all rows are of one."""
    none = np.zeros(0, "<u8")
    return Table(NO_CUT, none, np.zeros(0, "S1"), np.array([examples]), cuts, rows)


@dataclass(frozen=True)
class TableForm(StateForm):
    """States in tables: one array of one element with fields.

    Parameters
    ----------
    kind : RowKind
        The rows.
    most : int
        Slices that have a row, at most.
    """

    kind: RowKind
    most: int

    def zeros(self) -> np.ndarray:
        return self.packed(unsliced(np.zeros(0, self.kind.dtype), self.no_cuts(1)))

    def no_cuts(self, count: int) -> np.ndarray:
        """Return bounds that leave nothing out."""
        return np.full(count if self.kind.cut else 0, NO_CUT, "<u8")

    def packed(self, table: Table) -> np.ndarray:
        """Return a table as an array."""
        width = int(np.strings.str_len(table.keys).max(initial=1))
        array = np.zeros(1, self._dtype(table.ranks.size, width, table.rows.size))
        for name in _PARTS:
            array[name] = getattr(table, name)
        return array

    def unpacked(self, array: np.ndarray) -> Table:
        """Return the table; its parts are views."""
        return Table(**{name: array[name][0] for name in _PARTS})

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        tables = [self.unpacked(array) for array in arrays]
        bound = min(table.bound for table in tables)
        return self.packed(self._added(tables, np.uint64(bound)))

    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        of_whole, of_part = self.unpacked(whole), self.unpacked(part)
        if of_part.bound < of_whole.bound:
            raise ConfigurationError(f"a state of a metric by slice is no part: {_NO_PART}")
        negative = replace(
            of_part, examples=-of_part.examples, rows=self.kind.negative(of_part.rows)
        )
        if self.kind.cut:  # the part's bounds may only be higher: so those of the whole stay
            negative = replace(negative, cuts=np.full_like(of_part.cuts, NO_CUT))
        return self.packed(self._added([of_whole, negative], of_whole.bound))

    def fits(self, array: np.ndarray) -> bool:
        if array.shape != (1,) or array.dtype.names != _PARTS:
            return False
        table = self.unpacked(array)
        count, rows = table.ranks.size, table.rows
        width = table.keys.dtype.itemsize
        if array.dtype != self._dtype(count, width, rows.size) or count > self.most:
            return False
        rising = table.ranks[1:] > table.ranks[:-1]
        owners = rows["slice"]
        return bool(
            rising.all()
            and (not count or table.bound > table.ranks[-1])
            and (table.examples[:count] > 0).all()
            and table.examples[count] >= 0
            and (owners <= count).all()
            and self.kind.fit(rows)
            and (owners[1:] >= owners[:-1]).all()
        )

    def to_bytes(self, array: np.ndarray) -> bytes:
        table = self.unpacked(array)
        sizes = table.ranks.size, table.keys.dtype.itemsize, table.rows.size
        return np.array([sizes], _HEAD).tobytes() + array.tobytes()

    def of_bytes(self, data: bytes) -> np.ndarray:
        head = np.frombuffer(data[: _HEAD.itemsize], _HEAD)[0]
        sizes = [int(each) for each in head]
        if min(sizes) < 0 or sizes[1] < 1 or max(sizes) > len(data):
            raise ValueError("a table of slices is damaged")
        array = np.frombuffer(data, self._dtype(*sizes), offset=_HEAD.itemsize).copy()
        for key in array["keys"].reshape(-1).tolist():
            key_of_bytes(key)
        return array

    def _dtype(self, count: int, width: int, rows: int) -> np.dtype:
        return np.dtype(
            [
                ("bound", "<u8"),
                ("ranks", "<u8", (count,)),
                ("keys", f"S{width}", (count,)),
                ("examples", "<i8", (count + 1,)),
                ("cuts", "<u8", ((count + 1) if self.kind.cut else 0,)),
                ("rows", self.kind.dtype, (rows,)),
            ]
        )

    def _added(self, tables: Sequence[Table], bound: np.uint64) -> Table:
        """Return the sum of tables, none of whose slices from a bound on has a row of its own."""
        ranks = np.concatenate([table.ranks for table in tables])
        keys = np.concatenate([table.keys for table in tables])
        found, first, numbers = np.unique(ranks, return_index=True, return_inverse=True)
        if (keys[first][numbers] != keys).any():
            at = int(np.flatnonzero(keys[first][numbers] != keys)[0])
            both = [key_of_bytes(each) for each in (keys[at], keys[first][numbers][at])]
            raise ConfigurationError(f"by: {both} have the same hash: rename one of these slices")
        # What was subtracted whole is gone, and leaves its place to others.
        gone = np.zeros(found.size, np.int64)
        np.add.at(gone, numbers, np.concatenate([table.examples[:-1] for table in tables]))
        held = (gone != 0) & (found < bound)
        if np.count_nonzero(held) > self.most:
            bound = found[held][self.most]
            held &= found < bound
        count = int(np.count_nonzero(held))
        places = np.where(held, np.cumsum(held) - 1, count)[numbers]
        examples, cuts = np.zeros(count + 1, np.int64), self.no_cuts(count + 1)
        rows, start = [], 0
        for table in tables:
            own = np.append(places[start : start + table.ranks.size], count)
            start += table.ranks.size
            np.add.at(examples, own, table.examples)
            if self.kind.cut:
                np.minimum.at(cuts, own, table.cuts)
            moved = table.rows.copy()
            moved["slice"] = own[moved["slice"]]
            rows.append(moved)
        if examples.min() < 0:
            raise ConfigurationError(f"a slice would have less than no examples: {_NO_PART}")
        added, cuts = self.kind.added(np.concatenate(rows), cuts, count + 1, self.share)
        if not examples[-1]:
            bound = NO_CUT
        return Table(np.uint64(bound), found[held], keys[first][held], examples, cuts, added)

    @property
    def share(self) -> int:
        """By how many slices the rows of groups are shared, at most."""
        return self.most + 1 if self.most else 1


@dataclass(frozen=True)
class Sliced(MergeableMetric):
    """A metric by slice; its value is that of all examples together.

    Parameters
    ----------
    metric : MergeableMetric
        One that has rows.
    slices : int
        How many slices have a row, at most.
    """

    metric: MergeableMetric
    slices: int

    def __post_init__(self) -> None:
        integer("slices", self.slices, 1, MOST_SLICES)
        if isinstance(self.metric, Sliced) or self.metric.rows is None:
            raise ConfigurationError(f"{self.metric} cannot be taken by slice")

    @property
    def form(self) -> TableForm:
        """The table."""
        return TableForm(self._kind, self.slices)

    @property
    def best(self) -> float:  # type: ignore[override]
        """That of the metric."""
        return self.metric.best

    @property
    def _kind(self) -> RowKind:
        assert self.metric.rows is not None
        return self.metric.rows

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the value of all examples."""
        whole = self.whole(array)
        return self.metric.evaluate(whole)

    def coverage(self, array: np.ndarray) -> float:
        """Return that of all examples."""
        whole = self.whole(array)
        return self.metric.coverage(whole)

    def slice_table(self, array: np.ndarray) -> SliceTable:
        """Return the values by slice."""
        table = self.form.unpacked(array)
        ends = np.searchsorted(table.rows["slice"], np.arange(table.examples.size), "right")
        rows, start = [], 0
        for number, end in enumerate(ends.tolist()):
            cut = table.cuts[number] if table.cuts.size else NO_CUT
            value = self.metric.evaluate(self._kind.array(table.rows[start:end], cut))
            last = number == table.ranks.size
            key = None if last else key_of_bytes(bytes(table.keys[number]))
            examples = int(table.examples[number])
            rows.append(SliceRow(key, float("nan") if isinstance(value, str) else value, examples))
            start = end
        *own, others = rows
        return SliceTable(tuple(worst_first(own, self.best)), others if others.examples else None)

    def whole(self, array: np.ndarray) -> np.ndarray:
        """Return the metric's own state of all examples."""
        table = self.form.unpacked(array)
        rows = table.rows.copy()
        rows["slice"] = 0
        cuts = np.array([table.cuts.min()], "<u8") if table.cuts.size else table.cuts
        added, cuts = self._kind.added(rows, cuts, 1, 1)
        return self._kind.array(added, cuts[0] if cuts.size else NO_CUT)


def sliced(
    metric: MergeableMetric,
    by: Any,
    slices: int,
    size: int,
    weights: np.ndarray | None,
    rows_of: Callable[[np.ndarray], np.ndarray],
) -> MetricState:
    """Return the state of a batch by slice.

    Parameters
    ----------
    metric : MergeableMetric
        The metric.
    by : array_like
        A key for each example.
    slices : int
        How many slices have a row, at most.
    size : int
        How many examples there are.
    weights : numpy.ndarray or None
        What each counts: what counts nothing is of no slice.
    rows_of : callable
        Returns the rows of the batch, given the number of each example's slice.

    Raises
    ------
    ConfigurationError
        If these are no keys.
    """
    form = Sliced(metric, slices).form
    column = KeyColumn("by", by, size)
    counted = slice(None) if weights is None else np.flatnonzero(weights > 0)
    found, first, numbers = np.unique(column.ranks[counted], return_index=True, return_inverse=True)
    places = np.arange(size)[counted]
    bound = NO_CUT if found.size <= slices else found[slices]
    ranks = found[:slices]
    keys = [column.key(at) for at in places[first[: ranks.size]].tolist()]
    column.require_distinct(places, first, numbers)
    owners = np.full(size, ranks.size)
    owners[counted] = np.minimum(numbers, ranks.size)
    count = ranks.size + 1
    rows, cuts = form.kind.added(rows_of(owners), form.no_cuts(count), count, form.share)
    names = np.array([key_to_bytes("by", key) for key in keys], "S")
    table = Table(
        np.uint64(bound),
        ranks,
        names,
        np.bincount(owners[counted], minlength=count),
        cuts,
        rows,
    )
    return MetricState(Sliced(metric, slices), form.packed(table))
