"""Elements that a function makes from others, one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from psnb._src.data.block import Block, Origin, block_of, made_of
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.first_spec import first_spec
from psnb._src.data.nodes.parallel_map import ParallelMapIterator
from psnb._src.data.nodes.single_input import SingleInputIterator
from psnb._src.data.nodes.user_calls import call, failure
from psnb._src.data.spec import Spec
from psnb._src.data.stacker import Stacker
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Map(Node):
    """Applies a function to each element, or to many at once."""

    name: ClassVar[str] = "map"

    source: Node
    function: Callable[..., Any]
    num_parallel_calls: int | None = None
    deterministic: bool | None = None
    batched: bool = False

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; with threads if there are to be parallel calls."""
        if self.num_parallel_calls is None:
            kind = _BatchedMapIterator if self.batched else _MapIterator
            return kind(self, context, state)
        chosen = self.deterministic
        return ParallelMapIterator(
            self,
            self.source,
            self.apply_batched if self.batched else self.apply,
            self.source.ahead if self.batched else 1,
            context.options.parallelism(self.num_parallel_calls),
            context.options.deterministic if chosen is None else chosen,
            context,
            state,
        )

    def apply(self, block: Block, position: int) -> Block:
        """Return the function's result for a block of one element."""
        stacker = Stacker()
        try:
            stacker.add(call(self.function, block.element(0)))
        except Exception as error:  # the user's function may raise anything
            raise failure(self, position, error, block, 0) from error
        return stacker.block(block.origin)

    def apply_batched(self, block: Block, position: int) -> Block:
        """Return the function's result for a whole block."""
        try:
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

    def spec(self, run: bool) -> Spec:
        """Return what the first element says."""
        return first_spec(self) if run else None

    def cardinality(self) -> int:
        """Return the input's."""
        return self.source.cardinality()

    @property
    def ahead(self) -> int:
        """Return 1: the function may have side effects, or be slow."""
        return self.source.ahead if self.batched else 1


class _MapIterator(SingleInputIterator):
    def __init__(self, node: Map, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._node, self._stacker = node, Stacker()

    def next_block(self, limit: int) -> Block | None:
        block = self._reader.take(limit)
        if block is None:
            return None
        position = self._reader.position - block.count
        function = self._node.function
        for index in range(block.count):
            try:
                self._stacker.add(call(function, block.element(index)))
            except Exception as error:  # the user's function may raise anything
                if index == 0:
                    self._reader.put_back(block.part(1, block.count))
                    raise failure(self._node, position, error, block, 0) from error
                self._reader.put_back(block.part(index, block.count))
                block = block.part(0, index)
                break
        origin: Origin | None = block.origin
        return self._stacker.block(origin)


class _BatchedMapIterator(SingleInputIterator):
    def __init__(self, node: Map, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._node = node

    def next_block(self, limit: int) -> Block | None:
        block = self._reader.take(limit)
        if block is None:
            return None
        return self._node.apply_batched(block, self._reader.position - block.count)
