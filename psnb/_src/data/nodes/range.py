"""Numbers that rise or fall evenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Indexed, Node, State
from psnb._src.data.nodes.indexed import InOrder
from psnb._src.data.spec import ArraySpec, Spec


@dataclass(frozen=True, eq=False)
class Range(Node):
    """Those of Python's ``range``, as int64."""

    name: ClassVar[str] = "range"

    start: int
    stop: int
    step: int

    def iterate(self, context: Context, state: State = None) -> InOrder:
        """Begin."""
        return InOrder(self.indexed(), state)

    def indexed(self) -> Indexed:
        """Return the numbers."""
        return _Numbers(range(self.start, self.stop, self.step))

    def spec(self, run: bool) -> Spec:
        """Return that of an int64."""
        return ArraySpec((), np.dtype(np.int64))

    def cardinality(self) -> int:
        """Return how many there are."""
        return len(range(self.start, self.stop, self.step))


class _Numbers(Indexed):
    def __init__(self, numbers: range) -> None:
        self.count, self._numbers = len(numbers), numbers

    def gather(self, indices: np.ndarray) -> Block:
        column = self._numbers.start + np.asarray(indices, np.int64) * self._numbers.step
        return Block(None, (column,), len(column))

    def part(self, start: int, stop: int) -> Block:
        return self.gather(np.arange(start, stop))
