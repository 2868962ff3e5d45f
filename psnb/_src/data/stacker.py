"""Stacker: collects single elements into columns. Pure.

A source may refill the arrays of an element for the next one, as tf.data allows. So each
array is copied when it comes, into what becomes the column: once, as stacking them later would
have to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from psnb._src.data.block import Block, Column, Origin, copied, leaf_name, stack, with_own_items
from psnb._src.data.nesting import Nesting, as_leaf, flatten, flatten_like, is_text, paths
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import Kind, Spec, kind_of, named
from psnb.errors import DatasetError


class Stacker:
    """Collects single elements into blocks, and checks that all have the same form.

    Parameters
    ----------
    spec : structure of ArraySpec, optional
        The form of the elements; by default the first one decides.
    """

    def __init__(self, spec: Spec = None) -> None:
        self._nesting: Nesting = None
        self._kinds: list[Kind] | None = None
        self._columns: list[_Leaves | _Arrays] = []
        self._names: list[str] = []
        self._shapes: list[tuple[int | None, ...]] | None = None
        if spec is not None:
            specs, nesting = flatten(spec)
            self._begin(nesting, [Kind(each.dtype, len(each.shape), None) for each in specs])
            self._shapes = [each.shape for each in specs]

    def add(self, element: Any) -> None:
        """Add an element.

        Raises
        ------
        DatasetError
            If it differs in form from those before; then it is not added.
        """
        if self._kinds is None:
            leaves, nesting = flatten(element)
            names = paths(nesting)
            leaves = [as_leaf(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
            self._begin(nesting, [kind_of(leaf) for leaf in leaves])
        else:
            leaves = [element] if self._nesting is None else flatten_like(self._nesting, element)
            for index, (leaf, kind) in enumerate(zip(leaves, self._kinds, strict=True)):
                # The common case, without further checks.
                if type(leaf) is np.ndarray:
                    if leaf.dtype is kind[0] and leaf.ndim == kind[1] > 0:
                        continue
                elif type(leaf) is kind[2]:
                    continue
                leaves[index] = self._checked(leaf, index)
        if self._shapes is not None:
            for leaf, shape, name in zip(leaves, self._shapes, self._names, strict=True):
                found = () if is_text(leaf) else leaf.shape
                if any(b is not None and a != b for a, b in zip(found, shape, strict=True)):
                    raise DatasetError(f"{leaf_name(name)} has shape {found}, expected {shape}")
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.append(leaf)

    def block(self, origin: Origin | None = None) -> Block:
        """Return the elements since the last call, at least one."""
        columns = tuple(column.taken() for column in self._columns)
        return Block(self._nesting, columns, len(columns[0]), origin, loose=True)

    def _begin(self, nesting: Nesting, kinds: list[Kind]) -> None:
        if not kinds:
            raise DatasetError("an element must have at least one array; this one is empty")
        self._nesting, self._kinds, self._names = nesting, kinds, paths(nesting)
        self._columns = [_Arrays() if kind.axes else _Leaves() for kind in kinds]

    def _checked(self, value: Any, index: int) -> Any:
        assert self._kinds is not None  # an element was there before, or a spec
        leaf, expected = as_leaf(value, self._names[index]), self._kinds[index]
        if isinstance(value, int | float | list) and not isinstance(value, np.generic):
            leaf = _of_dtype(leaf, expected.dtype)
        kind = kind_of(leaf)
        if kind[:2] != expected[:2]:
            raise DatasetError(
                f"{leaf_name(self._names[index])} is {named(kind)}, but {named(expected)} before"
            )
        return leaf


def _of_dtype(leaf: Any, dtype: np.dtype) -> Any:
    """Return Python's numbers in a dtype, if that holds them; else as they are.

    Floats are rounded to it, as they have more digits than people write. Integers are not: they may
    be ids.
    """
    found = leaf.dtype
    if found == dtype:
        return leaf
    if not np.size(leaf) or (found.kind, dtype.kind) == ("f", "f"):
        return leaf.astype(dtype)
    if found.kind not in "iu" or dtype.kind not in "iuf":
        return leaf
    limit = np.iinfo(dtype) if dtype.kind in "iu" else None
    exact = 1 << np.finfo(dtype).nmant + 1 if limit is None else 0
    low, high = (-exact, exact) if limit is None else (limit.min, limit.max)
    return leaf.astype(dtype) if low <= int(leaf.min()) <= int(leaf.max()) <= high else leaf


class _Leaves(list[Any]):
    """A column of scalars, text and datasets, which cannot be refilled."""

    def taken(self) -> Column:
        """Return the column; the next one begins."""
        column = stack(self)
        self.clear()
        return column


class _Arrays:
    """A column of arrays: their values one after another, if their first axis alone differs.

    Otherwise, and for what has no such values, a copy of each.
    """

    __slots__ = ("_copies", "_ends", "_even", "_length", "_shape", "_used", "_values")

    def __init__(self) -> None:
        self._shape: Any = None  # of the last leaf among the values; None if there is none
        self._length = 0  # its first axis
        self._values = np.empty(0)
        self._used = 0  # of the values; the previous column's, until the first leaf comes
        self._ends: list[int] = []  # where leaves end there
        self._even = True  # whether all have one shape
        self._copies: list[Any] = []

    def append(self, leaf: Any) -> None:
        """Copy a leaf."""
        if leaf.shape != self._shape and not self._fits(leaf):
            self._copies.append(copied(leaf))
            return
        start = self._used
        stop = self._used = start + self._length
        if stop > len(self._values):
            grown = np.empty((max(2 * start, stop), *self._shape[1:]), leaf.dtype)
            grown[:start] = self._values[:start]
            self._values = grown
        self._values[start:stop] = with_own_items(leaf)
        self._ends.append(stop)

    def taken(self) -> Column:
        """Return the column; the next one begins."""
        column = stack(self._copies) if self._copies else self._stacked()
        self._shape, self._values = None, self._values[:0]
        self._ends, self._even, self._copies = [], True, []
        return column

    def _fits(self, leaf: Any) -> bool:
        """Return whether a leaf, of another shape than the one before, can be among the values."""
        shape = leaf.shape
        if self._shape is not None:
            if shape[1:] != self._shape[1:]:
                self._copies, self._shape, self._used = list(self._stacked()), None, 0
                return False
            self._even = False
        elif self._copies or isinstance(leaf, Ragged) or leaf.dtype.kind in "SU":
            return False
        else:  # the first one; the column will be as large as the one before
            room = max(self._used, shape[0])
            self._values, self._used = np.empty((room, *shape[1:]), leaf.dtype), 0
        self._shape, self._length = shape, shape[0]
        return True

    def _stacked(self) -> Column:
        values, ends = self._values[: self._used], self._ends
        if self._used < 0.75 * len(self._values):
            values = values.copy()  # so that the rest is not kept for nothing
        if self._even:
            return values.reshape(len(ends), *self._shape)
        return Ragged(values, np.array([0, *ends]))
