"""Elements that a function with a state makes from others."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, copied
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import as_leaf, flatten, flatten_like, paths, unflatten
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.first_spec import first_spec
from psnb._src.data.nodes.user_calls import failure
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Spec
from psnb._src.data.stacker import Stacker
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """Calls ``function(memory, element)``, which returns the next memory and an element."""

    name: ClassVar[str] = "scan"

    source: Node
    initial_state: Any
    function: Callable[..., Any]

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _ScanIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return what the first element says."""
        return first_spec(self) if run else None

    def cardinality(self) -> int:
        """Return the input's."""
        return self.source.cardinality()

    @property
    def ahead(self) -> int:
        """Return 1: the function may have side effects, or be slow."""
        return 1


class _ScanIterator(NodeIterator):
    """The state: the arrays in the memory, and the reader's."""

    def __init__(self, node: Scan, context: Context, state: State) -> None:
        self._node = node
        leaves, self._nesting = flatten(node.initial_state)
        names = paths(self._nesting)
        self._memory = [as_leaf(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
        inner = None
        if state is not None:
            memory, inner = state
            self._memory = [_decoded(each) for each in memory]
        self._reader = Reader(node.source, context.child(0), inner)
        self._stacker = Stacker()

    def next_block(self, limit: int) -> Block | None:
        block = self._reader.take(limit)
        if block is None:
            return None
        position = self._reader.position - block.count
        for index in range(block.count):
            try:
                self._step(block.element(index))
            except Exception as error:  # the user's function may raise anything
                if index == 0:
                    self._reader.put_back(block.part(1, block.count))
                    raise failure(self._node, position, error, block, 0) from error
                self._reader.put_back(block.part(index, block.count))
                block = block.part(0, index)
                break
        return self._stacker.block(block.origin)

    def state(self) -> State:
        return [[_encoded(leaf) for leaf in self._memory], self._reader.state()]

    def close(self) -> None:
        self._reader.close()

    def _step(self, element: Any) -> None:
        # The function may change the arrays that it gets, and fill those that it returns anew.
        given = [copied(leaf) for leaf in self._memory]
        memory = unflatten(self._nesting, iter(given))
        result = self._node.function(memory, element)
        if not isinstance(result, tuple) or len(result) != 2:
            raise DatasetError("the function must return a pair: the next state, and an element")
        leaves = next_state(self._nesting, self._memory, result[0], element)
        self._stacker.add(result[1])
        # What it was given is its own already.
        pairs = zip(leaves, given, strict=True)
        self._memory = [leaf if leaf is mine else copied(leaf) for leaf, mine in pairs]


def next_state(nesting: Any, before: list[Any], returned: Any, element: Any) -> list[Any]:
    """Return the leaves of the state that a function has returned for an element.

    Raises
    ------
    DatasetError
        If it is nested differently, or NumPy has rounded integers of it: int64 and uint64 together
        are float64.
    """
    leaves = [as_leaf(leaf) for leaf in flatten_like(nesting, returned)]
    for old, new in zip(before, leaves, strict=True):
        if _kind(old) in "iu" and _kind(new) == "f":
            # Other integers that become floats are the function's own wish, such as a division.
            for each in flatten(element)[0]:
                if _kind(each) in "iu" and np.result_type(old.dtype, each.dtype).kind == "f":
                    raise DatasetError(
                        f"a state of {old.dtype} and an element of {each.dtype} have become "
                        f"{new.dtype}, which rounds from 2**53 on: begin with "
                        f"np.{each.dtype}(0), or with 0.0 if that may be"
                    )
    return leaves


def _kind(leaf: Any) -> str:
    return leaf.dtype.kind if isinstance(leaf, (np.ndarray, np.generic)) else " "


def _encoded(leaf: Any) -> Any:
    if isinstance(leaf, str):
        return leaf
    if isinstance(leaf, bytes):
        return ["bytes", [], base64.b64encode(leaf).decode()]
    array = np.asarray(leaf)
    if array.dtype.hasobject:
        raise DatasetError("scan: a state of objects cannot be saved; use numbers, str or bytes")
    return [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _decoded(encoded: Any) -> Any:
    if isinstance(encoded, str):
        return encoded
    dtype, shape, text = encoded
    data = base64.b64decode(text)
    return data if dtype == "bytes" else np.frombuffer(data, dtype).reshape(shape).copy()[()]
