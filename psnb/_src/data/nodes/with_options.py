"""Sets the options for the parts of the chain before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from psnb._src.data.iteration_context import Context, Options
from psnb._src.data.node import Indexed, Node, NodeIterator, State


@dataclass(frozen=True, eq=False)
class WithOptions(Node):
    """Changes nothing else."""

    name: ClassVar[str] = "with_options"

    source: Node
    options: Options

    @property
    def counted(self) -> Node:
        """Return the input."""
        return self.source.counted

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin the input."""
        return self.source.iterate(replace(context, options=self.options), state)

    def indexed(self) -> Indexed | None:
        """Return the input's."""
        return self.source.indexed()

    def cardinality(self) -> int:
        """Return the input's."""
        return self.source.cardinality()
