"""Several datasets as one: element by element, one after another, in turn, or at random."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, concatenate
from psnb._src.data.nesting import Nesting, flatten, unflatten
from psnb._src.data.node import INFINITE, UNKNOWN, Context, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.indexed import Joined, Zipped, all_indexed, together
from psnb._src.data.random import mixed, uniforms
from psnb._src.data.reader import Reader, ReadingIterator, call, failure
from psnb._src.data.spec import Spec, merged
from psnb.errors import DatasetError


class _SeveralInputsIterator(NodeIterator):
    def __init__(self, sources: Sequence[Node], context: Context, states: State) -> None:
        self._readers = [
            Reader(source, context.child(index), None if states is None else states[index])
            for index, source in enumerate(sources)
        ]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


class _ZipIterator(_SeveralInputsIterator):
    def __init__(self, node: Zip, context: Context, state: State) -> None:
        super().__init__(node.sources, context, state)
        self._node, self._ended = node, False

    def next_block(self, limit: int) -> Block | None:
        taken: list[tuple[Reader, Block]] = []
        failed: DatasetError | None = None
        for reader in self._readers:
            try:
                block = None if self._ended else reader.take(limit)
            except DatasetError as error:
                failed, limit = error, 1  # its element is lost, and the others' elements for it
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


@dataclass(frozen=True, eq=False)
class _SeveralInputs(Node):
    """Base of nodes whose elements are those of several inputs."""

    sources: tuple[Node, ...]

    def spec(self, run: bool) -> Spec:
        """Return the spec of elements of any of the inputs; None if one is unknown.

        Raises
        ------
        DatasetError
            If they differ in structure or dtype.
        """
        specs = [each.spec(run) for each in self.sources]
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


@dataclass(frozen=True, eq=False)
class Zip(_SeveralInputs):
    """Ends with the shortest."""

    name: ClassVar[str] = "zip"
    iterator: ClassVar[Any] = _ZipIterator

    nesting: Nesting

    def indexed(self) -> Indexed | None:
        several = all_indexed(self.sources)
        return None if several is None else Zipped(self.nesting, several)

    def spec(self, run: bool) -> Spec:
        """Return the specs of the inputs, nested."""
        specs = [each.spec(run) for each in self.sources]
        return None if None in specs else unflatten(self.nesting, iter(specs))

    def cardinality(self) -> int:
        counts = [each.cardinality() for each in self.sources]
        finite = [count for count in counts if count >= 0]
        if UNKNOWN in counts:
            return UNKNOWN
        return min(finite) if finite else INFINITE

    def parameters(self) -> list[str]:
        """Return none: its inputs are drawn."""
        return []


class _ConcatenateIterator(ReadingIterator):
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

    def _open(self, state: State) -> Reader:
        source = self._node.sources[self._number]
        return Reader(source, self._context.child(self._number), state)


@dataclass(frozen=True, eq=False)
class Concatenate(_SeveralInputs):
    """The elements of the first dataset, then of the second."""

    name: ClassVar[str] = "concatenate"
    iterator: ClassVar[Any] = _ConcatenateIterator

    def indexed(self) -> Indexed | None:
        several = all_indexed(self.sources)
        return None if several is None else Joined(self, several)

    def cardinality(self) -> int:
        counts = [each.cardinality() for each in self.sources]
        if INFINITE in counts:
            return INFINITE
        return UNKNOWN if UNKNOWN in counts else sum(counts)


class _SampleIterator(_SeveralInputsIterator):
    """The state: how often was drawn, which have ended, and the readers'."""

    def __init__(self, node: Sample, context: Context, state: State) -> None:
        self._node = node
        own = context.seed if node.seed is None else mixed(node.seed)
        self._key = mixed(own, context.epoch)
        self._drawn, ended, states = (0, [], None) if state is None else state
        self._ended = list(ended)
        super().__init__(node.sources, context, states)

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


@dataclass(frozen=True, eq=False)
class Sample(_SeveralInputs):
    """Each element is drawn, by weight, from a dataset that has not ended."""

    name: ClassVar[str] = "sample_from_datasets"
    iterator: ClassVar[Any] = _SampleIterator

    weights: tuple[float, ...]
    seed: int | None = None
    stop_on_empty_dataset: bool = False

    def cardinality(self) -> int:
        """Return the sum; unknown if all end with the first."""
        counts = [each.cardinality() for each in self.sources]
        if self.stop_on_empty_dataset or UNKNOWN in counts:
            return UNKNOWN
        return INFINITE if INFINITE in counts else sum(counts)


class _InterleaveIterator(NodeIterator):
    """As in TensorFlow: a slot whose dataset ended stays empty for its turn."""

    def __init__(self, node: Interleave, context: Context, state: State) -> None:
        self._node, self._context = node, context
        outer, slots, self._turn, self._taken = (None, {}, 0, 0) if state is None else state
        self._outer = Reader(node.source, context.child(0), outer)
        # Of each dataset its reader, and the outer one's state before the element it was made of.
        self._slots: dict[int, tuple[Reader, State]] = {}
        for number, (before, inner) in slots.items():
            with closing(Reader(node.source, context.child(0), before)) as again:
                opened = self._open(again, before, inner)
            if opened is not None:
                self._slots[int(number)] = opened
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        while True:
            slot = self._slots.get(self._turn)
            if slot is not None:
                block = slot[0].take(min(limit, self._node.block_length - self._taken))
                if block is not None:
                    self._taken += block.count
                    if self._taken == self._node.block_length:
                        self._advance()
                    return block
                slot[0].close()
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
        slots = {str(n): [before, reader.state()] for n, (reader, before) in self._slots.items()}
        return [self._outer.state(), slots, self._turn, self._taken]

    def level(self) -> tuple[int, int] | None:
        cycle = self._node.cycle_length
        return None if cycle == 1 else (len(self._slots), cycle)

    def close(self) -> None:
        for reader, _ in self._slots.values():
            reader.close()
        self._outer.close()

    def _advance(self) -> None:
        self._turn, self._taken = (self._turn + 1) % self._node.cycle_length, 0

    def _open(self, outer: Reader, before: State, inner: State) -> tuple[Reader, State] | None:
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
            return Reader(node, context, inner), before
        except Exception as error:  # the user's function may raise anything
            raise failure(self._node, position, error, block, 0) from error


@dataclass(frozen=True, eq=False)
class Interleave(Node):
    """Takes ``block_length`` elements in turn from each of ``cycle_length`` datasets."""

    name: ClassVar[str] = "interleave"
    iterator: ClassVar[Any] = _InterleaveIterator
    local: ClassVar[bool] = True
    opaque: ClassVar[bool] = True
    ahead: ClassVar[int] = 1  # the function may have side effects, or be slow

    source: Node
    function: Callable[..., Any]
    cycle_length: int
    block_length: int


@dataclass(frozen=True, eq=False)
class FlatMap(Interleave):
    """One dataset after another."""

    name: ClassVar[str] = "flat_map"

    cycle_length: int = 1
    block_length: int = sys.maxsize
