"""Block: several elements, the unit of data flow in a pipeline, with a column per leaf. Pure.

There are three kinds of columns: an array with a leading axis of elements; a `Ragged`, whose rows
are arrays that differ in their first axis; or a one-dimensional array of objects, for all other
leaves (text, `Ragged`, arrays that differ in other axes).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from psnb._src.data.nesting import (
    Nesting,
    as_array,
    as_leaf,
    flatten,
    flatten_like,
    is_text,
    paths,
    unflatten,
)
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import ArraySpec, Spec, kind_of
from psnb._src.utils import ownership
from psnb.errors import DatasetError

BLOCK = 1024
"""How many elements are in a block, unless fewer are asked for."""

Column = np.ndarray | Ragged


class Origin(NamedTuple):
    """The files that elements come from, for messages.

    Attributes
    ----------
    files : numpy.ndarray
        The path of each element's file, objects ``(n,)``.
    records : numpy.ndarray
        The number of each element's record in its file, from 0, int64 ``(n,)``.
    """

    files: np.ndarray
    records: np.ndarray

    def place(self, index: int) -> str:
        """Return where an element comes from, for a message."""
        return f"{self.files[index]}, record {self.records[index] + 1}"


class Block(NamedTuple):
    """Some consecutive elements.

    Attributes
    ----------
    nesting : Nest or None
        How the leaves of an element are nested.
    columns : tuple of Column
        One column per leaf.
    count : int
        How many elements; at least one, except for an empty source.
    origin : Origin or None
        Where the elements come from, if from files.
    loose : bool
        Whether arrays that have one shape here may have another in other blocks. So it is with
        elements that came one by one. A source that knows its columns uses a `Ragged` where shapes
        may differ.
    """

    nesting: Nesting
    columns: tuple[Column, ...]
    count: int  # type: ignore[assignment]  # what tuples call so is not needed
    origin: Origin | None = None
    loose: bool = False

    def element(self, index: int) -> Any:
        """Return one element; its arrays may be views."""
        if self.nesting is None:
            return self.columns[0][index]
        return unflatten(self.nesting, iter([column[index] for column in self.columns]))

    def whole(self) -> Any:
        """Return the columns, nested as an element's leaves are."""
        return unflatten(self.nesting, iter(self.columns))

    def take(self, indices: np.ndarray) -> Block:
        """Copy some elements together."""
        origin = self.origin and Origin(*(take(part, indices) for part in self.origin))
        columns = tuple(take(column, indices) for column in self.columns)
        return Block(self.nesting, columns, len(indices), origin, self.loose)

    def part(self, start: int, stop: int) -> Block:
        """Return a run of elements, as views."""
        if start == 0 and stop >= self.count:
            return self
        stop = max(start, min(stop, self.count))
        origin = self.origin and Origin(*(part[start:stop] for part in self.origin))
        columns = tuple([column[start:stop] for column in self.columns])
        return Block(self.nesting, columns, stop - start, origin, self.loose)

    def place(self, index: int) -> str:
        """Return where an element comes from, for a message; empty if unknown."""
        if self.origin is None:
            return ""
        return f" ({self.origin.place(index)})"


def read_only(block: Block) -> Block:
    """Return a block whose arrays are read-only, although others may share their memory."""
    return block._replace(columns=tuple(_read_only(column) for column in block.columns))


def _read_only(column: Column) -> Column:
    if isinstance(column, Ragged):
        return column.__psnb_arrays__(ownership.read_only)
    leaf = column[0] if column.dtype == object and column.ndim == 1 and len(column) else None
    if isinstance(leaf, np.ndarray | Ragged):
        column = objects([_read_only(each) for each in column])
    return ownership.read_only(column)


def made_of(given: Block, block: Block) -> Block:
    """Return what a function has made of a block, as a block that nothing else can write to.

    It has copies of all columns except where the memory was the function's argument.
    """
    ours = [_memory(column) for column in given.columns]
    columns = []
    for column in block.columns:
        shared = any(np.may_share_memory(_memory(column), each) for each in ours)
        columns.append(column if shared else copied(column))
    return Block(block.nesting, tuple(columns), block.count, given.origin)


def _memory(column: Column) -> np.ndarray:
    return column.values if isinstance(column, Ragged) else column


def copied(leaf: Any) -> Any:
    """Copy an array or `Ragged`; all else is immutable."""
    if isinstance(leaf, np.ndarray):
        own = with_own_items(leaf)
        return leaf.copy() if own is leaf else own
    if isinstance(leaf, Ragged):
        return leaf.__psnb_arrays__(np.ndarray.copy)
    return leaf


def with_own_items(leaf: Any) -> Any:
    """Return an array with copies of the arrays that are its items; all else as it is."""
    if leaf.dtype != object or not isinstance(leaf, np.ndarray) or not leaf.size:
        return leaf
    if not any(isinstance(each, (np.ndarray, Ragged)) for each in leaf.flat):
        return leaf
    found = leaf.copy()
    for at in np.ndindex(leaf.shape):
        found[at] = copied(leaf[at])
    return found


def take(column: Any, indices: np.ndarray) -> Any:
    """Copy some rows of a column together."""
    # Not `numpy.take`, whose overhead is as long as a small batch takes.
    return column.take(indices) if isinstance(column, Ragged) else column.take(indices, 0)


