"""The elements for which a predicate is true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.single_input import SingleInputIterator
from psnb._src.data.nodes.user_calls import call, failure
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """Leaves out the elements for which the predicate is false."""

    name: ClassVar[str] = "filter"

    source: Node
    predicate: Callable[..., Any]
    batched: bool = False

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _FilterIterator(self, context, state)

    @property
    def ahead(self) -> int:
        """Return 1: the predicate may have side effects, or be slow."""
        return self.source.ahead if self.batched else 1


class _FilterIterator(SingleInputIterator):
    def __init__(self, node: Filter, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._node = node

    def next_block(self, limit: int) -> Block | None:
        while (block := self._reader.take(limit)) is not None:
            chosen = self._mask(block) if self._node.batched else self._one_by_one(block)
            if len(chosen) == block.count:
                return block
            if len(chosen):
                return block.take(chosen)
        return None

    def _mask(self, block: Block) -> np.ndarray:
        try:
            mask = np.asarray(call(self._node.predicate, block.whole()))
            if mask.shape != (block.count,) or mask.dtype != np.bool_:
                raise DatasetError(
                    f"the predicate was given {block.count} elements and returned "
                    f"{mask.dtype} {mask.shape}; with batched=True it must return a bool for each"
                )
        except Exception as error:  # the user's function may raise anything
            position = self._reader.position - block.count
            raise failure(self._node, position, error, block, 0) from error
        return np.flatnonzero(mask)

    def _one_by_one(self, block: Block) -> np.ndarray:
        chosen = []
        for index in range(block.count):
            try:
                if bool(call(self._node.predicate, block.element(index))):
                    chosen.append(index)
            except Exception as error:  # the user's function may raise anything
                position = self._reader.position - block.count + index
                if not chosen:
                    self._reader.put_back(block.part(index + 1, block.count))
                    raise failure(self._node, position, error, block, index) from error
                self._reader.put_back(block.part(index, block.count))
                break
        return np.array(chosen, np.int64)
