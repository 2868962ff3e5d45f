"""Consecutive elements as one, and one as several: batches, windows, and rows of elements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, Column, Origin, block_of, leaf_name, stack
from psnb._src.data.nesting import (
    Nesting,
    flatten,
    flatten_like,
    is_text,
    map_leaves,
    paths,
    unflatten,
)
from psnb._src.data.node import Context, Node, PartsIterator, State
from psnb._src.data.nodes.sources import Slices
from psnb._src.data.ragged import Ragged, as_rows
from psnb._src.data.reader import Reader, SingleInputIterator
from psnb._src.data.spec import ArraySpec, DatasetSpec, Spec, of_arrays
from psnb._src.utils.text import with_article
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Batching(Node):
    """Base of nodes that make one element of ``batch_size``; the last may be of fewer."""

    iterator: ClassVar[Any] = SingleInputIterator
    ahead: ClassVar[int] = 1
    local: ClassVar[bool] = True

    source: Node
    batch_size: int
    drop_remainder: bool = False

    def pull(self, reader: Reader, limit: int) -> Block | None:
        block = reader.take_exactly(self.batch_size)
        if block is None or (block.count < self.batch_size and self.drop_remainder):
            return None
        try:
            return self.as_one(block)
        except DatasetError as error:
            number = (reader.position - 1) // self.batch_size
            raise self.error(number, str(error), block.place(0)) from error

    def as_one(self, block: Block) -> Block:
        """Return all elements of a block as one batch.

        Raises
        ------
        DatasetError
            If they cannot be joined.
        """
        columns = tuple([_alone(self.join(block, index)) for index in range(len(block.columns))])
        origin = block.origin and Origin(*(part[:1] for part in block.origin))
        return Block(block.nesting, columns, 1, origin, loose=True)

    @abstractmethod
    def join(self, block: Block, index: int) -> Any:
        """Return a leaf of a batch.

        Parameters
        ----------
        block : Block
            All its elements.
        index : int
            Which leaf.

        Raises
        ------
        DatasetError
            If they cannot be joined.
        """

    def spec(self, run: bool) -> Spec:
        """Return the input's spec with one more axis."""
        spec = self.source.spec(run)
        if not of_arrays(spec):
            return None
        size = self.batch_size if self.drop_remainder else None
        return map_leaves(lambda leaf: leaf.batched(size), spec)

    def cardinality(self) -> int:
        count = self.source.cardinality()
        if count < 0:
            return count
        return count // self.batch_size if self.drop_remainder else -(-count // self.batch_size)


@dataclass(frozen=True, eq=False)
class Batch(Batching):
    """Stacks elements of equal shapes."""

    name: ClassVar[str] = "batch"

    def join(self, block: Block, index: int) -> Any:
        column = block.columns[index]
        if isinstance(column, Ragged):
            lengths = np.unique(column.lengths)
            if len(lengths) != 1:
                raise different(block, index, f"lengths from {lengths[0]} to {lengths[-1]}")
            values = column.values
            return values.reshape(len(column), int(lengths[0]), *values.shape[1:])
        _is_text(column, block, index)
        return column


@dataclass(frozen=True, eq=False)
class RaggedBatch(Batching):
    """Makes a `Ragged` of leaves that are not known to be of one shape."""

    name: ClassVar[str] = "ragged_batch"

    def join(self, block: Block, index: int) -> Any:
        """Return the elements as a `Ragged`, scalars and fixed shapes stacked."""
        column = block.columns[index]
        if isinstance(column, Ragged):
            return column
        if _is_text(column, block, index) or column.ndim == 1:
            return column
        fixed = not block.loose if self._shapes is None else None not in self._shapes[index]
        return column if fixed else as_rows(column)

    def spec(self, run: bool) -> Spec:
        """Return the input's spec with one more axis; if it is not known, the first batch's."""
        size = self.batch_size if self.drop_remainder else None
        if self._shapes is None:
            return map_leaves(lambda leaf: _of_any(leaf, size), self.first_spec()) if run else None
        leaves, nesting = flatten(super().spec(run))
        made = [
            leaf if len(shape) == 0 or None not in shape else replace(leaf, ragged=True)
            for leaf, shape in zip(leaves, self._shapes, strict=True)
        ]
        return unflatten(nesting, iter([_of_any(leaf, size) for leaf in made]))

    @cached_property
    def _shapes(self) -> list[tuple[int | None, ...]] | None:
        """The leaves' shapes, as far as they are known without running anything."""
        spec = self.source.spec(run=False)
        return None if not of_arrays(spec) else [leaf.shape for leaf in flatten(spec)[0]]


