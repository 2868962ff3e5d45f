"""Datasets that a function makes of elements, in turn or one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from psnb._src.data.block import Block
from psnb._src.data.context import Context
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.base import call, failure, first_spec
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Spec
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Interleave(Node):
    """Takes ``block_length`` elements in turn from each of ``cycle_length`` datasets."""

    name: ClassVar[str] = "interleave"
    ahead: ClassVar[int] = 1  # the function may have side effects, or be slow

    source: Node
    function: Callable[..., Any]
    cycle_length: int
    block_length: int

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _InterleaveIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return what the first element says."""
        return first_spec(self) if run else None


@dataclass(frozen=True, eq=False)
class FlatMap(Interleave):
    """One dataset after another."""

    name: ClassVar[str] = "flat_map"

    cycle_length: int = 1
    block_length: int = sys.maxsize


@dataclass
class _OpenDataset:
    before: State  # the outer reader's, before the element that the dataset was made of
    reader: Reader


class _InterleaveIterator(NodeIterator):
    """As in TensorFlow: a slot whose dataset ended stays empty for its turn."""

    def __init__(self, node: Interleave, context: Context, state: State) -> None:
        self._node, self._context = node, context
        outer, slots, self._turn, self._taken = (None, {}, 0, 0) if state is None else state
        self._outer = Reader(node.source, context.child(0), outer)
        self._slots: dict[int, _OpenDataset] = {}
        for number, (before, inner) in slots.items():
            again = Reader(node.source, context.child(0), before)
            try:
                opened = self._open(again, before, inner)
            finally:
                again.close()
            if opened is not None:
                self._slots[int(number)] = opened
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        while True:
            slot = self._slots.get(self._turn)
            if slot is not None:
                block = slot.reader.take(min(limit, self._node.block_length - self._taken))
                if block is not None:
                    self._taken += block.count
                    if self._taken == self._node.block_length:
                        self._advance()
                    return block
                slot.reader.close()
                del self._slots[self._turn]
                self._advance()
            elif not self._ended:
                opened = self._open(self._outer, self._outer.state(), None)
                if opened is None:
                    self._ended = True
                else:
                    self._slots[self._turn] = opened
            elif self._slots:
                self._advance()
            else:
                return None

    def state(self) -> State:
        slots = {str(n): [each.before, each.reader.state()] for n, each in self._slots.items()}
        return [self._outer.state(), slots, self._turn, self._taken]

    def level(self) -> tuple[int, int] | None:
        cycle = self._node.cycle_length
        return None if cycle == 1 else (len(self._slots), cycle)

    def close(self) -> None:
        for slot in self._slots.values():
            slot.reader.close()
        self._outer.close()

    def _advance(self) -> None:
        self._turn, self._taken = (self._turn + 1) % self._node.cycle_length, 0

    def _open(self, outer: Reader, before: State, inner: State) -> _OpenDataset | None:
        block = outer.take(1)
        if block is None:
            return None
        position = outer.position - 1
        try:
            made = call(self._node.function, block.element(0))
            node = getattr(made, "node", None)
            if not isinstance(node, Node):
                raise DatasetError(
                    f"the function must return a Dataset, found a {type(made).__name__}"
                )
            context = self._context.child(1).element(position)
            return _OpenDataset(before, Reader(node, context, inner))
        except Exception as error:  # the user's function may raise anything
            raise failure(self._node, position, error, block, 0) from error
