"""Elements that are rows of arrays in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from psnb._src.data.block import Block, block_spec
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Indexed, Node, State
from psnb._src.data.nodes.indexed import InOrder, SelectedRows
from psnb._src.data.spec import Spec, element_spec


@dataclass(frozen=True, eq=False)
class Slices(Node):
    """The rows of a block, whose arrays nobody may write to."""

    name: ClassVar[str] = "from_tensor_slices"

    block: Block

    def iterate(self, context: Context, state: State = None) -> InOrder:
        """Begin."""
        return InOrder(self.indexed(), state)

    def indexed(self) -> Indexed:
        """Return the rows."""
        return SelectedRows(self.block)

    def spec(self, run: bool) -> Spec:
        """Return that of a row."""
        spec = block_spec(self.block)
        if spec is None and self.block.count:
            spec = element_spec(self.block.element(0))
        return spec

    def cardinality(self) -> int:
        """Return how many rows there are."""
        return self.block.count


@dataclass(frozen=True, eq=False)
class Tensors(Slices):
    """One element, which is all of some arrays."""

    name: ClassVar[str] = "from_tensors"


@dataclass(frozen=True, eq=False)
class FileNames(Slices):
    """Paths, found when the dataset was made."""

    name: ClassVar[str] = "list_files"
