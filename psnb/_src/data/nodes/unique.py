"""The first of equal elements.

The state has no elements: how many were read, and how many errors the input has raised. To resume,
those are read again, to know which there were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import is_text
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.reader import Reader
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Unique(Node):
    """Leaves out elements that were there before: numbers or texts."""

    name: ClassVar[str] = "unique"

    source: Node

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; the input is read from its start in any case."""
        return _UniqueIterator(self, context, state)


class _UniqueIterator(NodeIterator):
    def __init__(self, node: Unique, context: Context, state: State) -> None:
        self._node = node
        self._behind: int  # elements that were read before the state was taken
        self._raised: int
        self._behind, self._raised = state or (0, 0)
        # From the start, but without the errors that were raised before.
        self._reader = Reader(node.source, context.child(0), [0, None, 0, self._raised])
        self._seen: set[Any] = set()

    def next_block(self, limit: int) -> Block | None:
        self._catch_up()
        while (block := self._take(limit)) is not None:
            new = self._new(block)
            if len(new):
                return block.take(new)
        return None

    def state(self) -> State:
        return [max(self._behind, self._reader.position), self._raised]

    def close(self) -> None:
        self._reader.close()

    def _catch_up(self) -> None:
        while (missing := self._behind - self._reader.position) > 0:
            block = self._reader.take(min(missing, BLOCK))
            if block is None:
                self._behind = self._reader.position  # this error is the last one
                raise DatasetError(
                    "unique: the input has fewer elements than when the state was taken"
                )
            self._seen.update(self._keys(block))

    def _take(self, limit: int) -> Block | None:
        try:
            return self._reader.take(limit)
        except DatasetError:
            self._raised += 1
            raise

    def _new(self, block: Block) -> np.ndarray:
        found = []
        for index, key in enumerate(self._keys(block)):
            if key not in self._seen:
                self._seen.add(key)
                found.append(index)
        return np.array(found, np.int64)

    def _keys(self, block: Block) -> list[Any]:
        """Return the elements of a block as Python's numbers and texts."""
        column = block.columns[0]
        if block.nesting is None and isinstance(column, np.ndarray) and column.ndim == 1:
            keys: list[Any] = column.tolist()
            if column.dtype.kind in "iubSU" or all(map(is_text, keys)):
                return keys
        position = self._reader.position - block.count
        raise self._node.error(
            position,
            "elements must be integers, booleans or texts, one each; map to what tells them apart, "
            "or use merge_by",
            block.place(0),
        )
