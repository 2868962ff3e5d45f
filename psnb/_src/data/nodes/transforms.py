"""Elements that are made of those of one input, one after another, or are some of them."""

from __future__ import annotations

import base64
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import (
    BLOCK,
    Block,
    Stacker,
    block_of,
    copied,
    made_of,
)
from psnb._src.data.node import INFINITE, Context, Indexed, Node, NodeIterator, Options, State
from psnb._src.data.nodes.base import (
    Every,
    InOrder,
    SingleInputIterator,
    call,
    failure,
    first_spec,
    take_each,
)
from psnb._src.data.nodes.parallel import ParallelMapIterator
from psnb._src.data.reader import Reader
from psnb._src.data.spec import (
    ArraySpec,
    Nest,
    Spec,
    as_leaf,
    flatten,
    flatten_like,
    is_text,
    paths,
    unflatten,
)
from psnb.errors import DatasetError

# Skips elements that raise an error, and counts them.

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class IgnoreErrors(Node):
    """Goes on after an error; the first is logged, all are counted."""

    name: ClassVar[str] = "ignore_errors"

    source: Node

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _IgnoringIterator(self, context, state)


class _IgnoringIterator(SingleInputIterator[IgnoreErrors]):
    """The state: how many errors were left out so far, in earlier epochs too, and the reader's."""

    def __init__(self, node: IgnoreErrors, context: Context, state: State) -> None:
        counted, inner = state or (0, None)
        self._counts, self._place = context.counters.errors_ignored, context.place
        self._counts[self._place] = max(counted, self._count)
        super().__init__(node, context, inner)

    def next_block(self, limit: int) -> Block | None:
        while True:
            try:
                return self._reader.take(limit)
            except DatasetError as error:
                self._counts[self._place] += 1
                if self._count == 1:
                    _logger.warning("an element is left out, further ones silently: %s", error)

    def state(self) -> State:
        return [self._count, self._reader.state()]

    @property
    def _count(self) -> int:
        return self._counts.get(self._place, 0)


@dataclass(frozen=True, eq=False)
class WithOptions(Node):
    """Sets the options for the chain before it; changes no element."""

    name: ClassVar[str] = "with_options"
    one_to_one: ClassVar[bool] = True

    source: Node
    options: Options

    @property
    def counted(self) -> Node:
        """Return the input."""
        return self.source.counted

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin the input."""
        return self.source.iterate(replace(context, options=self.options), state)

    def indexed(self) -> Indexed | None:
        """Return the input's."""
        return self.source.indexed()


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """Calls ``function(memory, element)``, which returns the next memory and an element."""

    name: ClassVar[str] = "scan"
    one_to_one: ClassVar[bool] = True
    ahead: ClassVar[int] = 1  # the function may have side effects, or be slow

    source: Node
    initial_state: Any
    function: Callable[..., Any]

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _ScanIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return what the first element says."""
        return first_spec(self) if run else None


class _ScanIterator(SingleInputIterator[Scan]):
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
        block = take_each(self._node, self._reader, limit, self._step)
        return None if block is None else self._stacker.block(block.origin)

    def state(self) -> State:
        return [[_encoded(leaf) for leaf in self._memory], self._reader.state()]

    def _step(self, element: Any) -> None:
        # The function may change the arrays that it gets, and refill those that it returns.
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


@dataclass(frozen=True, eq=False)
class Map(Node):
    """Applies a function to each element, or to many at once."""

    name: ClassVar[str] = "map"
    one_to_one: ClassVar[bool] = True

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

    @property
    def ahead(self) -> int:
        """Return 1: the function may have side effects, or be slow."""
        return self.source.ahead if self.batched else 1


class _MapIterator(SingleInputIterator[Map]):
    def __init__(self, node: Map, context: Context, state: State) -> None:
        super().__init__(node, context, state)
        self._stacker = Stacker()

    def next_block(self, limit: int) -> Block | None:
        add, function = self._stacker.add, self._node.function
        block = take_each(
            self._node, self._reader, limit, lambda element: add(call(function, element))
        )
        return None if block is None else self._stacker.block(block.origin)


class _BatchedMapIterator(SingleInputIterator[Map]):
    def next_block(self, limit: int) -> Block | None:
        block = self._reader.take(limit)
        if block is None:
            return None
        return self._node.apply_batched(block, self._reader.position - block.count)


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """Leaves out the elements for which the predicate is false."""

    name: ClassVar[str] = "filter"

    source: Node
    predicate: Callable[..., Any]
    batched: bool = False

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _FilterIterator(self, context, state)

    @property
    def ahead(self) -> int:
        """Return 1: the predicate may have side effects, or be slow."""
        return self.source.ahead if self.batched else 1


class _FilterIterator(SingleInputIterator[Filter]):
    def next_block(self, limit: int) -> Block | None:
        while (block := self._reader.take(limit)) is not None:
            chosen = self._mask(block) if self._node.batched else self._one_by_one(block)
            if len(chosen) == block.count:
                return block
            if len(chosen):
                return block.take(chosen)
        return None

    def _mask(self, block: Block) -> np.ndarray:
        try:
            mask = np.asarray(call(self._node.predicate, block.whole()))
            if mask.shape != (block.count,) or mask.dtype != np.bool_:
                raise DatasetError(
                    f"the predicate was given {block.count} elements and returned "
                    f"{mask.dtype} {mask.shape}; with batched=True it must return a bool for each"
                )
        except Exception as error:  # the user's function may raise anything
            position = self._reader.position - block.count
            raise failure(self._node, position, error, block, 0) from error
        return np.flatnonzero(mask)

    def _one_by_one(self, block: Block) -> np.ndarray:
        chosen = []
        for index in range(block.count):
            try:
                if bool(call(self._node.predicate, block.element(index))):
                    chosen.append(index)
            except Exception as error:  # the user's function may raise anything
                position = self._reader.position - block.count + index
                if not chosen:
                    self._reader.put_back(block.part(index + 1, block.count))
                    raise failure(self._node, position, error, block, index) from error
                self._reader.put_back(block.part(index, block.count))
                break
        return np.array(chosen, np.int64)


@dataclass(frozen=True, eq=False)
class Enumerate(Node):
    """Pairs of an int64, from ``start`` on, and an element."""

    name: ClassVar[str] = "enumerate"
    one_to_one: ClassVar[bool] = True

    source: Node
    start: int = 0

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _EnumerateIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if the input has them so."""
        elements = self.source.indexed()
        return elements and _Enumerated(self.start, elements)

    def spec(self, run: bool) -> Spec:
        """Return a pair."""
        spec = self.source.spec(run)
        return None if spec is None else (ArraySpec((), np.dtype(np.int64)), spec)


