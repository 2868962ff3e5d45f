"""One element of each of several datasets, together."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from psnb._src.data.block import BLOCK, Block, Column, concatenate, leaf_name, take
from psnb._src.data.node import INFINITE, UNKNOWN, Context, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.base import (
    InOrder,
    Joined,
    SingleInputIterator,
    Zipped,
    all_indexed,
    call,
    failure,
    first_spec,
    together,
)
from psnb._src.data.ragged import Ragged, as_rows
from psnb._src.data.random import mixed, uniforms
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Nesting, Spec, flatten, merged, paths, unflatten
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Zip(Node):
    """Ends with the shortest."""

    name: ClassVar[str] = "zip"

    sources: tuple[Node, ...]
    nesting: Nesting

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        return _ZipIterator(self, context, state) if indexed is None else InOrder(indexed, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if all inputs have them so."""
        several = all_indexed(self.sources)
        return None if several is None else Zipped(self.nesting, several)

    def spec(self, run: bool) -> Spec:
        """Return those of the inputs, nested."""
        specs = [each.spec(run) for each in self.sources]
        return None if None in specs else unflatten(self.nesting, iter(specs))

    def cardinality(self) -> int:
        """Return that of the shortest."""
        counts = [each.cardinality() for each in self.sources]
        finite = [count for count in counts if count >= 0]
        if UNKNOWN in counts:
            return UNKNOWN
        return min(finite) if finite else INFINITE

    def parameters(self) -> list[str]:
        """Return none: its inputs are drawn."""
        return []


class _ZipIterator(NodeIterator):
    def __init__(self, node: Zip, context: Context, state: State) -> None:
        self._node, self._ended = node, False
        states = state or [None] * len(node.sources)
        self._readers = [
            Reader(source, context.child(index), each)
            for index, (source, each) in enumerate(zip(node.sources, states, strict=True))
        ]

    def next_block(self, limit: int) -> Block | None:
        taken: list[tuple[Reader, Block]] = []
        failed: DatasetError | None = None
        for reader in self._readers:
            try:
                block = None if self._ended else reader.take(limit)
            except DatasetError as error:
                failed, limit = error, 1  # its element is lost, and those that belong to it
                continue
            if block is None:
                self._ended = True
                return None
            taken.append((reader, block))
            limit = min(limit, block.count)
        for reader, block in taken:
            reader.put_back(block.part(limit, block.count))
        if failed is not None:
            raise failed
        return together(self._node.nesting, [block.part(0, limit) for _, block in taken])

    def state(self) -> State:
        return [reader.state() for reader in self._readers]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


@dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """The elements of the first dataset, then those of the second."""

    name: ClassVar[str] = "concatenate"

    sources: tuple[Node, ...]

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _ConcatenateIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if all inputs have them so."""
        several = all_indexed(self.sources)
        return None if several is None else Joined(self, several)

    def spec(self, run: bool) -> Spec:
        """Return what holds for the elements of all."""
        return common_spec([each.spec(run) for each in self.sources])

    def cardinality(self) -> int:
        """Return the sum."""
        counts = [each.cardinality() for each in self.sources]
        if INFINITE in counts:
            return INFINITE
        return UNKNOWN if UNKNOWN in counts else sum(counts)


def common_spec(specs: list[Spec]) -> Spec:
    """Return what holds for elements of any of the specs; None if nothing is known of one.

    Raises
    ------
    DatasetError
        If they differ in structure or dtype.
    """
    if any(spec is None for spec in specs):
        return None
    leaves, nesting = flatten(specs[0])
    for spec in specs[1:]:
        others, other_nesting = flatten(spec)
        found = [merged(a, b) for a, b in zip(leaves, others, strict=False)]
        if other_nesting != nesting or None in found:
            raise DatasetError(f"datasets have different elements: {specs[0]} and {spec}")
        leaves = found
    return unflatten(nesting, iter(leaves))


class _ConcatenateIterator(NodeIterator):
    """The state: which input, and its reader's."""

    def __init__(self, node: Concatenate, context: Context, state: State) -> None:
        self._node, self._context = node, context
        self._number: int
        self._number, inner = state or (0, None)
        self._reader = self._open(inner)

    def next_block(self, limit: int) -> Block | None:
        while (block := self._reader.take(limit)) is None:
            if self._number + 1 == len(self._node.sources):
                return None
            self._reader.close()
            self._number += 1
            self._reader = self._open(None)
        return block

    def state(self) -> State:
        return [self._number, self._reader.state()]

    def close(self) -> None:
        self._reader.close()

    def _open(self, state: State) -> Reader:
        source = self._node.sources[self._number]
        return Reader(source, self._context.child(self._number), state)


