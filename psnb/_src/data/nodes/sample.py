"""Elements of several datasets; for each element, the dataset is drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block, concatenate
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import INFINITE, UNKNOWN, Node, NodeIterator, State
from psnb._src.data.nodes.concatenate import common_spec
from psnb._src.data.random_numbers import mixed, uniforms
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Spec
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Sample(Node):
    """Draws by weight among those that have not ended."""

    name: ClassVar[str] = "sample_from_datasets"

    sources: tuple[Node, ...]
    weights: tuple[float, ...]
    seed: int | None = None
    stop_on_empty_dataset: bool = False

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _SampleIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return what holds for the elements of all."""
        return common_spec([each.spec(run) for each in self.sources])

    def cardinality(self) -> int:
        """Return the sum; unknown if all end with the first."""
        counts = [each.cardinality() for each in self.sources]
        if self.stop_on_empty_dataset or UNKNOWN in counts:
            return UNKNOWN
        return INFINITE if INFINITE in counts else sum(counts)


class _SampleIterator(NodeIterator):
    """The state: how often was drawn, which have ended, and the readers'."""

    def __init__(self, node: Sample, context: Context, state: State) -> None:
        self._node = node
        own = context.seed if node.seed is None else mixed(node.seed)
        self._key = mixed(own, context.epoch)
        count = len(node.sources)
        self._drawn, self._ended, states = (0, [], [None] * count) if state is None else state
        self._ended = list(self._ended)
        self._readers = [
            Reader(source, context.child(index), each)
            for index, (source, each) in enumerate(zip(node.sources, states, strict=True))
        ]

    def next_block(self, limit: int) -> Block | None:
        while True:
            weights = np.array(self._node.weights)
            weights[self._ended] = 0
            if not weights.any() or (self._ended and self._node.stop_on_empty_dataset):
                return None
            bounds = np.cumsum(weights / weights.sum())
            numbers = uniforms(self._key, self._drawn, limit)
            # A number may be above the last bound by rounding.
            drawn = np.minimum(
                np.searchsorted(bounds, numbers, "right"), np.flatnonzero(weights)[-1]
            )
            block = self._collect(drawn)
            if block is not None:
                return block

    def state(self) -> State:
        return [self._drawn, list(self._ended), [reader.state() for reader in self._readers]]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _collect(self, drawn: np.ndarray) -> Block | None:
        """Return what was drawn, as far as all have it; note the one that turns out to end."""
        taken: list[tuple[int, Block]] = []
        good, ended = len(drawn), -1
        for number in np.unique(drawn).tolist():
            places = np.flatnonzero(drawn[:good] == number)
            if not len(places):
                continue
            try:
                block = self._readers[number].take(len(places))
            except DatasetError:
                for other, held in taken:
                    self._readers[other].put_back(held)
                raise
            got = 0
            if block is not None:
                taken.append((number, block))
                got = block.count
            if got < len(places):
                good, ended = int(places[got]), number if block is None else -1
        parts, order = [], []
        for number, block in taken:
            places = np.flatnonzero(drawn[:good] == number)
            self._readers[number].put_back(block.part(len(places), block.count))
            if len(places):
                parts.append(block.part(0, len(places)))
                order.append(places)
        self._drawn += good
        if ended >= 0:
            self._ended.append(ended)
        if not parts:
            return None
        return concatenate(parts).take(np.argsort(np.concatenate(order)))
