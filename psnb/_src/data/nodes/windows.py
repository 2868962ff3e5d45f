"""Rows of an element as elements, and windows of elements as datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, Origin, block_of, stack
from psnb._src.data.context import Context
from psnb._src.data.nesting import map_leaves
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.base import SingleInputIterator
from psnb._src.data.nodes.sources import Slices
from psnb._src.data.spec import ArraySpec, DatasetSpec, Spec, of_arrays
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """Makes each row of an element an element."""

    name: ClassVar[str] = "unbatch"

    source: Node

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _UnbatchIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return the input's spec with an axis less."""
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
        """Return the lengths that the user gave."""
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
