"""Node and NodeIterator: the base classes of the parts of a chain and of their iterators."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block, block_spec
from psnb._src.data.ragged import Ragged
from psnb._src.data.random import mixed
from psnb._src.data.spec import ArraySpec, Spec
from psnb._src.utils.profiling import Stages, StageStatistics
from psnb._src.utils.threads import Lock
from psnb.errors import DatasetError

_logger = logging.getLogger("psnb")

# PipelineProfile: the stages of iterations over one chain, and what those that have ended have
# counted.
#
# Thread-safe. What is read in a thread with a `StageLog` is kept there together for all iterations
# over one kind of chain: a worker may read a dataset in hundreds of parts.

_MOST_CHAINS = 16


class _PlaceCounts:
    """What is known of a place in the chain: its input's places follow from who reads them."""

    def __init__(self, stage: StageCounters) -> None:
        self.node = stage.node
        self.above = None if stage.above is None else stage.above.place
        self.elements, self.seconds, self.moved = 0, 0.0, 0  # of stages that have ended
        self.empty_files = 0


class PipelineProfile:
    """The stages of one chain."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the two below, for a moment each
        self._open: dict[StageCounters, None] = {}
        self._places: dict[int, _PlaceCounts] = {}

    def add(self, stage: StageCounters) -> None:
        """Note a stage that begins."""
        with self._lock:
            if stage.place not in self._places:
                self._places[stage.place] = _PlaceCounts(stage)
            self._open[stage] = None

    def end(self, stage: StageCounters) -> None:
        """Note that a stage is not read any more; idempotent."""
        with self._lock:
            self._end(stage)

    def statistics(self) -> Stages:
        """Return a snapshot, from the sources on."""
        with self._lock:
            for stage in [each for each in self._open if each.iterator() is None]:
                self._end(stage)  # it was forgotten rather than closed
            now = {
                place: StageStatistics(
                    each.node.brief(),
                    each.elements,
                    each.seconds,
                    each.node.waits,
                    place=place,
                    moved=each.moved,
                    empty_files=each.empty_files,
                )
                for place, each in self._places.items()
            }
            for stage in self._open:
                iterator = stage.iterator()
                level, limit = (iterator.level() if iterator is not None else None) or (None, None)
                here = StageStatistics(
                    "",
                    stage.elements,
                    max(0.0, stage.seconds),
                    level=level,
                    limit=limit,
                    moved=stage.moved,
                    empty_files=stage.empty_files,
                )
                now[stage.place] = now[stage.place].plus(here)
            return Stages(self._in_order(now, None, 0))

    def _in_order(
        self, now: dict[int, StageStatistics], above: int | None, depth: int
    ) -> Iterator[StageStatistics]:
        """Yield the stages that are read by one, each after its own inputs."""
        inputs = [place for place, each in self._places.items() if each.above == above]
        deeper = depth + (len(inputs) > 1)
        for place in inputs:
            yield from self._in_order(now, place, deeper)
            yield replace(now[place], depth=deeper)

    def _end(self, stage: StageCounters) -> None:
        if stage in self._open:
            del self._open[stage]
            place = self._places[stage.place]
            place.elements += stage.elements
            place.seconds += stage.seconds
            place.moved += stage.moved
            place.empty_files += stage.empty_files


class StageLog:
    """The books of all chains that some threads read, by the kind of the chain."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the dict, for a moment each
        self._books: OrderedDict[str, PipelineProfile] = OrderedDict()

    def book(self, node: Node) -> PipelineProfile:
        """Return the book for a chain; parts of one dataset have the same."""
        kind = _kind(node)
        with self._lock:
            book = self._books.setdefault(kind, PipelineProfile())
            self._books.move_to_end(kind)
            while len(self._books) > _MOST_CHAINS:
                self._books.popitem(last=False)
            return book

    def statistics(self) -> dict[str, Stages]:
        """Return a snapshot of all chains, by their kind."""
        with self._lock:
            books = dict(self._books)
        return {kind: book.statistics() for kind, book in books.items()}


def _kind(node: Node) -> str:
    inputs = ",".join(map(_kind, node.inputs))
    return f"{inputs}>{node.name}" if inputs else node.name


_current: ContextVar[StageLog | None] = ContextVar("log of stages", default=None)


def log_stages(log: StageLog | None) -> None:
    """From now on, count what this thread begins to iterate over in a log; None for no more."""
    _current.set(log)


def book_for(node: Node) -> PipelineProfile:
    """Return the book for an iteration that begins in this thread."""
    log = _current.get()
    return PipelineProfile() if log is None else log.book(node)


