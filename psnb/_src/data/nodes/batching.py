"""Consecutive elements as one."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block, Column, Origin, block_of, concatenate, stack
from psnb._src.data.node import Context, Node, NodeIterator, State
from psnb._src.data.nodes.base import SingleInputIterator, call, failure, first_spec
from psnb._src.data.nodes.sources import Slices
from psnb._src.data.ragged import Ragged, as_rows, rows_of
from psnb._src.data.reader import ENOUGH, Reader
from psnb._src.data.spec import (
    ArraySpec,
    DatasetSpec,
    Nesting,
    Spec,
    flatten,
    flatten_like,
    is_text,
    map_leaves,
    of_arrays,
    paths,
    unflatten,
)
from psnb._src.utils.checks import is_integer
from psnb._src.utils.text import with_article
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Batching(Node):
    """Base of what makes one element of ``batch_size``; the last may be of fewer."""

    ahead: ClassVar[int] = 1

    source: Node
    batch_size: int
    drop_remainder: bool = False

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _BatchIterator(self, context, state)

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
        """Return that of the input with one more axis."""
        spec = self.source.spec(run)
        if not of_arrays(spec):
            return None
        size = self.batch_size if self.drop_remainder else None
        return map_leaves(lambda leaf: leaf.batched(size), spec)

    def cardinality(self) -> int:
        """Return how many batches there are."""
        count = self.source.cardinality()
        if count < 0:
            return count
        return count // self.batch_size if self.drop_remainder else -(-count // self.batch_size)


@dataclass(frozen=True, eq=False)
class Batch(Batching):
    """Stacks elements of equal shapes."""

    name: ClassVar[str] = "batch"

    def join(self, block: Block, index: int) -> Any:
        """Return the elements stacked."""
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
    """Makes a `Ragged` of what is not known to be of one shape."""

    name: ClassVar[str] = "ragged_batch"

    def join(self, block: Block, index: int) -> Any:
        """Return the elements as a `Ragged`, scalars and fixed shapes stacked."""
        column = block.columns[index]
        if isinstance(column, Ragged):
            return column
        if _is_text(column, block, index) or column.ndim == 1 or self._fixed(block, index):
            return column
        return as_rows(column)

    def spec(self, run: bool) -> Spec:
        """Return that of the input with one more axis; if it is not known, what a batch says."""
        size = self.batch_size if self.drop_remainder else None
        if self._shapes is None:
            return map_leaves(lambda leaf: _of_any(leaf, size), first_spec(self)) if run else None
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

    def _fixed(self, block: Block, index: int) -> bool:
        """Return whether a leaf is known to be of one shape."""
        if self._shapes is None:
            return not block.loose
        return None not in self._shapes[index]


def _is_text(column: np.ndarray, block: Block, index: int) -> bool:
    """Return whether a leaf is text; raise if it is something else that cannot be stacked."""
    if column.dtype != object or column.ndim != 1:
        return False
    for leaf in column:
        if not is_text(leaf):
            raise different(block, index, f"{with_article(type(leaf).__name__)} each")
    return True


def _of_any(leaf: ArraySpec, size: int | None) -> ArraySpec:
    """Return the spec of any batch, given that of one."""
    rest = (None, *leaf.shape[2:]) if leaf.ragged else leaf.shape[1:]
    return ArraySpec((size, *rest), leaf.dtype, leaf.ragged)


def named(block: Block, index: int) -> str:
    """Return what a leaf is called in messages."""
    return paths(block.nesting)[index] or "the element"


def different(block: Block, index: int, what: str) -> DatasetError:
    """Return the error that leaves cannot be stacked."""
    return DatasetError(
        f"{named(block, index)} cannot be stacked: {what}; use padded_batch or ragged_batch"
    )


class _BatchIterator(SingleInputIterator[Batching]):
    def next_block(self, limit: int) -> Block | None:
        node = self._node
        block = self._reader.take_exactly(node.batch_size)
        if block is None or (block.count < node.batch_size and node.drop_remainder):
            return None
        try:
            return as_one(node, block)
        except DatasetError as error:
            number = (self._reader.position - 1) // node.batch_size
            raise node.error(number, str(error), block.place(0)) from error


def as_one(node: Batching, block: Block) -> Block:
    """Return all elements of a block as one batch.

    Raises
    ------
    DatasetError
        If they cannot be joined.
    """
    columns = tuple(_alone(node.join(block, index)) for index in range(len(block.columns)))
    origin = block.origin and Origin(*(part[:1] for part in block.origin))
    return Block(block.nesting, columns, 1, origin, loose=True)


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
        """Return the elements padded and stacked."""
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
        """Return that of the input with one more axis, and the shapes that were given."""
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
    """Return padded shapes with a size in place of those that are not given."""

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
        return np.array([leaf.shape for leaf in column], np.int64)
    shape = np.array(column.shape[1:], np.int64)
    return np.broadcast_to(shape, (len(column), len(shape)))


# Rows of differing length that can be overwritten. Pure.


class RaggedRows:
    """Rows in one buffer: new ones go to its end; when that is full, those in use are moved.

    Parameters
    ----------
    like : Ragged
        Of the dtype and trailing axes of the rows to be.
    """

    def __init__(self, like: Ragged) -> None:
        self._values = np.empty((0, *like.values.shape[1:]), like.dtype)
        self._starts = self._lengths = np.empty(0, np.int64)
        self._end = 0  # of what is written in the buffer

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self._values.dtype

    def fits(self, rows: Ragged) -> bool:
        """Return whether rows are of the dtype and trailing axes of these."""
        return rows.dtype == self.dtype and rows.shape[2:] == self._values.shape[1:]

    def grow(self, count: int) -> None:
        """Grow to ``count`` rows, the new ones empty."""
        more = np.zeros(count - len(self), np.int64)
        self._starts = np.concatenate([self._starts, more])
        self._lengths = np.concatenate([self._lengths, more])

    def put(self, places: np.ndarray, rows: Ragged) -> None:
        """Overwrite the rows at some places with others that fit."""
        values, offsets = rows.values, rows.offsets
        self._lengths[places] = 0
        if self._end + len(values) > len(self._values):
            self._move(len(values))
        stop = self._end + len(values)
        self._values[self._end : stop] = values
        self._starts[places] = self._end + offsets[:-1]
        self._lengths[places] = rows.lengths
        self._end = stop

    def take(self, places: np.ndarray) -> Ragged:
        """Copy some rows together."""
        lengths = self._lengths[places]
        offsets = np.zeros(len(places) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(rows_of(self._values, self._starts[places], lengths), offsets)

    def _move(self, more: int) -> None:
        """Move what is in use to a buffer that has as much room again."""
        kept = rows_of(self._values, self._starts, self._lengths)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._end = len(kept)
        self._values = np.empty((2 * (self._end + more), *kept.shape[1:]), kept.dtype)
        self._values[: self._end] = kept


@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """Makes each row of an element an element."""

    name: ClassVar[str] = "unbatch"

    source: Node

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _UnbatchIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return that of the input with an axis less."""
        spec = self.source.spec(run)
        if not of_arrays(spec):
            return None
        return map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec)


