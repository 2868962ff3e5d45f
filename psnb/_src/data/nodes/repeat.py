"""A dataset several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import INFINITE, Node, NodeIterator, State
from psnb._src.data.reader import Reader


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    """``count`` times, or for ever."""

    name: ClassVar[str] = "repeat"

    source: Node
    count: int | None = None

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _RepeatIterator(self, context, state)

    def cardinality(self) -> int:
        """Return that of the input so many times."""
        once = self.source.cardinality()
        if once == 0 or self.count == 0:
            return 0
        if self.count is None:
            return INFINITE
        return once * self.count if once > 0 else once


class _RepeatIterator(NodeIterator):
    """The state: which time it is, whether there was an element in it, and the reader's."""

    def __init__(self, node: Repeat, context: Context, state: State) -> None:
        self._node, self._context = node, context
        self._time: int
        self._any: bool
        self._time, self._any, inner = state or (0, False, None)
        self._reader = self._open(inner)

    def next_block(self, limit: int) -> Block | None:
        while self._node.count is None or self._time < self._node.count:
            block = self._reader.take(limit)
            if block is not None:
                self._any = True
                return block
            if not self._any:
                return None  # for ever nothing
            self._reader.close()
            self._time, self._any = self._time + 1, False
            self._reader = self._open(None)
        return None

    def state(self) -> State:
        return [self._time, self._any, self._reader.state()]

    def close(self) -> None:
        self._reader.close()

    def _open(self, state: State) -> Reader:
        return Reader(self._node.source, self._context.child(0).repeated(self._time), state)
