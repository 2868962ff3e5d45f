"""Elements by number: of a block, parts of others, several together; and going through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from psnb._src.data.block import Block, concatenate
from psnb._src.data.nesting import Nesting, compose
from psnb._src.data.node import Indexed, Node, numbers_of
from psnb.errors import DatasetError


class Numbers(Indexed):
    """The numbers of a range, as int64."""

    def __init__(self, numbers: range) -> None:
        self.count, self._numbers = len(numbers), numbers

    def rows(self, which: np.ndarray | slice) -> Block:
        column = self._numbers.start + numbers_of(which) * self._numbers.step
        return Block(None, (column,), len(column))


class SelectedRows(Indexed):
    """The elements of a block."""

    def __init__(self, block: Block) -> None:
        self.count, self._block = block.count, block

    def rows(self, which: np.ndarray | slice) -> Block:
        if isinstance(which, slice):
            return self._block.part(which.start, which.stop)
        return self._block.take(which)


class Every(Indexed):
    """The elements of another one whose numbers are in a range."""

    def __init__(self, all_: Indexed, numbers: range) -> None:
        self.count, self._all, self._numbers = len(numbers), all_, numbers

    def rows(self, which: np.ndarray | slice) -> Block:
        start, step = self._numbers.start, self._numbers.step
        if isinstance(which, slice) and step == 1:
            return self._all.rows(slice(start + which.start, start + which.stop))
        return self._all.rows(start + numbers_of(which) * step)


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

    def rows(self, which: np.ndarray | slice) -> Block:
        return together(self._nesting, [each.rows(which) for each in self._several])


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

    def rows(self, which: np.ndarray | slice) -> Block:
        if len(self._several) == 1:
            return self._several[0].rows(which)
        if isinstance(which, slice):
            number = int(np.searchsorted(self._ends, which.start, "right"))
            if which.stop <= self._ends[number]:
                each = self._several[number]
                begin = int(self._ends[number]) - each.count
                return each.rows(slice(which.start - begin, which.stop - begin))
        numbers = numbers_of(which)
        places = np.searchsorted(self._ends, numbers, "right")
        parts, order = [], []
        for number in np.unique(places):
            here = np.flatnonzero(places == number)
            each = self._several[number]
            parts.append(each.rows(numbers[here] - (self._ends[number] - each.count)))
            order.append(here)
        if len(parts) == 1:
            return parts[0]
        try:
            joined = concatenate(parts)
        except DatasetError as error:
            raise DatasetError(f"{self._node.label()}: {error}") from error
        return joined.take(np.argsort(np.concatenate(order)))
