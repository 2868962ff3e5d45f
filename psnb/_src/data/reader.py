"""Reader: takes elements from an input, and can put some of them back.

All nodes read with one. It reads whole blocks, and keeps the elements that were not asked for yet.
Its state is that of the input before the block, and how many elements of the block to skip, so a
state never contains elements.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from psnb._src.data.block import BLOCK, Block, Origin, concatenate
from psnb._src.data.node import Context, Counters, Node, State, begin_stage, book_for
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.profiling import READ, Stages, counted_as
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
        From `state`, to go on from there.

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
        """Return the state from which a new reader can go on here."""
        if not self._held:
            return [self.position, self._input.state(), 0, self._swallow]
        base = next(each for each in reversed(self._bases) if each.position <= self.position)
        skip = self.position - base.position
        errors = self._errors - base.errors + self._swallow
        return [self.position, base.state, skip, errors]

    def close(self) -> None:
        """Close the input."""
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


# DatasetIterator: iterates over a dataset; its state can be saved and resumed.

T = TypeVar("T")

VERSION = 1
"""The version of the format of states."""


class DatasetIterator(SaysWhatToUse, Iterator[Any]):
    """Iterates over a dataset once.

    Ends its threads and closes its files when it is closed or garbage-collected. Threads may share
    it: each element goes to one of them, and while it is made the others wait.

    Parameters
    ----------
    node : Node
        The node of the dataset.
    state : dict, optional
        From `state`, of an iterator over a dataset made in the same way.

    Raises
    ------
    DatasetError
        If the state is invalid, or is that of another chain or of a later version of psnb.
    """

    def __init__(self, node: Node, state: dict[str, Any] | None = None) -> None:
        self._chain, self._partial = node.fingerprint(), node.partial
        self._counters = Counters(stages=book_for(node))
        inner = None
        if state is None:
            self._seed = secrets.randbits(63)
        else:
            self._check(node, state)
            self._seed, inner = state["seed"], state["at"]
        # One thread at a time in the reader. The same one may come again: a user's function runs in
        # there, and so may a signal's handler.
        self._lock = threading.RLock()
        self._closed = False  # whether `close` was called
        self._reader = Reader(node, Context(self._seed, counters=self._counters), inner)

    @property
    def errors_ignored(self) -> int:
        """How many errors `Dataset.ignore_errors` has skipped, also in elements read ahead."""
        return sum(self._counters.errors_ignored.values())

    @property
    def empty_files(self) -> int:
        """How many files without a record were passed over, also in what is read ahead."""
        return len(self._counters.empty_files)

    def __iter__(self) -> DatasetIterator:
        return self

    @counted_as(READ)
    def __next__(self) -> Any:
        found = self._alone(self._next)
        if found is None:
            self._end()
            raise StopIteration
        return found[0]

    def stages(self) -> Stages:
        """Return what each part of the chain has given so far, and what it took; any thread.

        Printed, it is a table, from the sources on: what takes most of the time is what to make
        faster, or parallel. In a closure, it counts all iterations of the worker over such a chain.

        Returns
        -------
        tuple of StageStatistics
            A snapshot; its ``slowest`` is the stage with the most time of its own.
        """
        return self._counters.stages.statistics()

    def latest(self) -> str:
        """Return which element came last, for a message.

        Its number, from 0; and file and record of its first example, if they are known. A batch of
        shuffled examples has others of other files.
        """
        return self._alone(self._reader.latest)

    def state(self) -> dict[str, Any]:
        """Return the position of this iterator, between two elements.

        Returns
        -------
        dict
            With JSON's types only, and small: it has no elements that can be read again. An
            iterator made with it (`Dataset.iterator`) gives exactly the elements that this one
            would give from here on, provided that files have not changed and functions are
            deterministic. The order of elements may differ in parallel maps that need not keep it.
        """
        return {
            "version": VERSION,
            "chain": self._chain,
            "seed": self._seed,
            "at": self._alone(self._reader.state),
        }

    def partitions(self) -> list[list[Any]]:
        """Return number, rows and checksum of each partition that was read, for psnb only."""
        return self._counters.partitions

    def close(self) -> None:
        """End threads and close files; idempotent. There are no more elements then.

        It does not wait for a thread that makes an element: that one closes when it has it.
        """
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._reader.close()
            finally:
                self._lock.release()

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> tuple[Any] | None:
        return None if self._closed else self._reader.next_element()

    def _end(self) -> None:
        closed = self._closed
        self.close()
        if not closed and not self._partial and not self._reader.position:
            self._counters.check_files()

    def _alone(self, function: Callable[[], T]) -> T:
        """Call a function of the reader while no other thread is in there."""
        try:
            with self._lock:
                return function()
        finally:
            if self._closed:  # by another thread perhaps, which left it to this one
                self.close()

    def _check(self, node: Node, state: Any) -> None:
        missing = {"version", "chain", "seed", "at"}
        if not isinstance(state, dict) or missing - state.keys():
            raise DatasetError(
                "this is not a state of a dataset's iterator; take one with iterator.state()"
            )
        if state["version"] != VERSION:
            raise DatasetError(
                f"the state has version {state['version']}, this psnb reads version {VERSION}"
            )
        if state["chain"] != self._chain:
            raise DatasetError(
                "the state belongs to another dataset than this one, which is\n"
                + "\n".join(node.lines())
                + "\nMake the dataset as it was when the state was taken"
            )
