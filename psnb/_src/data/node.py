"""Node and NodeIterator: the base classes of the parts of a chain and of their iterators.

All parts of an iteration share a `Context`: seeds, options and counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block, block_spec
from psnb._src.data.ragged import Ragged
from psnb._src.data.random import mixed
from psnb._src.data.spec import ArraySpec, Spec, element_spec
from psnb._src.data.stages import PipelineProfile, StageCounters
from psnb._src.utils.interrupts import Lock
from psnb.errors import DatasetError

_logger = logging.getLogger("psnb")


AUTOTUNE = -1
"""In place of a number: psnb chooses it, and may change it."""


@dataclass(frozen=True)
class Options:
    """How datasets run.

    Parameters
    ----------
    deterministic : bool
        Whether parallel maps keep the order of elements, by default.
    threads : int or None
        How many threads a parallel map with ``AUTOTUNE`` has; None: one per processor.
    """

    deterministic: bool = True
    threads: int | None = None

    def parallelism(self, asked: int) -> int:
        """Return how many threads to use."""
        return asked if asked != AUTOTUNE else self.threads or os.cpu_count() or 1


@dataclass
class Counters:
    """The counts of an iteration.

    Attributes
    ----------
    errors_ignored : dict of int to int
        By place in the chain.
    stages : PipelineProfile
        What the stages have counted.
    empty_files : list of str
        Files without a record, as often as they were passed over.
    any_records : bool
        Whether any file had one.
    partitions : list
        What partitions it has read.
    """

    errors_ignored: dict[int, int] = field(default_factory=dict)
    partitions: list[list[Any]] = field(default_factory=list)
    stages: PipelineProfile = field(default_factory=PipelineProfile)
    empty_files: list[str] = field(default_factory=list)
    any_records: bool = False
    lock: Lock = field(default_factory=Lock)  # guards the list of files, for a moment

    def check_files(self) -> None:
        """Raise `DatasetError` if files were read, and none has a record."""
        if self.empty_files and not self.any_records:
            raise nothing_in(self.empty_files)


def nothing_in(files: Sequence[str]) -> DatasetError:
    """Return the error that none of some files has a record."""
    if len(files) == 1:
        return DatasetError(f"{files[0]} is empty: it has no record")
    return DatasetError(f"all {len(files)} files are empty, from {files[0]} on: none has a record")


@dataclass(frozen=True)
class Context:
    """Passed from each part of a chain to its inputs.

    Attributes
    ----------
    seed : int
        For shuffles without their own seed. It differs between iterations, between places in the
        chain and, for datasets in datasets, between elements.
    place : int
        Differs between places in the chain, and depends on nothing else.
    epoch : int
        0 the first time that a dataset is read; another number each time it is repeated.
    options : Options
        The options of the nearest `Dataset.with_options`.
    counters : Counters
        The iteration's own.
    stage : StageCounters or None
        What reads the part that gets this.
    """

    seed: int
    place: int = 0
    epoch: int = 0
    options: Options = Options()
    counters: Counters = field(default_factory=Counters)
    stage: StageCounters | None = None

    def note_empty(self, file: str) -> None:
        """Count a file without a record; say so of the first, as one may have been cut short."""
        if self.stage is not None:
            self.stage.empty_files += 1
        with self.counters.lock:
            files = self.counters.empty_files
            files.append(file)
            first = len(files) == 1
        if first:
            _logger.warning(
                "%s is empty and passed over, further ones silently: stages() counts them", file
            )

    def child(self, index: int) -> Context:
        """Return the context for an input."""
        return replace(self, seed=mixed(self.seed, index), place=mixed(self.place, index))

    def element(self, number: int) -> Context:
        """Return the context for the dataset that is made from an element."""
        epoch = mixed(self.epoch, number) if number else self.epoch
        return replace(self, seed=mixed(self.seed, number), epoch=epoch)

    def repeated(self, epoch: int) -> Context:
        """Return the context for another epoch; epoch 0 is like the first reading."""
        return replace(self, epoch=mixed(self.epoch, epoch)) if epoch else self


State = Any
"""With JSON's types only, and small: it has no data that can be read again."""

