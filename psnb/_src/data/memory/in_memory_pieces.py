"""Elements in the memory of this process, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from psnb._src.data.block import Block, read_only
from psnb._src.data.iteration_context import Context
from psnb._src.data.memory.numbered_examples import NumberedExamples
from psnb._src.data.memory.shuffle_plan import ShufflePlan
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.spec import Spec, element_spec


class Shelf(Protocol):
    """A store of pieces."""

    def read(self, generation: int, layout: ShufflePlan, number: int) -> NumberedExamples | None:
        """Return a piece in order; None if it is empty."""


@dataclass(frozen=True, eq=False)
class InMemoryPieces(Node):
    """The examples of some pieces; ``version``, a short text, identifies ``layout``."""

    name: ClassVar[str] = "in_memory"

    shelf: Shelf = field(repr=False)
    generation: int = field(repr=False)
    layout: ShufflePlan = field(repr=False)
    pieces: tuple[int, ...]
    version: str

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; a piece is read when its turn comes."""
        return _HeldIterator(self, state)

    def spec(self, run: bool) -> Spec:
        """Return what the first example says."""
        block = self.iterate(Context(seed=0)).next_block(1) if run else None
        return None if block is None else element_spec(block.element(0))


class _HeldIterator(NodeIterator):
    """The state: which piece, and how many examples of it were returned."""

    def __init__(self, node: InMemoryPieces, state: State) -> None:
        self._node = node
        self._at: int
        self._used: int
        self._at, self._used = state or (0, 0)
        self._block: Block | None = None

    def next_block(self, limit: int) -> Block | None:
        node = self._node
        while self._at < len(node.pieces):
            if self._block is None:
                chunk = node.shelf.read(node.generation, node.layout, node.pieces[self._at])
                self._block = None if chunk is None else read_only(chunk.block)
            if self._block is not None and self._used < self._block.count:
                start, self._used = self._used, min(self._used + limit, self._block.count)
                return self._block.part(start, self._used)
            self._at, self._used, self._block = self._at + 1, 0, None
        return None

    def state(self) -> State:
        return [self._at, self._used]
