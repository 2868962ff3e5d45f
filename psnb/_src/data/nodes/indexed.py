"""Elements by number: of a block, parts of others, several together; and going through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from psnb._src.data.block import Block, concatenate
from psnb._src.data.nesting import Nesting, compose
from psnb._src.data.node import Indexed, Node
from psnb.errors import DatasetError


class SelectedRows(Indexed):
    """The elements of a block."""

    def __init__(self, block: Block) -> None:
        self.count, self._block = block.count, block

    def gather(self, indices: np.ndarray) -> Block:
        return self._block.take(indices)

    def part(self, start: int, stop: int) -> Block:
        return self._block.part(start, stop)


class Every(Indexed):
    """The elements of another one whose numbers are in a range."""

    def __init__(self, all_: Indexed, numbers: range) -> None:
        self.count, self._all, self._numbers = len(numbers), all_, numbers

    def gather(self, indices: np.ndarray) -> Block:
        return self._all.gather(self._numbers.start + indices * self._numbers.step)

    def part(self, start: int, stop: int) -> Block:
        if self._numbers.step == 1:
            return self._all.part(self._numbers.start + start, self._numbers.start + stop)
        return self.gather(np.arange(start, stop))


def all_indexed(nodes: Iterable[Node]) -> list[Indexed] | None:
    """Return the elements of all nodes with random access; None if one node has them not so."""
    found = [each.indexed() for each in nodes]
    several = [each for each in found if each is not None]
    return several if len(several) == len(found) else None


class Zipped(Indexed):
    """One element of each of several, together; as many as the shortest has."""

    def __init__(self, nesting: Nesting, several: Sequence[Indexed]) -> None:
        self._nesting, self._several = nesting, several
        self.count = min(each.count for each in several)

    def gather(self, indices: np.ndarray) -> Block:
        return together(self._nesting, [each.gather(indices) for each in self._several])

    def part(self, start: int, stop: int) -> Block:
        return together(self._nesting, [each.part(start, stop) for each in self._several])


def together(nesting: Nesting, blocks: list[Block]) -> Block:
    """Return one block of several with as many elements."""
    return Block(
        compose(nesting, iter([block.nesting for block in blocks])),
        tuple(column for block in blocks for column in block.columns),
        blocks[0].count,
        next((block.origin for block in blocks if block.origin is not None), None),
        any(block.loose for block in blocks),
    )


class Joined(Indexed):
    """The elements of several, one after another; ``node`` is named in errors."""

    def __init__(self, node: Node, several: Sequence[Indexed]) -> None:
        self._node, self._several = node, several
        self._ends = np.cumsum([each.count for each in several])
        self.count = int(self._ends[-1])

    def gather(self, indices: np.ndarray) -> Block:
        if len(self._several) == 1:
            return self._several[0].gather(indices)
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