def _is_text(column: np.ndarray, block: Block, index: int) -> bool:
    """Return whether a leaf is text; raise if it is something else that cannot be stacked."""
    if column.dtype.kind != "O" or column.ndim != 1:
        return False
    for leaf in column:
        if not is_text(leaf):
            raise different(block, index, f"{with_article(type(leaf).__name__)} each")
    return True


def _of_any(leaf: ArraySpec, size: int | None) -> ArraySpec:
    """Return the spec of any batch, from one batch's."""
    rest = (None, *leaf.shape[2:]) if leaf.ragged else leaf.shape[1:]
    return ArraySpec((size, *rest), leaf.dtype, leaf.ragged)


def named(block: Block, index: int) -> str:
    """Return what a leaf is called in messages."""
    return leaf_name(paths(block.nesting)[index])


def different(block: Block, index: int, what: str) -> DatasetError:
    """Return the error that leaves cannot be stacked."""
    return DatasetError(
        f"{named(block, index)} cannot be stacked: {what}; use padded_batch or ragged_batch"
    )


def _alone(leaf: Any) -> Column:
    """Return the column of a single element; its array can be written."""
    if isinstance(leaf, Ragged):
        return stack([leaf])
    return leaf[None] if leaf.flags.writeable else leaf[None].copy()


@dataclass(frozen=True, eq=False)
class PaddedBatch(Batching):
    """Pads elements to a shape, or to the largest sizes in the batch."""

    name: ClassVar[str] = "padded_batch"

    padded_shapes: Any = None
    padding_values: Any = None

    def join(self, block: Block, index: int) -> Any:
        column = block.columns[index]
        text = isinstance(column, np.ndarray) and column.dtype == object and column.ndim == 1
        if text and all(map(is_text, column)):
            return column
        shapes = _shapes(block, index)
        target = self._target(shapes, block, index)
        for row in np.flatnonzero((shapes > target).any(axis=1))[:1]:
            raise DatasetError(
                f"{named(block, index)} has shape {tuple(shapes[row].tolist())}, which does not "
                f"fit padded_shapes {tuple(target.tolist())}"
            )
        if isinstance(column, np.ndarray) and column.shape[1:] == tuple(target):
            return column
        rows = list(column)
        value = self._value(rows[0].dtype, block, index)
        if isinstance(column, Ragged) and tuple(target[1:]) == column.values.shape[1:]:
            return column.pad(int(target[0]), value)
        out = np.full((len(rows), *target.tolist()), value, rows[0].dtype)
        for place, row in zip(out, rows, strict=True):
            place[tuple(slice(size) for size in row.shape)] = row
        return out

    def spec(self, run: bool) -> Spec:
        """Return the input's spec with one more axis, and the given shapes."""
        spec = super().spec(run)
        if spec is None or self.padded_shapes is None:
            return spec
        leaves, nesting = flatten(spec)
        made = []
        for index, leaf in enumerate(leaves):
            sizes = self._shape(nesting, index)
            shape = leaf.shape if sizes is None else (leaf.shape[0], *sizes)
            made.append(ArraySpec(shape, leaf.dtype))
        return unflatten(nesting, iter(made))

    def _shape(self, nesting: Nesting, index: int) -> list[int | None] | None:
        """Return the shape that was given for a leaf, None for the largest."""
        if self.padded_shapes is None:
            return None
        sizes = flatten_like(nesting, _shapes_as_leaves(self.padded_shapes))[index]
        return None if sizes is None else [None if size in (None, -1) else size for size in sizes]

    def _target(self, shapes: np.ndarray, block: Block, index: int) -> np.ndarray:
        largest, sizes = shapes.max(axis=0), self._shape(block.nesting, index)
        if sizes is None:
            return largest
        if len(sizes) != len(largest):
            raise DatasetError(
                f"{named(block, index)} has {len(largest)} axes, padded_shapes says {sizes}"
            )
        found = [big if size is None else size for big, size in zip(largest, sizes, strict=True)]
        return np.array(found, np.int64)

    def _value(self, dtype: np.dtype, block: Block, index: int) -> Any:
        value = self.padding_values
        if flatten(value)[1] is not None:
            value = flatten_like(block.nesting, value)[index]
        if value is None:
            return "" if dtype.hasobject else np.zeros((), dtype)[()]
        if not dtype.hasobject and value == value and np.asarray(value).astype(dtype) != value:
            raise DatasetError(f"padding value {value!r} of {named(block, index)} is no {dtype}")
        return value