class _UnbatchIterator(SingleInputIterator[Unbatch]):
    """The state: the reader's before the element at hand, and how many of its rows were taken."""

    def __init__(self, node: Unbatch, context: Context, state: State) -> None:
        self._before: State
        self._taken: int
        self._before, self._taken = state or (None, 0)
        super().__init__(node, context, self._before)
        self._rows: Block | None = None
        if self._taken:
            taken = self._taken
            self._next()
            self._taken = taken

    def next_block(self, limit: int) -> Block | None:
        while self._rows is None or self._taken == self._rows.count:
            if not self._next():
                return None
        start = self._taken
        self._taken = min(start + limit, self._rows.count)
        return self._rows.part(start, self._taken)

    def state(self) -> State:
        if self._rows is None or self._taken == self._rows.count:
            return [self._reader.state(), 0]
        return [self._before, self._taken]

    def _next(self) -> bool:
        self._rows, self._before = None, self._reader.state()
        block = self._reader.take(1)
        if block is None:
            return False
        try:
            rows = block_of(block.element(0))
        except DatasetError as error:
            position = self._reader.position - 1
            raise self._node.error(position, str(error), block.place(0)) from error
        origin = block.origin and Origin(*(part.repeat(rows.count) for part in block.origin))
        self._rows, self._taken = rows._replace(origin=origin, loose=block.loose), 0
        return True


