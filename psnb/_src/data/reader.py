"""Reader: takes elements from an input, and can put some of them back; iterators that have one.

All nodes read with one. It reads whole blocks, and keeps the elements that were not asked for yet.
Its state is the input's before the block, and how many elements of the block to skip, so a state
never contains elements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from psnb._src.data.block import BLOCK, Block, Origin, concatenate
from psnb._src.data.node import Context, Node, NodeIterator, State, begin_stage
from psnb._src.utils.text import error_text
from psnb.errors import DatasetError

ENOUGH = 64
"""If at least this many are asked for, no more are read, so that nothing must be kept."""


class _Base(NamedTuple):
    """The input's state before an element, and how many errors it had raised."""

    position: int
    state: State
    errors: int


class Reader:
    """Reads from a node. One thread at a time.

    Parameters
    ----------
    node : Node
        The input.
    context : Context
        The context of the input.
    state : object
        From `state`, to continue from there.

    Attributes
    ----------
    position : int
        The number of the next element, from 0.
    """

    def __init__(self, node: Node, context: Context, state: State = None) -> None:
        self.position: int
        self._swallow: int  # errors that were raised before the state was taken
        self.position, base, skip, self._swallow = (0, None, 0, 0) if state is None else state
        self._node, self._ahead = node, node.ahead
        self._input, self._stage = begin_stage(node, context, base)
        self._stages = context.counters.stages
        self._errors = 0
        self._held: deque[Block] = deque()
        self._at = 0  # how many elements of the first block were taken
        self._origin: tuple[Origin, int] | None = None  # of the latest `next_element`
        self._pulled: int = self.position - skip
        self._bases = deque([_Base(self._pulled, base, 0)])
        while skip and (block := self._next(skip)) is not None:
            self._pulled += block.count
            skip -= block.count

    def take(self, limit: int) -> Block | None:
        """Return at least one element and at most ``limit``; None at the end."""
        block = self._pull(limit)
        if block is not None:
            self.position += block.count
        return block

    def take_exactly(self, count: int) -> Block | None:
        """Return that many elements, fewer only at the end; None if there is none.

        If there is an error in between, the elements before it come with the next call.
        """
        blocks: list[Block] = []
        missing = count
        try:
            while missing and (block := self._pull(missing)) is not None:
                blocks.append(block)
                missing -= block.count
        except DatasetError:
            self._insert(blocks)
            raise
        first, self.position = self.position, self.position + count - missing
        try:
            return concatenate(blocks) if blocks else None
        except DatasetError as error:
            which = f"elements {first} to {self.position - 1}"
            raise DatasetError(f"{self._node.label()}, {which}: {error}") from error

    def next_element(self) -> tuple[Any] | None:
        """Return the next element, alone in a tuple; None at the end."""
        if not self._held and not self._fill(1):
            return None
        block, at = self._held[0], self._at
        self._origin = block.origin and (block.origin, at)
        self.position += 1
        if at + 1 == block.count:
            self._held.popleft()
            self._at = 0
        else:
            self._at = at + 1
        return (block.element(at),)

    def latest(self) -> str:
        """Return which element `next_element` has returned, for a message."""
        if self._origin is None:
            return f"element {self.position - 1}"
        origin, at = self._origin
        return f"element {self.position - 1} (its first example is of {origin.place(at)})"

    def put_back(self, block: Block) -> None:
        """Put back the last elements of the latest `take`."""
        if block.count:
            self._insert([block])
            self.position -= block.count

    def skip(self, count: int) -> int:
        """Skip elements; returns how many there were."""
        skipped = 0
        while skipped < count and (block := self.take(min(count - skipped, BLOCK))) is not None:
            skipped += block.count
        return skipped

    def state(self) -> State:
        """Return the state from which a new reader can continue here."""
        if not self._held:
            return [self.position, self._input.state(), 0, self._swallow]
        base = next(each for each in reversed(self._bases) if each.position <= self.position)
        skip = self.position - base.position
        errors = self._errors - base.errors + self._swallow
        return [self.position, base.state, skip, errors]

    def close(self) -> None:
        self._input.close()
        self._stages.end(self._stage)

    def _pull(self, limit: int) -> Block | None:
        if not self._held and not self._fill(limit):
            return None
        block, start = self._held[0], self._at
        stop = start + limit
        if stop < block.count:
            self._at = stop
        else:
            self._held.popleft()
            self._at = 0
        return block.part(start, stop)

    def _fill(self, limit: int) -> bool:
        self._base()
        block = self._next(limit if limit >= ENOUGH else max(limit, self._ahead))
        if block is None:
            return False
        self._pulled += block.count
        self._held.append(block)
        return True

    def _insert(self, blocks: list[Block]) -> None:
        if self._at:
            first = self._held.popleft()
            self._held.appendleft(first.part(self._at, first.count))
            self._at = 0
        self._held.extendleft(reversed(blocks))

    def _base(self) -> None:
        while len(self._bases) > 1 and self._bases[1].position <= self.position:
            self._bases.popleft()
        if self._bases and self._bases[-1].position == self._pulled:
            self._bases.pop()
        self._bases.append(_Base(self._pulled, self._input.state(), self._errors))

    def _next(self, limit: int) -> Block | None:
        while True:
            try:
                return self._stage.next_block(self._input, limit)
            except DatasetError:
                self._errors += 1
                if self._swallow == 0:
                    raise
                self._swallow -= 1  # it was raised before the state was taken


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

    def next_block(self, limit: int) -> Block | None:
        """Return what the node makes of its input, if it needs nothing but that."""
        block: Block | None = self._node.pull(self._reader, limit)
        return block

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
    node: Node,
    reader: Reader,
    limit: int,
    function: Callable[..., Any],
    add: Callable[[Any], object] | None = None,
    chosen: list[int] | None = None,
    apart: bool = True,
) -> Block | None:
    """Take elements and call a function with each, up to the first for which it fails.

    ``add`` gets the results, or ``chosen`` the indices of elements with a true one. A tuple's items
    are separate arguments, if ``apart``. The elements before the one that fails are returned, and
    it comes again; if it is the very first, its error is raised. False from ``add`` ends this
    before an element, too; there may be none then.
    """
    block = reader.take(limit)
    if block is None:
        return None
    for index in range(block.count):
        try:
            element = block.element(index)
            # As `call` does, without another frame for each element.
            splat = apart and type(element) is tuple
            result = function(*element) if splat else function(element)
            goes_on = add is None or add(result) is not False
            if chosen is not None and result:
                chosen.append(index)
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
