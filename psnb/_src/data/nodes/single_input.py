"""Base of what reads from one input and has little state of its own."""

from __future__ import annotations

from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.reader import Reader


class SingleInputIterator(NodeIterator):
    """Reads from one input; the state is the reader's."""

    def __init__(self, source: Node, context: Context, state: State = None) -> None:
        self._reader = Reader(source, context.child(0), state)

    def state(self) -> State:
        """Return the reader's state."""
        return self._reader.state()

    def close(self) -> None:
        """Close the input."""
        self._reader.close()
