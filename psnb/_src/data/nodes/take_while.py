"""The elements before the first one for which a predicate is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.single_input import SingleInputIterator
from psnb._src.data.nodes.user_calls import call, failure


@dataclass(frozen=True, eq=False)
class TakeWhile(Node):
    """Ends at the first element for which the predicate is false."""

    name: ClassVar[str] = "take_while"

    source: Node
    predicate: Callable[..., Any]

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _TakeWhileIterator(self, context, state)

    @property
    def ahead(self) -> int:
        """Return 1: the predicate may have side effects, or be slow."""
        return 1


class _TakeWhileIterator(SingleInputIterator):
    """The state: the reader's, before the element that ends this, which is asked about again."""

    def __init__(self, node: TakeWhile, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._node = node
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        block = None if self._ended else self._reader.take(limit)
        if block is None:
            return None
        for index in range(block.count):
            try:
                goes_on = bool(call(self._node.predicate, block.element(index)))
            except Exception as error:  # the user's function may raise anything
                if index == 0:
                    position = self._reader.position - block.count
                    self._reader.put_back(block.part(1, block.count))
                    raise failure(self._node, position, error, block, 0) from error
                # What is before it comes first.
            else:
                self._ended = not goes_on
                if goes_on:
                    continue
            self._reader.put_back(block.part(index, block.count))
            return block.part(0, index) if index else None
        return block