_BRIEF = 60

INFINITE = -1
UNKNOWN = -2


class NodeIterator(ABC):
    """Iterates once over the elements of a node. One thread at a time."""

    @abstractmethod
    def next_block(self, limit: int) -> Block | None:
        """Return the next elements, at least one and at most ``limit``; None at the end.

        Raises
        ------
        DatasetError
            If the very next element raises an error. It is skipped: the next call continues after
            it. Earlier calls have returned the elements before it.
        """

    @abstractmethod
    def state(self) -> State:
        """Return the state for `Node.iterate` to continue after the elements returned so far."""

    def level(self) -> tuple[int, int] | None:
        """Return what is in its buffer, and how much has room; None if it has none. Any thread."""
        return None

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """End threads and close files; idempotent."""


class Indexed(ABC):
    """Elements with random access.

    Attributes
    ----------
    count : int
        How many.
    """

    count: int

    @abstractmethod
    def rows(self, which: np.ndarray | slice) -> Block:
        """Return elements by number, each in ``[0, count)``.

        Parameters
        ----------
        which : numpy.ndarray or slice
            Their numbers, int64 ``(m,)``; or consecutive ones with both ends, which are views where
            that is possible.
        """


def numbers_of(which: np.ndarray | slice) -> np.ndarray:
    """Return the numbers that `Indexed.rows` is asked for."""
    return np.arange(which.start, which.stop) if isinstance(which, slice) else which


class InOrder(NodeIterator):
    """Goes through them; the state is the number of the next one."""

    def __init__(self, elements: Indexed, state: State = None) -> None:
        self._elements, self._next = elements, 0 if state is None else int(state)

    def next_block(self, limit: int) -> Block | None:
        start, stop = self._next, min(self._next + limit, self._elements.count)
        if start >= stop:
            return None
        self._next = stop
        return self._elements.rows(slice(start, stop))

    def state(self) -> State:
        return self._next


class PartsIterator(NodeIterator):
    """Returns blocks in parts: of the one at hand, ``_used`` elements were returned."""

    _block: Block | None = None
    _used: int = 0

    def next_block(self, limit: int) -> Block | None:
        while self._block is None or self._used >= self._block.count:
            if not self._advance():
                return None
        part = self._block.part(self._used, self._used + limit)
        self._used += part.count
        return part

    @abstractmethod
    def _advance(self) -> bool:
        """Take the next block in hand; return whether there is one."""