@dataclass(frozen=True, eq=False)
class Window(Node):
    """Datasets of ``size`` elements, ``stride`` apart, each ``shift`` after the one before."""

    name: ClassVar[str] = "window"
    ahead: ClassVar[int] = 1

    source: Node
    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset: Callable[[Node], Any]
    """Makes a dataset of a node."""

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _WindowIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return a dataset for each leaf."""
        spec = self.source.spec(run)
        return None if spec is None else map_leaves(DatasetSpec, spec)

    def parameters(self) -> list[str]:
        """Return those that the user gave."""
        return [text for text in super().parameters() if "=" in text]


class _WindowIterator(SingleInputIterator[Window]):
    def next_block(self, limit: int) -> Block | None:
        node = self._node
        span = (node.size - 1) * node.stride + 1
        block = self._reader.take_exactly(span)
        if block is None or (node.drop_remainder and block.count < span):
            return None
        if node.shift < block.count:
            self._reader.put_back(block.part(node.shift, block.count))
        elif node.shift > span and block.count == span:
            self._reader.skip(node.shift - span)
        rows = block.take(np.arange(0, block.count, node.stride))
        columns = tuple(
            stack([node.dataset(Slices(Block(None, (column,), rows.count, loose=rows.loose)))])
            for column in rows.columns
        )
        origin = rows.origin and Origin(*(part[:1] for part in rows.origin))
        return Block(block.nesting, columns, 1, origin)


# Elements of similar length as batches: tf.data's ``bucket_by_sequence_length``.
#
# The state has no elements. Those in buckets are the last ones of each bucket that were read: to
# resume, what was read since the oldest of them is read again, and its lengths are computed again.


@dataclass(frozen=True, eq=False)
class Buckets(Node):
    """Batches of elements whose lengths are between the same two boundaries."""

    name: ClassVar[str] = "bucket_by_sequence_length"
    ahead: ClassVar[int] = 1

    source: Node
    element_length_func: Callable[..., Any]
    bucket_boundaries: tuple[int, ...]
    bucket_batch_sizes: tuple[int, ...]
    padded_shapes: Any = None
    padding_values: Any = None
    pad_to_bucket_boundary: bool = False
    no_padding: bool = False
    drop_remainder: bool = False

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _BucketsIterator(self, context, state)

    def batching(self, bucket: int) -> Batching:
        """Return what makes the batches of a bucket.

        Raises
        ------
        DatasetError
            If the bucket has no boundary, and its elements should be padded to it.
        """
        size = self.bucket_batch_sizes[bucket]
        if self.no_padding:
            return Batch(self.source, size, self.drop_remainder)
        shapes = self.padded_shapes
        if self.pad_to_bucket_boundary:
            if bucket == len(self.bucket_boundaries):
                raise DatasetError(
                    f"a length is {self.bucket_boundaries[-1]} or more, and with "
                    "pad_to_bucket_boundary each must be below the last boundary"
                )
            shapes = filled(self._shapes(), self.bucket_boundaries[bucket] - 1)
        return PaddedBatch(self.source, size, self.drop_remainder, shapes, self.padding_values)

    def spec(self, run: bool) -> Spec:
        """Return that of the input, padded, with one more axis."""
        if self.no_padding:
            spec = self.source.spec(run)
            return map_leaves(lambda leaf: leaf.batched(None), spec) if of_arrays(spec) else None
        return PaddedBatch(self.source, 1, False, self.padded_shapes).spec(run)

    def _shapes(self) -> Any:
        """Return the shapes to pad to, as far as they are known."""
        if self.padded_shapes is not None:
            return self.padded_shapes
        spec = self.source.spec(run=False)
        if not of_arrays(spec):
            raise DatasetError(
                "which axes to pad to the bucket's boundary is not known, as a function makes the "
                "elements: say it with padded_shapes, None for such an axis"
            )
        return map_leaves(lambda leaf: list(leaf.shape), spec)


class _BucketsIterator(NodeIterator):
    """The state: the reader's, that before the oldest element, and how many each bucket has."""

    def __init__(self, node: Buckets, context: Context, state: State) -> None:
        self._node = node
        buckets = len(node.bucket_batch_sizes)
        self._held: list[list[Block]] = [[] for _ in range(buckets)]
        self._positions: list[list[int]] = [[] for _ in range(buckets)]  # of what is held
        self._bases: list[tuple[int, State]] = []  # the reader's state at some positions, sorted
        now: Any
        self._batches: int
        now, base, counts, self._batches = state or (None, None, [], 0)
        if sum(counts):
            self._refill(context, base, now[0], counts)
        self._reader = Reader(node.source, context.child(0), now)

    def next_block(self, limit: int) -> Block | None:
        while True:
            for bucket, size in enumerate(self._node.bucket_batch_sizes):
                if len(self._positions[bucket]) == size:
                    return self._batch(bucket)
            if not self._read():
                break
        for bucket, held in enumerate(self._positions):
            if held and not self._node.drop_remainder:
                return self._batch(bucket)
        return None

    def state(self) -> State:
        base = self._bases[self._base_of(self._oldest())][1] if any(self._positions) else None
        counts = [len(each) for each in self._positions]
        return [self._reader.state(), base, counts, self._batches]

    def close(self) -> None:
        self._reader.close()

    def level(self) -> tuple[int, int]:
        """Return how many elements are in buckets, and how many may be."""
        return sum(map(len, self._positions)), sum(self._node.bucket_batch_sizes)

    def _read(self) -> bool:
        """Read elements into buckets, none of which overflows; return whether there are any."""
        sizes, reader = self._node.bucket_batch_sizes, self._reader
        self._remember()
        room = min(size - len(held) for size, held in zip(sizes, self._positions, strict=True))
        block = reader.take(min(room, BLOCK))
        if block is None:
            return False
        first = reader.position - block.count
        buckets = []
        for index in range(block.count):
            try:
                buckets.append(self._bucket_of(block.element(index)))
            except Exception as error:  # the user's function may raise anything
                self._put(block, first, buckets)
                reader.put_back(block.part(index + 1, block.count))
                raise failure(self._node, first + index, error, block, index) from error
        self._put(block, first, buckets)
        return True

    def _bucket_of(self, element: Any) -> int:
        length = np.asarray(call(self._node.element_length_func, element))[()]
        if not is_integer(length):
            raise DatasetError(
                "element_length_func must return the length as an integer, found "
                f"{type(length).__name__}"
            )
        return bisect_right(self._node.bucket_boundaries, length)

    def _put(self, block: Block, first: int, buckets: list[int]) -> None:
        found = np.array(buckets, np.int64)
        for bucket in np.unique(found).tolist():
            places = np.flatnonzero(found == bucket)
            self._held[bucket].append(block.take(places))
            self._positions[bucket] += (first + places).tolist()

    def _batch(self, bucket: int) -> Block:
        held, positions = self._held[bucket], self._positions[bucket]
        self._held[bucket], self._positions[bucket] = [], []
        number, self._batches = self._batches, self._batches + 1
        try:
            block = concatenate(held)
            return as_one(self._node.batching(bucket), block)
        except DatasetError as error:
            which = f"of input elements {positions[0]} to {positions[-1]}: "
            raise self._node.error(number, f"{which}{error}", held[0].place(0)) from error

    def _oldest(self) -> int:
        return min(each[0] for each in self._positions if each)

    def _base_of(self, position: int) -> int:
        return bisect_right(self._bases, position, key=lambda base: base[0]) - 1

    def _remember(self) -> None:
        """Note the reader's state now and then; keep what the buckets' oldest elements need."""
        position = self._reader.position
        if self._bases and position - self._bases[-1][0] < ENOUGH:
            return
        self._bases.append((position, self._reader.state()))
        if len(self._bases) > 2 * len(self._node.bucket_batch_sizes) + ENOUGH:
            oldest = {self._base_of(each[0]) for each in self._positions if each}
            self._bases = [self._bases[each] for each in sorted(oldest | {len(self._bases) - 1})]

    def _refill(self, context: Context, base: State, stop: int, counts: list[int]) -> None:
        """Read again what is in the buckets: the last elements of each."""
        self._reader = Reader(self._node.source, context.child(0), base)
        self._bases.append((base[0], base))
        while (missing := stop - self._reader.position) > 0:
            try:
                block = self._reader.take(min(missing, BLOCK))
            except DatasetError:
                continue  # raised before
            if block is None:
                raise DatasetError(
                    f"{self._node.name}: the input has fewer elements than when the state was taken"
                )
            self._put_again(block, counts)
        self._reader.close()

    def _put_again(self, block: Block, counts: list[int]) -> None:
        """Put elements into buckets, of which the last ones stay."""
        first = self._reader.position - block.count
        for index in range(block.count):
            try:
                bucket = self._bucket_of(block.element(index))
            except Exception:  # it was raised before
                continue
            self._held[bucket].append(block.take(np.array([index])))
            self._positions[bucket].append(first + index)
            del self._held[bucket][: -counts[bucket] or None]
            del self._positions[bucket][: -counts[bucket] or None]
