"""What nodes have in common: one input, elements by number, and calls of users' functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from psnb._src.data.block import Block, block_spec, concatenate
from psnb._src.data.node import Context, Indexed, Node, NodeIterator, State
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Nesting, Spec, compose, element_spec
from psnb._src.utils.text import error_text
from psnb.errors import DatasetError

# Base of what reads from one input.


class _HasSource(Protocol):
    @property
    def source(self) -> Node: ...


N = TypeVar("N", bound=_HasSource)


class SingleInputIterator(NodeIterator, Generic[N]):
    """Reads from one input; the state is the reader's, unless there is more to know."""

    def __init__(self, node: N, context: Context, state: State = None) -> None:
        self._node = node
        self._reader = Reader(node.source, context.child(0), state)

    def state(self) -> State:
        """Return the reader's state."""
        return self._reader.state()

    def close(self) -> None:
        """Close the input."""
        self._reader.close()


# Elements by number: parts of others, and going through them in order.


class SelectedRows(Indexed):
    """Those of a block."""

    def __init__(self, block: Block) -> None:
        self.count, self._block = block.count, block

    def gather(self, indices: np.ndarray) -> Block:
        """Return elements by number."""
        return self._block.take(indices)

    def part(self, start: int, stop: int) -> Block:
        """Return a run of elements."""
        return self._block.part(start, stop)


class Every(Indexed):
    """Those of others whose numbers are in a range."""

    def __init__(self, all_: Indexed, numbers: range) -> None:
        self.count, self._all, self._numbers = len(numbers), all_, numbers

    def gather(self, indices: np.ndarray) -> Block:
        """Return elements by number."""
        return self._all.gather(self._numbers.start + indices * self._numbers.step)

    def part(self, start: int, stop: int) -> Block:
        """Return a run of elements."""
        if self._numbers.step == 1:
            return self._all.part(self._numbers.start + start, self._numbers.start + stop)
        return self.gather(np.arange(start, stop))


class InOrder(NodeIterator):
    """Goes through them; the state is the number of the next one."""

    def __init__(self, elements: Indexed, state: State = None) -> None:
        self._elements, self._next = elements, 0 if state is None else int(state)

    def next_block(self, limit: int) -> Block | None:
        """Return the next elements."""
        start, stop = self._next, min(self._next + limit, self._elements.count)
        if start >= stop:
            return None
        self._next = stop
        return self._elements.part(start, stop)

    def state(self) -> State:
        """Return the number of the next element."""
        return self._next


def all_indexed(nodes: Iterable[Node]) -> list[Indexed] | None:
    """Return the elements of all nodes with random access; None if one node has them not so."""
    found = [each.indexed() for each in nodes]
    several = [each for each in found if each is not None]
    return several if len(several) == len(found) else None


class Zipped(Indexed):
    """One element of each of several, together; as many as the shortest has."""

    def __init__(self, nesting: Nesting, several: Sequence[Indexed]) -> None:
        self._nesting, self._several = nesting, several
        self.count = min(each.count for each in several)

    def gather(self, indices: np.ndarray) -> Block:
        return together(self._nesting, [each.gather(indices) for each in self._several])

    def part(self, start: int, stop: int) -> Block:
        return together(self._nesting, [each.part(start, stop) for each in self._several])


def together(nesting: Nesting, blocks: list[Block]) -> Block:
    """Return one block of several with as many elements."""
    return Block(
        compose(nesting, iter([block.nesting for block in blocks])),
        tuple(column for block in blocks for column in block.columns),
        blocks[0].count,
        next((block.origin for block in blocks if block.origin is not None), None),
        any(block.loose for block in blocks),
    )


class Joined(Indexed):
    """Those of several, one after another; ``node`` is named in errors."""

    def __init__(self, node: Node, several: Sequence[Indexed]) -> None:
        self._node, self._several = node, several
        self._ends = np.cumsum([each.count for each in several])
        self.count = int(self._ends[-1])

    def gather(self, indices: np.ndarray) -> Block:
        if len(self._several) == 1:
            return self._several[0].gather(indices)
        which = np.searchsorted(self._ends, indices, "right")
        parts, places = [], []
        for number in np.unique(which):
            here = np.flatnonzero(which == number)
            each = self._several[number]
            parts.append(each.gather(indices[here] - (self._ends[number] - each.count)))
            places.append(here)
        if len(parts) == 1:
            return parts[0]
        try:
            joined = concatenate(parts)
        except DatasetError as error:
            raise DatasetError(f"{self._node.label()}: {error}") from error
        return joined.take(np.argsort(np.concatenate(places)))

    def part(self, start: int, stop: int) -> Block:
        number = int(np.searchsorted(self._ends, start, "right"))
        if stop > self._ends[number]:
            return self.gather(np.arange(start, stop))
        each = self._several[number]
        begin = int(self._ends[number]) - each.count
        return each.part(start - begin, stop - begin)


# first_spec: the spec of a node's elements, from the first one.


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


# Calls of users' functions.


def call(function: Callable[..., Any], element: Any) -> Any:
    """Call a function with an element: with a tuple's items as arguments, as tf.data does."""
    return function(*element) if type(element) is tuple else function(element)


def take_each(
    node: Node, reader: Reader, limit: int, function: Callable[[Any], object]
) -> Block | None:
    """Take elements and call a function with each, up to the first for which it fails.

    What comes before that one is returned, and it comes again; if it is the very first, its error
    is raised.
    """
    block = reader.take(limit)
    if block is None:
        return None
    for index in range(block.count):
        try:
            function(block.element(index))
        except Exception as error:  # the user's function may raise anything
            if index == 0:
                position = reader.position - block.count
                reader.put_back(block.part(1, block.count))
                raise failure(node, position, error, block, 0) from error
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