def filled(structure: Any, size: int) -> Any:
    """Return padded shapes, with a size where none is given."""

    def of(shape: Any) -> Any:
        if shape is None:
            raise DatasetError("padded_shapes must say each axis where they are to be filled")
        return [size if each in (None, -1) else each for each in shape]

    return map_leaves(of, _shapes_as_leaves(structure))


def _shapes_as_leaves(structure: Any) -> Any:
    """Return shapes as lists, which are leaves: a tuple of sizes would be taken for nesting."""
    if structure is None or isinstance(structure, list):
        return structure
    if isinstance(structure, dict):
        return {key: _shapes_as_leaves(each) for key, each in structure.items()}
    if all(each is None or isinstance(each, int) for each in structure):
        return list(structure)
    return tuple(_shapes_as_leaves(each) for each in structure)


def _shapes(block: Block, index: int) -> np.ndarray:
    """Return the shape that a leaf has in each element, ``(n, axes)``."""
    column = block.columns[index]
    if isinstance(column, Ragged):
        rest = np.array(column.values.shape[1:], np.int64)
        return np.column_stack([column.lengths, np.broadcast_to(rest, (len(column), len(rest)))])
    if column.dtype == object and column.ndim == 1:
        for leaf in column:
            if not isinstance(leaf, np.ndarray):
                raise different(block, index, f"{with_article(type(leaf).__name__)} each")
        if len(axes := {leaf.ndim for leaf in column}) > 1:
            raise DatasetError(f"{named(block, index)} has from {min(axes)} to {max(axes)} axes")
        return np.array([leaf.shape for leaf in column], np.int64)
    shape = np.array(column.shape[1:], np.int64)
    return np.broadcast_to(shape, (len(column), len(shape)))


class _UnbatchIterator(PartsIterator, SingleInputIterator["Unbatch"]):
    """The state: the reader's before the element at hand, and how many of its rows were taken."""

    def __init__(self, node: Unbatch, context: Context, state: State) -> None:
        self._before: State
        self._before, used = state or (None, 0)
        super().__init__(node, context, self._before)
        if used:
            self._advance()
            self._used = used

    def state(self) -> State:
        if self._block is None or self._used == self._block.count:
            return [self._reader.state(), 0]
        return [self._before, self._used]

    def _advance(self) -> bool:
        self._block, self._before = None, self._reader.state()
        block = self._reader.take(1)
        if block is None:
            return False
        try:
            rows = block_of(block.element(0))
        except DatasetError as error:
            position = self._reader.position - 1
            raise self._node.error(position, str(error), block.place(0)) from error
        origin = block.origin and Origin(*(part.repeat(rows.count) for part in block.origin))
        self._block, self._used = rows._replace(origin=origin, loose=block.loose), 0
        return True


@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """Makes each row of an element an element."""

    name: ClassVar[str] = "unbatch"
    iterator: ClassVar[Any] = _UnbatchIterator
    local: ClassVar[bool] = True

    source: Node

    def spec(self, run: bool) -> Spec:
        """Return the input's spec with an axis less."""
        spec = self.source.spec(run)
        if not of_arrays(spec):
            return None
        return map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec)


@dataclass(frozen=True, eq=False)
class Window(Node):
    """Datasets of ``size`` elements, ``stride`` apart, each ``shift`` after the one before."""

    name: ClassVar[str] = "window"
    iterator: ClassVar[Any] = SingleInputIterator
    ahead: ClassVar[int] = 1

    source: Node
    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset: Callable[[Node], Any]
    """Makes a dataset of a node."""

    def pull(self, reader: Reader, limit: int) -> Block | None:
        span = (self.size - 1) * self.stride + 1
        block = reader.take_exactly(span)
        if block is None or (self.drop_remainder and block.count < span):
            return None
        if self.shift < block.count:
            reader.put_back(block.part(self.shift, block.count))
        elif self.shift > span and block.count == span:
            reader.skip(self.shift - span)
        rows = block.take(np.arange(0, block.count, self.stride))
        columns = tuple(
            stack([self.dataset(Slices(Block(None, (column,), rows.count, loose=rows.loose)))])
            for column in rows.columns
        )
        origin = rows.origin and Origin(*(part[:1] for part in rows.origin))
        return Block(block.nesting, columns, 1, origin)

    def spec(self, run: bool) -> Spec:
        """Return a dataset for each leaf."""
        spec = self.source.spec(run)
        return None if spec is None else map_leaves(DatasetSpec, spec)

    def parameters(self) -> list[str]:
        """Return the lengths that the user gave."""
        return [text for text in super().parameters() if "=" in text]