class Node(ABC):
    """A part of a dataset's description: a frozen dataclass, fully described by its fields."""

    name: ClassVar[str]
    """The name of the method of `Dataset` that makes it."""

    waits: ClassVar[bool] = False
    """Whether all that it does in the reader's thread is to wait for its input."""

    one_to_one: ClassVar[bool] = False
    """Whether it makes one element of each of its input."""

    local: ClassVar[bool] = False
    """Whether it treats a part of its input as within the whole, except for the order of elements
    and for where batches end: then a dataset can be split before it."""

    opaque: ClassVar[bool] = False
    """Whether only its first element says what its elements are."""

    iterator: ClassVar[Any]
    """The class of its iterators, which get node, context and state, where there is no random
    access."""

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin at the first element, or where a state was taken."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        begun: NodeIterator = self.iterator(self, context, state)
        return begun

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that it reads from."""
        values = [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]
        return tuple(node for value in values for node in _nodes(value))

    def walk(self) -> Iterator[Node]:
        """Yield it, and all nodes below it."""
        yield self
        for each in self.inputs:
            yield from each.walk()

    @property
    def counted(self) -> Node:
        """The node whose elements are counted: its input, if it only passes these on."""
        return self

    def indexed(self) -> Indexed | None:
        """Return the elements with random access, if that is possible; may open files."""
        return None

    @property
    def partial(self) -> bool:
        """Whether it reads a part of the files that there were: others may have what it lacks."""
        return any(each.partial for each in self.inputs)

    def spec(self, run: bool) -> Spec:
        """Return the spec of its elements; None if unknown.

        Parameters
        ----------
        run : bool
            Whether the first element may be made to find out.
        """
        if self.opaque:
            return self.first_spec() if run else None
        return self.inputs[0].spec(run)

    def first_spec(self) -> Spec:
        """Make the first element and return its spec.

        Raises
        ------
        DatasetError
            If there is none.
        """
        with closing(self.iterate(Context(seed=0))) as elements:
            block = elements.next_block(1)
        if block is None:
            raise DatasetError(
                f"{self.label()}: what its elements are is known from the first one only, and "
                "there is none"
            )
        # A source that knows its columns knows more than the first: lists may differ in length.
        known = None if block.loose else block_spec(block)
        return element_spec(block.element(0)) if known is None else known

    def cardinality(self) -> int:
        """Return how many elements there are, `INFINITE` or `UNKNOWN`."""
        return self.inputs[0].cardinality() if self.one_to_one else UNKNOWN

    @property
    def ahead(self) -> int:
        """How many elements may be made together: 1 if user code would notice."""
        return min((each.ahead for each in self.inputs), default=BLOCK)

    def parameters(self) -> list[str]:
        """Return its parameters that are not at their defaults, as ``name=value``."""
        shown = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            plain = type(value) is type(each.default) and not isinstance(value, np.ndarray)
            if each.repr and not _nodes(value) and not (plain and value == each.default):
                text = short(value)
                shown.append(text if callable(value) else f"{each.name}={text}")
        return shown

    def label(self) -> str:
        """Return its name in messages and drawings."""
        return f"{self.name}({', '.join(self.parameters())})"

    def brief(self) -> str:
        """Return its name in tables and sentences."""
        label = self.label()
        return label if len(label) <= _BRIEF else f"{label[: _BRIEF - 1]}…"

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the chain from its sources on, one line per node, inputs indented."""
        inputs = self.inputs
        for each in inputs:
            yield from each.lines(depth + (len(inputs) > 1))
        yield "  " * depth + self.label()

    def fingerprint(self) -> str:
        """Return a short text that differs between different chains."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()[:16]

    def error(self, position: int, problem: str, place: str = "") -> DatasetError:
        """Return the error that something is wrong with an element, by its number from 0."""
        return DatasetError(f"{self.label()}, element {position}{place}: {problem}")


def _nodes(value: Any) -> list[Node]:
    """Return the nodes in the value of a field."""
    several = value if isinstance(value, tuple) else (value,)
    return [each for each in several if isinstance(each, Node)]


def short(value: Any) -> str:
    """Return a value as one short line that is the same in every process."""
    if isinstance(value, Block):
        return short(block_spec(value)) + f" x {value.count}"
    if isinstance(value, np.ndarray | Ragged):
        return f"<{'ragged ' * isinstance(value, Ragged)}{value.dtype} {value.shape}>"
    if isinstance(value, (ArraySpec, str, bytes, int, float, type(None), np.generic)):
        text = repr(value)
    elif isinstance(value, tuple):
        text = "(" + ", ".join(short(item) for item in value[:4])
        text += f", … {len(value)} in all)" if len(value) > 4 else ")"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key!r}: {short(item)}" for key, item in value.items()) + "}"
    elif callable(value):
        # Not `repr`, which contains an address.
        text = str(getattr(value, "__qualname__", type(value).__qualname__)).split("<locals>.")[-1]
    elif dataclasses.is_dataclass(value):
        text = repr(value)
    else:
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= 80 else text[:79] + "…"


def begin_stage(
    node: Node, context: Context, state: State, *, apart: bool = False
) -> tuple[NodeIterator, StageCounters]:
    """Begin to iterate over a node, and count; see `StageCounters` and `Node.iterate`."""
    stage = StageCounters(node, context.place, context.stage, apart)
    iterator = node.iterate(replace(context, stage=stage), state)
    stage.iterator = weakref.ref(iterator)
    context.counters.stages.add(stage)
    return iterator, stage