def concatenate(blocks: Sequence[Block]) -> Block:
    """Return the elements of all blocks, at least one, in order.

    Raises
    ------
    DatasetError
        If elements differ in structure, dtype or number of axes.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    parts = [
        each.columns
        if each.nesting == first.nesting
        else tuple(flatten_like(first.nesting, each.whole()))
        for each in blocks
    ]
    columns = []
    for index, several in enumerate(zip(*parts, strict=True)):
        types = {leaf_dtype(column) for column in several if len(column)}
        if len(types) > 1:
            raise different_dtypes(leaf_name(paths(first.nesting)[index]), types)
        columns.append(_concatenated(several))
    origins = [block.origin for block in blocks]
    origin = None
    if all(each is not None for each in origins):
        origin = Origin(*(np.concatenate(several) for several in zip(*origins, strict=True)))
    loose = any(block.loose for block in blocks)
    return Block(first.nesting, tuple(columns), sum(block.count for block in blocks), origin, loose)


def different_dtypes(what: str, types: Iterable[Any]) -> DatasetError:
    """Return the error that elements differ in what they are made of."""
    dtypes = ", ".join(sorted(str(dtype) for dtype in types))
    return DatasetError(
        f"{what} has elements of different dtypes: {dtypes}. Where files or elements differ, say "
        "which one is wanted: in dtypes=, where Dataset.csv guesses them, or with map(function)"
    )


def _concatenated(columns: tuple[Any, ...]) -> Column:
    forms = {(column.dtype.kind == "O", column.shape[1:]) for column in columns}
    if len(forms) == 1:  # only of a `Ragged` an axis is None
        ragged = isinstance(columns[0], Ragged)
        return Ragged.concatenate(columns) if ragged else np.concatenate(columns)
    return stack_any([row for column in columns for row in column])


def column_bytes(column: Column) -> int:
    """Return about how many bytes of memory a column takes."""
    if isinstance(column, Ragged):
        return column_bytes(column.values) + column.offsets.nbytes
    if column.dtype == object:
        return column.nbytes + sum(
            getattr(leaf, "nbytes", 0) or sys.getsizeof(leaf) for leaf in column.ravel().tolist()
        )
    return column.nbytes


def leaf_dtype(column: Column) -> Any:
    """Return the dtype of the leaves of a column, which has some; or their type if not arrays."""
    dtype = column.dtype
    if dtype.kind == "O" and not column.shape[1:]:
        return dtype if is_text(column[0]) else kind_of(column[0]).dtype
    return np.dtype(object) if dtype.kind in "SU" else dtype


def stack(leaves: list[Any]) -> Column:
    """Make a column from leaves."""
    first = leaves[0]
    if not isinstance(first, (np.ndarray, np.generic)) or is_text(first):
        return objects(leaves)
    if first.ndim == 0:
        return np.array(leaves, first.dtype)
    shapes = {leaf.shape for leaf in leaves}
    if len(shapes) == 1:
        return np.concatenate(leaves).reshape(len(leaves), *first.shape)
    if len({shape[1:] for shape in shapes}) == 1:
        return Ragged.from_rows(leaves)
    return objects(leaves)


def stack_any(leaves: list[Any]) -> Column:
    """Make a column from leaves of one dtype, but perhaps of different numbers of axes."""
    axes = {len(getattr(leaf, "shape", ())) for leaf in leaves}
    return stack(leaves) if len(axes) == 1 else objects(leaves)


def objects(leaves: Sequence[Any]) -> np.ndarray:
    """Return a column of anything."""
    column = np.empty(len(leaves), object)
    for index, leaf in enumerate(leaves):  # one by one: otherwise NumPy would look into them
        column[index] = leaf
    return column


def leaf_name(name: str) -> str:
    """Return the name of a leaf in messages."""
    return name or "the element"


def block_of(structure: Any) -> Block:
    """Return a block of whole columns, nested in a structure.

    Raises
    ------
    DatasetError
        If there is no column, or the columns differ in their leading axis; the error names them.
    """
    leaves, nesting = flatten(structure)
    names = paths(nesting)
    columns: list[Column] = []
    for leaf, name in zip(leaves, names, strict=True):
        column = leaf if isinstance(leaf, Ragged) else as_array(as_leaf(leaf, name))
        if isinstance(column, np.ndarray) and column.ndim == 0:
            raise DatasetError(f"{leaf_name(name)} is a scalar, which has no rows to be elements")
        columns.append(column)
    if not columns:
        raise DatasetError("there is no array in this structure, so it has no elements")
    count = len(columns[0])
    for column, name in zip(columns, names, strict=True):
        if len(column) != count:
            raise DatasetError(
                f"{leaf_name(name)} has {len(column)} rows, but {leaf_name(names[0])} has {count}"
            )
    return Block(nesting, tuple(columns), count)


def column_spec(column: Column) -> ArraySpec | None:
    """Return the spec of the leaves in a column; None if they have none in common."""
    if isinstance(column, Ragged):
        return ArraySpec(column.shape[1:], column.dtype)
    if column.dtype == object and column.ndim == 1:
        text = len(column) == 0 or is_text(column[0])
        return ArraySpec((), column.dtype) if text else None
    return ArraySpec(column.shape[1:], column.dtype)


def block_spec(block: Block) -> Spec:
    """Return the spec of a block's elements; None if they have none in common."""
    specs = [column_spec(column) for column in block.columns]
    return None if None in specs else unflatten(block.nesting, iter(specs))
