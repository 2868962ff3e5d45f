"""Some consecutive elements as a dataset of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, Origin, stack
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import map_leaves
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.single_input import SingleInputIterator
from psnb._src.data.nodes.slices import Slices
from psnb._src.data.spec import DatasetSpec, Spec


@dataclass(frozen=True, eq=False)
class Window(Node):
    """``size`` elements each, ``stride`` apart, beginning ``shift`` after those before."""

    name: ClassVar[str] = "window"

    source: Node
    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset: Callable[[Node], Any]
    """Makes a dataset of a node."""

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _WindowIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return a dataset for each leaf."""
        spec = self.source.spec(run)
        return None if spec is None else map_leaves(DatasetSpec, spec)

    @property
    def ahead(self) -> int:
        """Return how many windows to make at once."""
        return 1

    def parameters(self) -> list[str]:
        """Return those that the user gave."""
        return [text for text in super().parameters() if "=" in text]


class _WindowIterator(SingleInputIterator):
    def __init__(self, node: Window, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._node = node

    def next_block(self, limit: int) -> Block | None:
        node = self._node
        span = (node.size - 1) * node.stride + 1
        block = self._reader.take_exactly(span)
        if block is None or (node.drop_remainder and block.count < span):
            return None
        if node.shift < block.count:
            self._reader.put_back(block.part(node.shift, block.count))
        elif node.shift > span and block.count == span:
            self._reader.skip(node.shift - span)
        rows = block.take(np.arange(0, block.count, node.stride))
        columns = tuple(
            stack([node.dataset(Slices(Block(None, (column,), rows.count, loose=rows.loose)))])
            for column in rows.columns
        )
        origin = rows.origin and Origin(*(part[:1] for part in rows.origin))
        return Block(block.nesting, columns, 1, origin)
