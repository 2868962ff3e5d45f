"""first_spec: the spec of a node's elements, from the first one."""

from __future__ import annotations

from psnb._src.data.block import block_spec
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node
from psnb._src.data.spec import Spec, element_spec
from psnb.errors import DatasetError


def first_spec(node: Node) -> Spec:
    """Make the first element of a node and return its spec.

    Raises
    ------
    DatasetError
        If there is no element.
    """
    elements = node.iterate(Context(seed=0))
    try:
        block = elements.next_block(1)
    finally:
        elements.close()
    if block is None:
        raise DatasetError(
            f"{node.label()}: what its elements are is known from the first one only, and there "
            "is none"
        )
    # A source that knows its columns knows more than the first element: lists may differ in length.
    known = None if block.loose else block_spec(block)
    return element_spec(block.element(0)) if known is None else known
