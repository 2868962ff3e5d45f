"""StageCounts: counts what an iterator of a chain gives, and what it takes.

Whoever reads a node begins a stage. The counts are taken block by block, so they cost little. The
time of a stage is its own: what its inputs take in the same thread is taken off.

Threads: a stage belongs to the thread that reads its iterator. Any thread may take a snapshot,
whose numbers are those of a moment ago. A stage does not hold its iterator.
"""

from __future__ import annotations

import weakref
from time import perf_counter

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node, NodeIterator, State


class StageCounts:
    """Counts for one iterator.

    Parameters
    ----------
    node : Node
        What is iterated over.
    place : int
        The node's place in the chain.
    above : StageCounts or None
        The stage that reads this one.
    apart : bool
        Whether a thread of its own reads it: then its time is none of the stage above.
    """

    __slots__ = ("_apart", "_inside", "above", "elements", "iterator", "node", "place", "seconds")

    def __init__(self, node: Node, place: int, above: StageCounts | None, apart: bool) -> None:
        self.node, self.place, self.above, self._apart = node.counted, place, above, apart
        self.elements, self.seconds = 0, 0.0
        self._inside = 0.0  # the time of its inputs
        self.iterator: weakref.ref[NodeIterator]

    def next_block(self, source: NodeIterator, limit: int) -> Block | None:
        """Return the next elements of its iterator; see `NodeIterator.next_block`."""
        inside, begin = self._inside, perf_counter()
        try:
            block = source.next_block(limit)
        finally:
            seconds = perf_counter() - begin
            self.seconds += seconds - (self._inside - inside)
            if not self._apart and self.above is not None:
                self.above._inside += seconds
        if block is not None:
            self.elements += block.count
        return block


def begin_stage(
    node: Node, context: Context, state: State, *, apart: bool = False
) -> tuple[NodeIterator, StageCounts]:
    """Begin to iterate over a node, and count; see `StageCounts` and `Node.iterate`."""
    stage = StageCounts(node, context.place, context.stage, apart)
    iterator = node.iterate(context.read_by(stage), state)
    stage.iterator = weakref.ref(iterator)
    context.counters.stages.add(stage)
    return iterator, stage
