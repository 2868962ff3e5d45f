"""Elements with their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import Nest
from psnb._src.data.node import Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.indexed import InOrder
from psnb._src.data.nodes.single_input import SingleInputIterator
from psnb._src.data.spec import ArraySpec, Spec


@dataclass(frozen=True, eq=False)
class Enumerate(Node):
    """Pairs of an int64, from ``start`` on, and an element."""

    name: ClassVar[str] = "enumerate"

    source: Node
    start: int = 0

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _EnumerateIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if the input has them so."""
        elements = self.source.indexed()
        return elements and _Enumerated(self.start, elements)

    def spec(self, run: bool) -> Spec:
        """Return a pair."""
        spec = self.source.spec(run)
        return None if spec is None else (ArraySpec((), np.dtype(np.int64)), spec)

    def cardinality(self) -> int:
        """Return the input's."""
        return self.source.cardinality()


def _numbered(numbers: np.ndarray, block: Block) -> Block:
    nesting = Nest(tuple, (0, 1), (None, block.nesting))
    return block._replace(nesting=nesting, columns=(numbers, *block.columns))


class _Enumerated(Indexed):
    def __init__(self, start: int, elements: Indexed) -> None:
        self.count, self._start, self._elements = elements.count, start, elements

    def gather(self, indices: np.ndarray) -> Block:
        return _numbered(self._start + indices, self._elements.gather(indices))

    def part(self, start: int, stop: int) -> Block:
        numbers = np.arange(self._start + start, self._start + stop)
        return _numbered(numbers, self._elements.part(start, stop))


class _EnumerateIterator(SingleInputIterator):
    def __init__(self, node: Enumerate, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._start = node.start

    def next_block(self, limit: int) -> Block | None:
        block = self._reader.take(limit)
        if block is None:
            return None
        stop = self._start + self._reader.position
        return _numbered(np.arange(stop - block.count, stop), block)
