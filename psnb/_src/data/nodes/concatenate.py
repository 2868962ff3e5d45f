"""One dataset after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block, concatenate
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import flatten, unflatten
from psnb._src.data.node import INFINITE, UNKNOWN, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.indexed import InOrder
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Spec, merged
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """The elements of the first dataset, then those of the second."""

    name: ClassVar[str] = "concatenate"

    sources: tuple[Node, ...]

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _ConcatenateIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if all inputs have them so."""
        found = [each.indexed() for each in self.sources]
        several = [each for each in found if each is not None]
        return _Joined(self, several) if len(several) == len(found) else None

    def spec(self, run: bool) -> Spec:
        """Return what holds for the elements of all."""
        return common_spec([each.spec(run) for each in self.sources])

    def cardinality(self) -> int:
        """Return the sum."""
        counts = [each.cardinality() for each in self.sources]
        if INFINITE in counts:
            return INFINITE
        return UNKNOWN if UNKNOWN in counts else sum(counts)


def common_spec(specs: list[Spec]) -> Spec:
    """Return what holds for elements of any of the specs; None if nothing is known of one.

    Raises
    ------
    DatasetError
        If they differ in structure or dtype.
    """
    if any(spec is None for spec in specs):
        return None
    leaves, nesting = flatten(specs[0])
    for spec in specs[1:]:
        others, other_nesting = flatten(spec)
        found = [merged(a, b) for a, b in zip(leaves, others, strict=False)]
        if other_nesting != nesting or None in found:
            raise DatasetError(f"datasets have different elements: {specs[0]} and {spec}")
        leaves = found
    return unflatten(nesting, iter(leaves))


class _Joined(Indexed):
    def __init__(self, node: Node, several: list[Indexed]) -> None:
        self._node, self._several = node, several
        self._ends = np.cumsum([each.count for each in several])
        self.count = int(self._ends[-1])

    def gather(self, indices: np.ndarray) -> Block:
        which = np.searchsorted(self._ends, indices, "right")
        parts, places = [], []
        for number in np.unique(which):
            here = np.flatnonzero(which == number)
            each = self._several[number]
            parts.append(each.gather(indices[here] - (self._ends[number] - each.count)))
            places.append(here)
        if len(parts) == 1:
            return parts[0]
        try:
            joined = concatenate(parts)
        except DatasetError as error:
            raise DatasetError(f"{self._node.label()}: {error}") from error
        return joined.take(np.argsort(np.concatenate(places)))

    def part(self, start: int, stop: int) -> Block:
        number = int(np.searchsorted(self._ends, start, "right"))
        if stop > self._ends[number]:
            return self.gather(np.arange(start, stop))
        each = self._several[number]
        begin = int(self._ends[number]) - each.count
        return each.part(start - begin, stop - begin)


class _ConcatenateIterator(NodeIterator):
    """The state: which input, and its reader's."""

    def __init__(self, node: Concatenate, context: Context, state: State) -> None:
        self._node, self._context = node, context
        self._number: int
        self._number, inner = state or (0, None)
        self._reader = self._open(inner)

    def next_block(self, limit: int) -> Block | None:
        while (block := self._reader.take(limit)) is None:
            if self._number + 1 == len(self._node.sources):
                return None
            self._reader.close()
            self._number += 1
            self._reader = self._open(None)
        return block

    def state(self) -> State:
        return [self._number, self._reader.state()]

    def close(self) -> None:
        self._reader.close()

    def _open(self, state: State) -> Reader:
        source = self._node.sources[self._number]
        return Reader(source, self._context.child(self._number), state)