@dataclass(frozen=True, eq=False)
class Sample(Node):
    """Each element is drawn, by weight, from a dataset that has not ended."""

    name: ClassVar[str] = "sample_from_datasets"

    sources: tuple[Node, ...]
    weights: tuple[float, ...]
    seed: int | None = None
    stop_on_empty_dataset: bool = False

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _SampleIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return what holds for the elements of all."""
        return common_spec([each.spec(run) for each in self.sources])

    def cardinality(self) -> int:
        """Return the sum; unknown if all end with the first."""
        counts = [each.cardinality() for each in self.sources]
        if self.stop_on_empty_dataset or UNKNOWN in counts:
            return UNKNOWN
        return INFINITE if INFINITE in counts else sum(counts)


class _SampleIterator(NodeIterator):
    """The state: how often was drawn, which have ended, and the readers'."""

    def __init__(self, node: Sample, context: Context, state: State) -> None:
        self._node = node
        own = context.seed if node.seed is None else mixed(node.seed)
        self._key = mixed(own, context.epoch)
        count = len(node.sources)
        self._drawn, self._ended, states = (0, [], [None] * count) if state is None else state
        self._ended = list(self._ended)
        self._readers = [
            Reader(source, context.child(index), each)
            for index, (source, each) in enumerate(zip(node.sources, states, strict=True))
        ]

    def next_block(self, limit: int) -> Block | None:
        while True:
            weights = np.array(self._node.weights)
            weights[self._ended] = 0
            if not weights.any() or (self._ended and self._node.stop_on_empty_dataset):
                return None
            bounds = np.cumsum(weights / weights.sum())
            numbers = uniforms(self._key, self._drawn, limit)
            # A number may be above the last bound by rounding.
            drawn = np.minimum(
                np.searchsorted(bounds, numbers, "right"), np.flatnonzero(weights)[-1]
            )
            block = self._collect(drawn)
            if block is not None:
                return block

    def state(self) -> State:
        return [self._drawn, list(self._ended), [reader.state() for reader in self._readers]]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _collect(self, drawn: np.ndarray) -> Block | None:
        """Return what was drawn, as far as all have it; note the one that turns out to end."""
        taken: list[tuple[int, Block]] = []
        good, ended = len(drawn), -1
        for number in np.unique(drawn).tolist():
            places = np.flatnonzero(drawn[:good] == number)
            if not len(places):
                continue
            try:
                block = self._readers[number].take(len(places))
            except DatasetError:
                for other, held in taken:
                    self._readers[other].put_back(held)
                raise
            got = 0
            if block is not None:
                taken.append((number, block))
                got = block.count
            if got < len(places):
                good, ended = int(places[got]), number if block is None else -1
        parts, order = [], []
        for number, block in taken:
            places = np.flatnonzero(drawn[:good] == number)
            self._readers[number].put_back(block.part(len(places), block.count))
            if len(places):
                parts.append(block.part(0, len(places)))
                order.append(places)
        self._drawn += good
        if ended >= 0:
            self._ended.append(ended)
        if not parts:
            return None
        return concatenate(parts).take(np.argsort(np.concatenate(order)))


# Elements that belong to one instance as one: Paddle's merging by instance id.
#
# All elements are read before the first one comes, and kept. The state has none of them: how many
# were returned, and how many errors the input has raised; to resume, all are read again.

logger = logging.getLogger("psnb")


