"""Elements by number: parts of others, and going through them in order."""

from __future__ import annotations

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.node import Indexed, NodeIterator, State


class SelectedRows(Indexed):
    """Those of a block."""

    def __init__(self, block: Block) -> None:
        self.count, self._block = block.count, block

    def gather(self, indices: np.ndarray) -> Block:
        """Return elements by number."""
        return self._block.take(indices)

    def part(self, start: int, stop: int) -> Block:
        """Return a run of elements."""
        return self._block.part(start, stop)


class Every(Indexed):
    """Every ``step``-th element of others, from one on."""

    def __init__(self, all_: Indexed, start: int, step: int, count: int) -> None:
        self.count, self._all, self._start, self._step = max(0, count), all_, start, step

    def gather(self, indices: np.ndarray) -> Block:
        """Return elements by number."""
        return self._all.gather(self._start + indices * self._step)

    def part(self, start: int, stop: int) -> Block:
        """Return a run of elements."""
        if self._step == 1:
            return self._all.part(self._start + start, self._start + stop)
        return self.gather(np.arange(start, stop))


class InOrder(NodeIterator):
    """Goes through them; the state is the number of the next one."""

    def __init__(self, elements: Indexed, state: State = None) -> None:
        self._elements, self._next = elements, 0 if state is None else int(state)

    def next_block(self, limit: int) -> Block | None:
        """Return the next elements."""
        start, stop = self._next, min(self._next + limit, self._elements.count)
        if start >= stop:
            return None
        self._next = stop
        return self._elements.part(start, stop)

    def state(self) -> State:
        """Return the number of the next element."""
        return self._next
