"""One element of each of several datasets, together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import Nesting, compose, unflatten
from psnb._src.data.node import INFINITE, UNKNOWN, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.indexed import InOrder
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Spec
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Zip(Node):
    """Ends with the shortest."""

    name: ClassVar[str] = "zip"

    sources: tuple[Node, ...]
    nesting: Nesting

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        return _ZipIterator(self, context, state) if indexed is None else InOrder(indexed, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if all inputs have them so."""
        found = [each.indexed() for each in self.sources]
        several = [each for each in found if each is not None]
        return _Zipped(self.nesting, several) if len(several) == len(found) else None

    def spec(self, run: bool) -> Spec:
        """Return those of the inputs, nested."""
        specs = [each.spec(run) for each in self.sources]
        return None if None in specs else unflatten(self.nesting, iter(specs))

    def cardinality(self) -> int:
        """Return that of the shortest."""
        counts = [each.cardinality() for each in self.sources]
        finite = [count for count in counts if count >= 0]
        if UNKNOWN in counts:
            return UNKNOWN
        return min(finite) if finite else INFINITE

    def parameters(self) -> list[str]:
        """Return none: its inputs are drawn."""
        return []


class _Zipped(Indexed):
    def __init__(self, nesting: Nesting, several: list[Indexed]) -> None:
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


class _ZipIterator(NodeIterator):
    def __init__(self, node: Zip, context: Context, state: State) -> None:
        self._node, self._ended = node, False
        states = state or [None] * len(node.sources)
        self._readers = [
            Reader(source, context.child(index), each)
            for index, (source, each) in enumerate(zip(node.sources, states, strict=True))
        ]

    def next_block(self, limit: int) -> Block | None:
        taken: list[tuple[Reader, Block]] = []
        failed: DatasetError | None = None
        for reader in self._readers:
            try:
                block = None if self._ended else reader.take(limit)
            except DatasetError as error:
                failed, limit = error, 1  # its element is lost, and those that belong to it
                continue
            if block is None:
                self._ended = True
                return None
            taken.append((reader, block))
            limit = min(limit, block.count)
        for reader, block in taken:
            reader.put_back(block.part(limit, block.count))
        if failed is not None:
            raise failed
        return together(self._node.nesting, [block.part(0, limit) for _, block in taken])

    def state(self) -> State:
        return [reader.state() for reader in self._readers]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