@dataclass(frozen=True, eq=False)
class MergeBy(Node):
    """Joins the elements that have one key, in the order in which keys come first."""

    name: ClassVar[str] = "merge_by"

    source: Node
    key: str
    min_merge_size: int = 2
    keep_unmerged: bool = True
    erase_duplicates: bool = True

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; the input is read from its start in any case."""
        return _MergeIterator(self, context, state)


class _MergeIterator(SingleInputIterator[MergeBy]):
    """The state: how many were returned, and how many errors of the input were raised."""

    def __init__(self, node: MergeBy, context: Context, state: State) -> None:
        self._returned: int
        self._raised: int
        self._returned, self._raised = state or (0, 0)
        # From the start, but without the errors that were raised before.
        super().__init__(node, context, [0, None, 0, self._raised])
        self._read: list[Block] = []
        self._merged: Block | None = None
        self._whole = False

    def next_block(self, limit: int) -> Block | None:
        if not self._whole:
            self._merged = self._merge()
            self._whole = True
        if self._merged is None or self._returned >= self._merged.count:
            return None
        start, self._returned = self._returned, min(self._returned + limit, self._merged.count)
        return self._merged.part(start, self._returned)

    def state(self) -> State:
        return [self._returned, self._raised]

    def _merge(self) -> Block | None:
        while True:
            try:
                block = self._reader.take(BLOCK)
            except DatasetError:
                self._raised += 1
                raise
            if block is None:
                break
            self._read.append(block)
        read, self._read = self._read, []
        return _merged_instances(concatenate(read), self._node) if read else None


class _Groups(NamedTuple):
    """Which elements make one.

    Attributes
    ----------
    order : numpy.ndarray
        The elements that are kept, those of one group one after another.
    starts : numpy.ndarray
        Where in ``order`` each group begins.
    group : numpy.ndarray
        The group of each of ``order``.
    """

    order: np.ndarray
    starts: np.ndarray
    group: np.ndarray


def _merged_instances(block: Block, node: MergeBy) -> Block | None:
    """Return the elements of a block merged; None if none is left.

    Raises
    ------
    DatasetError
        If an element has no such key.
    """
    whole = block.whole()
    if not isinstance(whole, dict) or node.key not in whole:
        raise node.error(0, f"elements are not dicts with {node.key!r}")
    keys = whole[node.key]
    if isinstance(keys, Ragged) or keys.ndim != 1:
        raise node.error(0, f"{node.key!r} is not one value for each element")
    block = block._replace(columns=tuple(_as_rows(each, block.loose) for each in block.columns))
    groups = _agreeing(block, _groups(keys, node))
    if not groups.starts.size:
        return None
    columns = [_joined(column, groups, node.erase_duplicates) for column in block.columns]
    return Block(block.nesting, tuple(columns), len(groups.starts), loose=block.loose)


def _as_rows(column: Column, loose: bool) -> Column:
    """Return a column as a `Ragged` if its elements' first axis may differ in length."""
    if isinstance(column, Ragged) or not loose or column.ndim == 1:
        return column
    return as_rows(column)


def _groups(keys: np.ndarray, node: MergeBy) -> _Groups:
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    large = (counts >= node.min_merge_size)[inverse]
    # Each element goes where the first one of its group is; one that is not merged stays alone.
    place = np.where(large, first[inverse], np.arange(len(keys)))
    kept = np.flatnonzero(large | node.keep_unmerged)
    order = kept[np.argsort(place[kept], kind="stable")]
    return _sorted(order, place[order])


def _sorted(order: np.ndarray, places: np.ndarray) -> _Groups:
    _, starts, group = np.unique(places, return_index=True, return_inverse=True)
    return _Groups(order, starts, group)


def _agreeing(block: Block, groups: _Groups) -> _Groups:
    """Leave out groups whose elements differ in a dense column; as Paddle does."""
    bad = np.zeros(len(groups.starts), bool)
    for column, name in zip(block.columns, paths(block.nesting), strict=True):
        if isinstance(column, Ragged):
            continue
        values = take(column, groups.order)
        same = values == values[groups.starts][groups.group]
        differing = ~same.all(axis=tuple(range(1, same.ndim)))
        if differing.any():
            wrong = np.unique(groups.group[differing])
            bad[wrong] = True
            logger.warning(
                "merge_by: %d instances are left out, whose elements differ in %s",
                len(wrong),
                leaf_name(name),
            )
    if not bad.any():
        return groups
    left = ~bad[groups.group]
    return _sorted(groups.order[left], groups.group[left])


