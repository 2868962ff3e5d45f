"""Leaves out elements that cannot be had, and counts them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from psnb.data.block import Block
from psnb.data.context import Context
from psnb.data.node import Node, NodeIterator, State
from psnb.data.nodes.through import ThroughIterator
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


class _IgnoringIterator(ThroughIterator):
    def __init__(self, node: IgnoreErrors, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._counters, self._logged = context.counters, False

    def next_block(self, limit: int) -> Block | None:
        while True:
            try:
                return self._reader.take(limit)
            except DatasetError as error:
                self._counters.errors_ignored += 1
                if not self._logged:
                    self._logged = True
                    _logger.warning("an element is left out, further ones silently: %s", error)