def _numbered(numbers: np.ndarray, block: Block) -> Block:
    nesting = Nest(tuple, (0, 1), (None, block.nesting))
    return block._replace(nesting=nesting, columns=(numbers, *block.columns))


class _Enumerated(Indexed):
    def __init__(self, start: int, elements: Indexed) -> None:
        self.count, self._start, self._elements = elements.count, start, elements

    def gather(self, indices: np.ndarray) -> Block:
        return _numbered(self._start + indices, self._elements.gather(indices))

    def part(self, start: int, stop: int) -> Block:
        numbers = np.arange(self._start + start, self._start + stop)
        return _numbered(numbers, self._elements.part(start, stop))


class _EnumerateIterator(SingleInputIterator[Enumerate]):
    def next_block(self, limit: int) -> Block | None:
        block = self._reader.take(limit)
        if block is None:
            return None
        stop = self._node.start + self._reader.position
        return _numbered(np.arange(stop - block.count, stop), block)


@dataclass(frozen=True, eq=False)
class TakeWhile(Node):
    """Ends at the first element for which the predicate is false."""

    name: ClassVar[str] = "take_while"
    ahead: ClassVar[int] = 1  # the predicate may have side effects, or be slow

    source: Node
    predicate: Callable[..., Any]

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _TakeWhileIterator(self, context, state)


class _TakeWhileIterator(SingleInputIterator[TakeWhile]):
    """The state: the reader's, before the element that ends this, which is asked about again."""

    def __init__(self, node: TakeWhile, context: Context, state: State) -> None:
        super().__init__(node, context, state)
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        block = None if self._ended else self._reader.take(limit)
        if block is None:
            return None
        for index in range(block.count):
            try:
                goes_on = bool(call(self._node.predicate, block.element(index)))
            except Exception as error:  # the user's function may raise anything
                if index == 0:
                    position = self._reader.position - block.count
                    self._reader.put_back(block.part(1, block.count))
                    raise failure(self._node, position, error, block, 0) from error
                # What is before it comes first.
            else:
                self._ended = not goes_on
                if goes_on:
                    continue
            self._reader.put_back(block.part(index, block.count))
            return block.part(0, index) if index else None
        return block


# The first of equal elements.
#
# The state has no elements: how many were read, and how many errors the input has raised. To
# resume, those are read again, to know which there were.


