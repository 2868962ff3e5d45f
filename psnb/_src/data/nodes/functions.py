"""Elements that a user's function makes, or decides about."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, block_of, copied, made_of
from psnb._src.data.nesting import as_leaf, flatten, flatten_like, paths, unflatten
from psnb._src.data.node import Context, Node, State
from psnb._src.data.nodes.parallel import ParallelMapIterator
from psnb._src.data.reader import Reader, SingleInputIterator, call, failure, take_each
from psnb._src.data.stacker import Stacker
from psnb.errors import DatasetError


class _ScanIterator(SingleInputIterator["Scan"]):
    """The state: the arrays in the memory, and the reader's."""

    def __init__(self, node: Scan, context: Context, state: State) -> None:
        leaves, self._nesting = flatten(node.initial_state)
        names = paths(self._nesting)
        self._memory = [as_leaf(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
        inner = None
        if state is not None:
            memory, inner = state
            self._memory = [_decoded(each) for each in memory]
        super().__init__(node, context, inner)
        self._stacker = Stacker()

    def next_block(self, limit: int) -> Block | None:
        block = take_each(self._node, self._reader, limit, self._step, apart=False)
        return None if block is None else self._stacker.block(block.origin)

    def state(self) -> State:
        return [[_encoded(leaf) for leaf in self._memory], self._reader.state()]

    def _step(self, element: Any) -> None:
        # The function may change the arrays that it gets, and refill the ones that it returns.
        given = [copied(leaf) for leaf in self._memory]
        memory = unflatten(self._nesting, iter(given))
        result = self._node.function(memory, element)
        if not isinstance(result, tuple) or len(result) != 2:
            raise DatasetError("the function must return a pair: the next state, and an element")
        leaves = next_state(self._nesting, self._memory, result[0], element)
        self._stacker.add(result[1])
        # Its arguments are its own already.
        pairs = zip(leaves, given, strict=True)
        self._memory = [leaf if leaf is mine else copied(leaf) for leaf, mine in pairs]


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """Calls ``function(memory, element)``, which returns the next memory and an element."""

    name: ClassVar[str] = "scan"
    iterator: ClassVar[Any] = _ScanIterator
    opaque: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = True
    ahead: ClassVar[int] = 1  # the function may have side effects, or be slow

    source: Node
    initial_state: Any
    function: Callable[..., Any]


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


class _MapIterator(SingleInputIterator["Map"]):
    def __init__(self, node: Map, context: Context, state: State) -> None:
        super().__init__(node, context, state)
        self._stacker = Stacker()

    def next_block(self, limit: int) -> Block | None:
        node, reader = self._node, self._reader
        if node.batched:
            block = reader.take(limit)
            return None if block is None else node.apply(block, reader.position - block.count)
        block = take_each(node, reader, limit, node.function, self._stacker.add)
        return None if block is None else self._stacker.block(block.origin)


@dataclass(frozen=True, eq=False)
class Map(Node):
    """Applies a function to each element, or to many together."""

    name: ClassVar[str] = "map"
    local: ClassVar[bool] = True
    opaque: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = True

    source: Node
    function: Callable[..., Any]
    num_parallel_calls: int | None = None
    deterministic: bool | None = None
    batched: bool = False

    @property
    def iterator(self) -> Any:
        return _MapIterator if self.num_parallel_calls is None else ParallelMapIterator

    def apply(self, block: Block, position: int) -> Block:
        """Return the function's result for a block; of one element, unless it is of batches."""
        try:
            if not self.batched:
                stacker = Stacker()
                stacker.add(call(self.function, block.element(0)))
                return stacker.block(block.origin)
            made = block_of(call(self.function, block.whole()))
            if made.count != block.count:
                raise DatasetError(
                    f"the function was given {block.count} elements and returned {made.count}; "
                    "with batched=True it must return as many"
                )
        except Exception as error:  # the user's function may raise anything
            raise failure(self, position, error, block, 0) from error
        # A function of whole blocks may return one array again and again, too.
        return made_of(block, made)

    @property
    def ahead(self) -> int:
        """Return 1: the function may have side effects, or be slow."""
        return self.source.ahead if self.batched else 1


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """Leaves out the elements for which the predicate is false."""

    name: ClassVar[str] = "filter"
    iterator: ClassVar[Any] = SingleInputIterator
    local: ClassVar[bool] = True

    source: Node
    predicate: Callable[..., Any]
    batched: bool = False

    @property
    def ahead(self) -> int:
        """Return 1: the predicate may have side effects, or be slow."""
        return self.source.ahead if self.batched else 1

    def pull(self, reader: Reader, limit: int) -> Block | None:
        while True:
            chosen: Any = []
            if self.batched:
                block = reader.take(limit)
                chosen = block and self._chosen(block, reader.position - block.count)
            else:
                block = take_each(self, reader, limit, self.predicate, chosen=chosen)
            if block is None:
                return None
            if len(chosen):
                return block if len(chosen) == block.count else block.take(np.asarray(chosen))

    def _chosen(self, block: Block, position: int) -> np.ndarray:
        try:
            mask = np.asarray(call(self.predicate, block.whole()))
            if mask.shape != (block.count,) or mask.dtype != np.bool_:
                raise DatasetError(
                    f"the predicate was given {block.count} elements and returned "
                    f"{mask.dtype} {mask.shape}; with batched=True it must return a bool for each"
                )
        except Exception as error:  # the user's function may raise anything
            raise failure(self, position, error, block, 0) from error
        return np.flatnonzero(mask)


class _TakeWhileIterator(SingleInputIterator["TakeWhile"]):
    """The state: the reader's, before the element that ends this, which is asked about again."""

    def __init__(self, node: TakeWhile, context: Context, state: State) -> None:
        super().__init__(node, context, state)
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        if self._ended:
            return None
        block = take_each(self._node, self._reader, limit, self._node.predicate, self._goes_on)
        return block if block is not None and block.count else None

    def _goes_on(self, result: Any) -> bool:
        self._ended = not result
        return not self._ended


@dataclass(frozen=True, eq=False)
class TakeWhile(Node):
    """Ends at the first element for which the predicate is false."""

    name: ClassVar[str] = "take_while"
    iterator: ClassVar[Any] = _TakeWhileIterator
    ahead: ClassVar[int] = 1  # the predicate may have side effects, or be slow

    source: Node
    predicate: Callable[..., Any]