def _joined(column: Column, groups: _Groups, erase_duplicates: bool) -> Column:
    if not isinstance(column, Ragged):
        return take(column, groups.order[groups.starts])
    rows = column.take(groups.order)
    values, group = rows.values, np.repeat(groups.group, rows.lengths)
    if erase_duplicates and values.ndim == 1 and values.dtype.kind in "iu":
        # The first of equal ones in a group stays.
        pairs = np.lexsort((np.arange(len(values)), values, group))
        again = np.zeros(len(values), bool)
        again[pairs[1:]] = (values[pairs[1:]] == values[pairs[:-1]]) & (
            group[pairs[1:]] == group[pairs[:-1]]
        )
        # What was alone is not a merged instance, and stays as it is.
        again &= (np.bincount(groups.group) > 1)[group]
        values, group = values[~again], group[~again]
    offsets = np.zeros(len(groups.starts) + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=len(groups.starts)), out=offsets[1:])
    return Ragged(values, offsets)


@dataclass(frozen=True, eq=False)
class Interleave(Node):
    """Takes ``block_length`` elements in turn from each of ``cycle_length`` datasets."""

    name: ClassVar[str] = "interleave"
    ahead: ClassVar[int] = 1  # the function may have side effects, or be slow

    source: Node
    function: Callable[..., Any]
    cycle_length: int
    block_length: int

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _InterleaveIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return what the first element says."""
        return first_spec(self) if run else None


@dataclass(frozen=True, eq=False)
class FlatMap(Interleave):
    """One dataset after another."""

    name: ClassVar[str] = "flat_map"

    cycle_length: int = 1
    block_length: int = sys.maxsize


@dataclass
class _OpenDataset:
    before: State  # the outer reader's, before the element that the dataset was made of
    reader: Reader


class _InterleaveIterator(NodeIterator):
    """As TensorFlow's `InterleaveDataset`: a slot whose dataset ended stays empty for its turn."""

    def __init__(self, node: Interleave, context: Context, state: State) -> None:
        self._node, self._context = node, context
        outer, slots, self._turn, self._taken = (None, {}, 0, 0) if state is None else state
        self._outer = Reader(node.source, context.child(0), outer)
        self._slots: dict[int, _OpenDataset] = {}
        for number, (before, inner) in slots.items():
            again = Reader(node.source, context.child(0), before)
            try:
                opened = self._open(again, before, inner)
            finally:
                again.close()
            if opened is not None:
                self._slots[int(number)] = opened
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        while True:
            slot = self._slots.get(self._turn)
            if slot is not None:
                block = slot.reader.take(min(limit, self._node.block_length - self._taken))
                if block is not None:
                    self._taken += block.count
                    if self._taken == self._node.block_length:
                        self._advance()
                    return block
                slot.reader.close()
                del self._slots[self._turn]
                self._advance()
            elif not self._ended:
                opened = self._open(self._outer, self._outer.state(), None)
                if opened is None:
                    self._ended = True
                else:
                    self._slots[self._turn] = opened
            elif self._slots:
                self._advance()
            else:
                return None

    def state(self) -> State:
        slots = {str(n): [each.before, each.reader.state()] for n, each in self._slots.items()}
        return [self._outer.state(), slots, self._turn, self._taken]

    def level(self) -> tuple[int, int] | None:
        cycle = self._node.cycle_length
        return None if cycle == 1 else (len(self._slots), cycle)

    def close(self) -> None:
        for slot in self._slots.values():
            slot.reader.close()
        self._outer.close()

    def _advance(self) -> None:
        self._turn, self._taken = (self._turn + 1) % self._node.cycle_length, 0

    def _open(self, outer: Reader, before: State, inner: State) -> _OpenDataset | None:
        block = outer.take(1)
        if block is None:
            return None
        position = outer.position - 1
        try:
            made = call(self._node.function, block.element(0))
            node = getattr(made, "node", None)
            if not isinstance(node, Node):
                raise DatasetError(
                    f"the function must return a Dataset, found a {type(made).__name__}"
                )
            context = self._context.child(1).element(position)
            return _OpenDataset(before, Reader(node, context, inner))
        except Exception as error:  # the user's function may raise anything
            raise failure(self._node, position, error, block, 0) from error
