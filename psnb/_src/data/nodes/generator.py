"""Elements that a user's function yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from psnb._src.data.block import Block
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node, NodeIterator, State
from psnb._src.data.nodes.first_spec import first_spec
from psnb._src.data.spec import Spec
from psnb._src.data.stacker import Stacker
from psnb._src.excerpt import error_text
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Generator(Node):
    """Calls a function for each iteration, and takes elements from the iterable that it returns."""

    name: ClassVar[str] = "from_generator"

    function: Callable[..., Iterable[Any]]
    output_signature: Spec = None
    args: tuple[Any, ...] = ()

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; a state is how many elements to leave out."""
        return _GeneratorIterator(self, state or 0)

    def spec(self, run: bool) -> Spec:
        """Return the signature; without one, what the first element says."""
        if self.output_signature is not None or not run:
            return self.output_signature
        return first_spec(self)

    @property
    def ahead(self) -> int:
        """Return 1: a generator may have side effects, or be slow."""
        return 1


class _GeneratorIterator(NodeIterator):
    def __init__(self, node: Generator, skip: int) -> None:
        self._node, self._skip = node, skip
        self._given = skip
        self._elements: Iterator[Any] | None = None
        self._stacker = Stacker(node.output_signature)
        self._failed: DatasetError | None = None
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        count = 0
        while count < limit and self._failed is None and not self._ended:
            try:
                if self._elements is None:
                    self._elements = iter(self._node.function(*self._node.args))
                    for _ in range(self._skip):
                        next(self._elements)
                self._stacker.add(next(self._elements))
                count += 1
            except StopIteration:
                self._ended = True
            except Exception as error:  # whatever the generator raises; it is over then
                problem = error_text(error)
                self._failed = self._node.error(self._given + count, problem)
                self._failed.__cause__ = error
        if count:
            self._given += count
            return self._stacker.block()
        failed, self._failed = self._failed, None
        if failed is not None:
            self._ended = True
            raise failed
        return None

    def state(self) -> State:
        return self._given

    def close(self) -> None:
        close = getattr(self._elements, "close", None)
        self._ended = True
        if close is not None:
            close()
