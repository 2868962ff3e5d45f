"""What nodes with one input have in common, and calls of users' functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from psnb._src.data.block import Block
from psnb._src.data.node import Context, Node, NodeIterator, State
from psnb._src.data.reader import Reader
from psnb._src.utils.text import error_text
from psnb.errors import DatasetError

N = TypeVar("N", bound=Any)  # nodes with a `source`


class ReadingIterator(NodeIterator):
    """Reads with one reader at a time, and closes it."""

    _reader: Reader

    def close(self) -> None:
        self._reader.close()


class SingleInputIterator(ReadingIterator, Generic[N]):
    """Reads from one input; the state is the reader's, unless there is more to know."""

    def __init__(self, node: N, context: Context, state: State = None) -> None:
        self._node = node
        self._reader = Reader(node.source, context.child(0), state)

    def state(self) -> State:
        return self._reader.state()


class FromStartIterator(SingleInputIterator[N]):
    """Reads its input from the start in any case, and again what was read before a state was taken.

    The state: how far it is, and how many errors the input has raised: these come no second time.
    """

    def __init__(self, node: N, context: Context, state: State) -> None:
        self._far: int
        self._raised: int
        self._far, self._raised = state or (0, 0)
        super().__init__(node, context, [0, None, 0, self._raised])

    def state(self) -> State:
        return [self._far, self._raised]

    def _take(self, limit: int) -> Block | None:
        try:
            return self._reader.take(limit)
        except DatasetError:
            self._raised += 1
            raise


def call(function: Callable[..., Any], element: Any) -> Any:
    """Call a function with an element: with a tuple's items as arguments, as tf.data does."""
    return function(*element) if type(element) is tuple else function(element)


def take_each(
    node: Node, reader: Reader, limit: int, function: Callable[[Any], object]
) -> Block | None:
    """Take elements and call a function with each, up to the first for which it fails.

    The elements before that one are returned, and it comes again; if it is the very first, its
    error is raised. False ends this before an element, too; there may be none then.
    """
    block = reader.take(limit)
    if block is None:
        return None
    for index in range(block.count):
        try:
            goes_on = function(block.element(index)) is not False
        except Exception as error:  # the user's function may raise anything
            if index == 0:
                position = reader.position - block.count
                reader.put_back(block.part(1, block.count))
                raise failure(node, position, error, block, 0) from error
            goes_on = False
        if not goes_on:
            reader.put_back(block.part(index, block.count))
            return block.part(0, index)
    return block


def failure(node: Node, position: int, error: Exception, block: Block, index: int) -> DatasetError:
    """Return the error that a function failed on an element of a block."""
    problem = str(error) if isinstance(error, DatasetError) else error_text(error)
    if isinstance(error, StopIteration):
        # In TensorFlow 2, likewise, an OutOfRangeError in `map` is an InvalidArgumentError.
        problem = (
            "it raised StopIteration, which does not end a dataset: use take or from_generator"
        )
    made = node.error(position, problem, block.place(index))
    made.__cause__ = error
    return made
