"""Elements in random order, drawn from a buffer of the next ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.shuffle_buffer import BufferIterator
from psnb._src.data.random_numbers import draw, draw_again, mixed


@dataclass(frozen=True, eq=False)
class Shuffle(Node):
    """Draws each next element from the ``buffer_size`` oldest that were not drawn yet."""

    name: ClassVar[str] = "shuffle"

    source: Node
    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; over indices where the input has elements by number."""
        own = mixed(context.seed, 1) if self.seed is None else mixed(self.seed)
        key = mixed(own, context.epoch if self.reshuffle_each_iteration else 0)
        indexed = self.source.indexed()
        if indexed is not None:
            return _IndexIterator(indexed, self.buffer_size, key, state)
        return BufferIterator(self.source, self.buffer_size, key, context, state)

    def cardinality(self) -> int:
        """Return the input's."""
        return self.source.cardinality()


class _IndexIterator(NodeIterator):
    """Shuffles numbers and gathers elements by them; the state is how many were drawn."""

    def __init__(self, elements: Indexed, buffer_size: int, key: int, state: State) -> None:
        self._elements, self._key = elements, key
        self._size = self._entering = min(buffer_size, elements.count)
        self._buffer = np.arange(self._size)
        self._drawn: int = state or 0
        self._size, self._entering = draw_again(
            key, self._buffer, self._size, self._entering, elements.count, self._drawn
        )

    def next_block(self, limit: int) -> Block | None:
        count = min(limit, self._elements.count - self._drawn)
        return self._elements.gather(self._draw(count)) if count else None

    def state(self) -> State:
        return self._drawn

    def _draw(self, count: int) -> np.ndarray:
        drawn, _, self._size, self._entering = draw(
            self._key,
            self._drawn,
            self._buffer,
            self._size,
            self._entering,
            self._elements.count,
            count,
        )
        self._drawn += count
        return drawn