@dataclass(frozen=True, eq=False)
class Unique(Node):
    """Leaves out elements that were there before: numbers or texts."""

    name: ClassVar[str] = "unique"

    source: Node

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; the input is read from its start in any case."""
        return _UniqueIterator(self, context, state)


class _UniqueIterator(SingleInputIterator[Unique]):
    def __init__(self, node: Unique, context: Context, state: State) -> None:
        self._behind: int  # elements that were read before the state was taken
        self._raised: int
        self._behind, self._raised = state or (0, 0)
        # From the start, but without the errors that were raised before.
        super().__init__(node, context, [0, None, 0, self._raised])
        self._seen: set[Any] = set()

    def next_block(self, limit: int) -> Block | None:
        self._catch_up()
        while (block := self._take(limit)) is not None:
            new = self._new(block)
            if len(new):
                return block.take(new)
        return None

    def state(self) -> State:
        return [max(self._behind, self._reader.position), self._raised]

    def _catch_up(self) -> None:
        while (missing := self._behind - self._reader.position) > 0:
            block = self._reader.take(min(missing, BLOCK))
            if block is None:
                self._behind = self._reader.position  # this error is the last one
                raise DatasetError(
                    "unique: the input has fewer elements than when the state was taken"
                )
            self._seen.update(self._keys(block))

    def _take(self, limit: int) -> Block | None:
        try:
            return self._reader.take(limit)
        except DatasetError:
            self._raised += 1
            raise

    def _new(self, block: Block) -> np.ndarray:
        found = []
        for index, key in enumerate(self._keys(block)):
            if key not in self._seen:
                self._seen.add(key)
                found.append(index)
        return np.array(found, np.int64)

    def _keys(self, block: Block) -> list[Any]:
        """Return the elements of a block as Python's numbers and texts."""
        column = block.columns[0]
        if block.nesting is None and isinstance(column, np.ndarray) and column.ndim == 1:
            keys: list[Any] = column.tolist()
            if column.dtype.kind in "iubSU" or all(map(is_text, keys)):
                return keys
        position = self._reader.position - block.count
        raise self._node.error(
            position,
            "elements must be integers, booleans or texts, one each; map to what distinguishes "
            "them, or use merge_by",
            block.place(0),
        )


# A slice of the elements: the first, all but the first, every n-th.

_READ_AT_ONCE = 4096
"""The most elements that are read to choose from them."""


@dataclass(frozen=True, eq=False)
class Slice(Node):
    """Base of those that are a slice of their input, as Python's slices are of a list."""

    source: Node

    @property
    @abstractmethod
    def rows(self) -> slice:
        """The numbers of the elements; start and step are given, and no number is negative."""

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _SliceIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if the input has them so."""
        elements = self.source.indexed()
        return elements and Every(elements, range(elements.count)[self.rows])

    def cardinality(self) -> int:
        """Return how many are left."""
        count, stop = self.source.cardinality(), self.rows.stop
        if stop == 0 or (count == INFINITE and stop is not None):
            return stop
        return count if count < 0 else len(range(count)[self.rows])


@dataclass(frozen=True, eq=False)
class Take(Slice):
    """The first ``count``."""

    name: ClassVar[str] = "take"

    count: int

    @property
    def rows(self) -> slice:
        """Begins with the first."""
        return slice(0, self.count, 1)


@dataclass(frozen=True, eq=False)
class Skip(Slice):
    """All but the first ``count``."""

    name: ClassVar[str] = "skip"

    count: int

    @property
    def rows(self) -> slice:
        """Goes on to the end."""
        return slice(self.count, None, 1)


@dataclass(frozen=True, eq=False)
class EveryNth(Slice):
    """Those whose number leaves ``index`` when divided by ``num_shards``."""

    name: ClassVar[str] = "shard"

    num_shards: int
    index: int

    @property
    def rows(self) -> slice:
        """Leaves out those between."""
        return slice(self.index, None, self.num_shards)


class _SliceIterator(SingleInputIterator[Slice]):
    def next_block(self, limit: int) -> Block | None:
        reader, rows = self._reader, self._node.rows
        missing = rows.start - reader.position
        if missing > 0 and reader.skip(missing) < missing:
            return None
        if rows.stop is not None:
            limit = min(limit, rows.stop - reader.position)
        if rows.step == 1:
            return reader.take(limit) if limit > 0 else None
        while (block := reader.take(min(limit * rows.step, _READ_AT_ONCE))) is not None:
            first = reader.position - block.count
            chosen = np.arange((rows.start - first) % rows.step, block.count, rows.step)
            if len(chosen):
                return block.take(chosen)
        return None


# A dataset several times.


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    """``count`` times, or for ever."""

    name: ClassVar[str] = "repeat"

    source: Node
    count: int | None = None

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _RepeatIterator(self, context, state)

    def cardinality(self) -> int:
        """Return the input's cardinality, `count` times."""
        once = self.source.cardinality()
        if once == 0 or self.count == 0:
            return 0
        if self.count is None:
            return INFINITE
        return once * self.count if once > 0 else once


class _RepeatIterator(NodeIterator):
    """The state: which time it is, whether there was an element in it, and the reader's."""

    def __init__(self, node: Repeat, context: Context, state: State) -> None:
        self._node, self._context = node, context
        self._time: int
        self._any: bool
        self._time, self._any, inner = state or (0, False, None)
        self._reader = self._open(inner)

    def next_block(self, limit: int) -> Block | None:
        while self._node.count is None or self._time < self._node.count:
            block = self._reader.take(limit)
            if block is not None:
                self._any = True
                return block
            if not self._any:
                return None  # for ever nothing
            self._reader.close()
            self._time, self._any = self._time + 1, False
            self._reader = self._open(None)
        return None

    def state(self) -> State:
        return [self._time, self._any, self._reader.state()]

    def close(self) -> None:
        self._reader.close()

    def _open(self, state: State) -> Reader:
        return Reader(self._node.source, self._context.child(0).repeated(self._time), state)
