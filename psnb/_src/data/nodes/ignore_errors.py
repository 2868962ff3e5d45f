"""Skips elements that raise an error, and counts them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.reader import Reader
from psnb.errors import DatasetError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class IgnoreErrors(Node):
    """Goes on after an error; the first is logged, all are counted."""

    name: ClassVar[str] = "ignore_errors"

    source: Node

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _IgnoringIterator(self, context, state)


class _IgnoringIterator(NodeIterator):
    """The state: how many errors were left out so far, in earlier epochs too, and the reader's."""

    def __init__(self, node: IgnoreErrors, context: Context, state: State) -> None:
        counted, inner = state or (0, None)
        self._counts, self._place = context.counters.errors_ignored, context.place
        self._counts[self._place] = max(counted, self._count)
        self._reader = Reader(node.source, context.child(0), inner)

    def next_block(self, limit: int) -> Block | None:
        while True:
            try:
                return self._reader.take(limit)
            except DatasetError as error:
                self._counts[self._place] += 1
                if self._count == 1:
                    _logger.warning("an element is left out, further ones silently: %s", error)

    def state(self) -> State:
        return [self._count, self._reader.state()]

    def close(self) -> None:
        self._reader.close()

    @property
    def _count(self) -> int:
        return self._counts.get(self._place, 0)
