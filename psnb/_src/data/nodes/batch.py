"""Consecutive elements as one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, Column, Origin, stack
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import flatten, is_text, map_leaves, paths, unflatten
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.first_spec import first_spec
from psnb._src.data.nodes.single_input import SingleInputIterator
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import ArraySpec, Spec, of_arrays
from psnb._src.excerpt import with_article
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Batching(Node):
    """Base of what makes one element of ``batch_size``; the last may be of fewer."""

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

    @property
    def ahead(self) -> int:
        """Return how many batches to make at once."""
        return 1


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
        if column.dtype == object and column.ndim == 1:
            for leaf in column:
                if not is_text(leaf):
                    raise different(block, index, f"{with_article(type(leaf).__name__)} each")
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
        if column.dtype == object and column.ndim == 1:
            for leaf in column:
                if not is_text(leaf):
                    raise different(block, index, f"{with_article(type(leaf).__name__)} each")
            return column
        if column.ndim == 1 or self._fixed(block, index):
            return column
        count, length = column.shape[:2]
        offsets = np.arange(count + 1, dtype=np.int64) * length
        return Ragged(column.reshape(count * length, *column.shape[2:]), offsets)

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


class _BatchIterator(SingleInputIterator):
    def __init__(self, node: Batching, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._node = node

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
