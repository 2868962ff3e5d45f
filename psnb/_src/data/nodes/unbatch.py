"""Rows of elements as elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from psnb._src.data.block import Block, Origin, block_of
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import map_leaves
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.reader import Reader
from psnb._src.data.spec import ArraySpec, Spec, of_arrays
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """Takes the first axis of each leaf apart."""

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


class _UnbatchIterator(NodeIterator):
    """The state: the reader's before the element at hand, and how many of its rows were taken."""

    def __init__(self, node: Unbatch, context: Context, state: State) -> None:
        self._node = node
        self._before: State
        self._taken: int
        self._before, self._taken = state or (None, 0)
        self._reader = Reader(node.source, context.child(0), self._before)
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

    def close(self) -> None:
        self._reader.close()

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