# Context: what all parts of an iteration share, such as seeds and options. Pure.

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
    _lock: Lock = field(default_factory=Lock)  # guards the list of files, for a moment

    def add_empty(self, file: str) -> int:
        """Note a file without a record; return how many there are now."""
        with self._lock:
            self.empty_files.append(file)
            return len(self.empty_files)

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
        if self.counters.add_empty(file) == 1:
            _logger.warning(
                "%s is empty and passed over, further ones silently: stages() counts them", file
            )

    def child(self, index: int) -> Context:
        """Return the context for an input."""
        return replace(self, seed=mixed(self.seed, index), place=mixed(self.place, index))

    def read_by(self, stage: StageCounters) -> Context:
        """Return the context for what a stage reads."""
        return replace(self, stage=stage)

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
            If the very next element raises an error. It is skipped: the next call goes on after it.
            Earlier calls have returned the elements before it.
        """

    @abstractmethod
    def state(self) -> State:
        """Return the state with which `Node.iterate` goes on after the elements returned so far."""

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
    def gather(self, indices: np.ndarray) -> Block:
        """Return elements by number, int64 ``(m,)``, each in ``[0, count)``."""

    @abstractmethod
    def part(self, start: int, stop: int) -> Block:
        """Return consecutive elements, as views where possible."""


class Node(ABC):
    """A part of a dataset's description: a frozen dataclass, fully described by its fields."""

    name: ClassVar[str]
    """The name of the method of `Dataset` that makes it."""

    waits: ClassVar[bool] = False
    """Whether all that it does in the reader's thread is to wait for its input."""

    one_to_one: ClassVar[bool] = False
    """Whether it makes one element of each of its input."""

    @abstractmethod
    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin at the first element, or where a state was taken."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that it reads from."""
        found: list[Node] = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple):
                found += [item for item in value if isinstance(item, Node)]
        return tuple(found)

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
        return self.inputs[0].spec(run)

    def cardinality(self) -> int:
        """Return how many elements there are, `INFINITE` or `UNKNOWN`."""
        return self.inputs[0].cardinality() if self.one_to_one else UNKNOWN

    @property
    def ahead(self) -> int:
        """How many elements may be made at once: 1 if user code would notice."""
        return min((each.ahead for each in self.inputs), default=BLOCK)

    def parameters(self) -> list[str]:
        """Return its parameters that are not at their defaults, as ``name=value``."""
        shown = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if not each.repr or isinstance(value, Node) or _holds_nodes(value):
                continue
            if each.default is dataclasses.MISSING or not _same(value, each.default):
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


def _holds_nodes(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, Node) for item in value)


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def short(value: Any) -> str:
    """Return a value as one short line that is the same in every process."""
    if isinstance(value, Block):
        return short(block_spec(value)) + f" x {value.count}"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {value.shape}>"
    if isinstance(value, Ragged):
        return f"<ragged {value.dtype} {value.shape}>"
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


# StageCounters: counts what an iterator of a chain gives, and what it takes.
#
# Reading a node begins a stage. The counts are taken block by block, so they cost little. The
# time of a stage is its own: what its inputs take in the same thread is taken off.
#
# Threads: a stage belongs to the thread that reads its iterator. Any thread may take a snapshot,
# whose numbers are those of a moment ago. A stage does not hold its iterator.


class StageCounters:
    """Counts for one iterator.

    Parameters
    ----------
    node : Node
        What is iterated over.
    place : int
        The node's place in the chain.
    above : StageCounters or None
        The stage that reads this one.
    apart : bool
        Whether a thread of its own reads it: then its time is none of the stage above.
    """

    __slots__ = (
        "_apart",
        "_inside",
        "above",
        "elements",
        "empty_files",
        "iterator",
        "moved",
        "node",
        "place",
        "seconds",
    )

    def __init__(self, node: Node, place: int, above: StageCounters | None, apart: bool) -> None:
        self.node, self.place, self.above, self._apart = node.counted, place, above, apart
        self.elements, self.seconds, self.moved, self.empty_files = 0, 0.0, 0, 0
        self._inside = 0.0  # the time of its inputs
        self.iterator: weakref.ref[NodeIterator]

    def next_block(self, source: NodeIterator, limit: int) -> Block | None:
        """Return the next elements of its iterator; see `NodeIterator.next_block`."""
        inside, begin = self._inside, perf_counter()
        try:
            block = source.next_block(limit)
        finally:
            seconds = perf_counter() - begin
            self.seconds += seconds - (self._inside - inside)
            if not self._apart and self.above is not None:
                self.above._inside += seconds
        if block is not None:
            self.elements += block.count
        return block


def begin_stage(
    node: Node, context: Context, state: State, *, apart: bool = False
) -> tuple[NodeIterator, StageCounters]:
    """Begin to iterate over a node, and count; see `StageCounters` and `Node.iterate`."""
    stage = StageCounters(node, context.place, context.stage, apart)
    iterator = node.iterate(context.read_by(stage), state)
    stage.iterator = weakref.ref(iterator)
    context.counters.stages.add(stage)
    return iterator, stage
