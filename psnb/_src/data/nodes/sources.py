"""Numbers that rise or fall evenly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from psnb._src.data.block import Block, Origin, Stacker, block_spec, column_spec
from psnb._src.data.formats.files import missing
from psnb._src.data.node import UNKNOWN, Context, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.base import InOrder, Joined, SelectedRows, Zipped, first_spec
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import (
    ArraySpec,
    Nesting,
    Spec,
    element_spec,
    flatten,
    merged,
    paths,
    unflatten,
)
from psnb._src.utils.text import error_text
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Range(Node):
    """Those of Python's ``range``, as int64."""

    name: ClassVar[str] = "range"

    start: int
    stop: int
    step: int

    def iterate(self, context: Context, state: State = None) -> InOrder:
        """Begin."""
        return InOrder(self.indexed(), state)

    def indexed(self) -> Indexed:
        """Return the numbers."""
        return _Numbers(range(self.start, self.stop, self.step))

    def spec(self, run: bool) -> Spec:
        """Return that of an int64."""
        return ArraySpec((), np.dtype(np.int64))

    def cardinality(self) -> int:
        """Return how many there are."""
        return len(range(self.start, self.stop, self.step))


class _Numbers(Indexed):
    def __init__(self, numbers: range) -> None:
        self.count, self._numbers = len(numbers), numbers

    def gather(self, indices: np.ndarray) -> Block:
        column = self._numbers.start + np.asarray(indices, np.int64) * self._numbers.step
        return Block(None, (column,), len(column))

    def part(self, start: int, stop: int) -> Block:
        return self.gather(np.arange(start, stop))


@dataclass(frozen=True, eq=False)
class Slices(Node):
    """The rows of a block, whose arrays are read-only."""

    name: ClassVar[str] = "from_tensor_slices"

    block: Block

    def iterate(self, context: Context, state: State = None) -> InOrder:
        """Begin."""
        return InOrder(self.indexed(), state)

    def indexed(self) -> Indexed:
        """Return the rows."""
        return SelectedRows(self.block)

    def spec(self, run: bool) -> Spec:
        """Return that of a row."""
        spec = block_spec(self.block)
        if spec is None and self.block.count:
            spec = element_spec(self.block.element(0))
        return spec

    def cardinality(self) -> int:
        """Return how many rows there are."""
        return self.block.count


@dataclass(frozen=True, eq=False)
class Table(Slices):
    """The rows of a table, whose columns are arrays."""

    name: ClassVar[str] = "from_table"


@dataclass(frozen=True, eq=False)
class Tensors(Slices):
    """One element, which is all of some arrays."""

    name: ClassVar[str] = "from_tensors"


@dataclass(frozen=True, eq=False)
class FileNames(Slices):
    """Paths, found when the dataset was made."""

    name: ClassVar[str] = "list_files"

    partial: bool = field(default=False, repr=False)

    @property
    def names(self) -> list[str]:
        """The paths."""
        return list(self.block.columns[0])

    def over(self, names: Sequence[str], *, partial: bool = False) -> Node:
        """Return the same of other paths."""
        return file_names(names, partial=partial)


def file_names(names: Sequence[str], *, partial: bool = False) -> FileNames:
    """Return the node of some paths."""
    return FileNames(Block(None, (_texts(names),), len(names)), partial)


@dataclass(frozen=True, eq=False)
class FileShares(Node):
    """Paths, dealt to several readers: an element is all that one of them reads."""

    name: ClassVar[str] = "files"

    names: tuple[str, ...]
    readers: int
    partial: bool = field(default=False, repr=False)

    def iterate(self, context: Context, state: State = None) -> InOrder:
        """Begin."""
        return InOrder(self.indexed(), state)

    def indexed(self) -> Indexed:
        """Return the shares, none of which is empty."""
        count = min(self.readers, len(self.names))
        shares = [_texts(self.names[reader :: self.readers]) for reader in range(count)]
        return SelectedRows(Block(None, (Ragged.from_rows(shares, object),), count))

    def over(self, names: Sequence[str], *, partial: bool = False) -> Node:
        """Return the same of other paths."""
        return replace(self, names=tuple(names), partial=partial)


def _texts(names: Sequence[str]) -> np.ndarray:
    column = np.empty(len(names), object)
    column[:] = names
    return column


@dataclass(frozen=True, eq=False)
class Generator(Node):
    """Calls a function for each iteration, and takes elements from the iterable that it returns."""

    name: ClassVar[str] = "from_generator"
    ahead: ClassVar[int] = 1  # a generator may have side effects, or be slow

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


class FileRange(NamedTuple):
    """The part of a file to read.

    Attributes
    ----------
    path : str
        The file.
    offset, end : int
        The records that begin in this range; ``end`` is None for the rest of the file.
    """

    path: str
    offset: int = 0
    end: int | None = None


class RecordChunk(Protocol):
    """Consecutive records of a file, with a leading axis of ``count``."""

    @property
    def columns(self) -> Any:
        """Return an array or `Ragged`, or a structure of them."""

    @property
    def count(self) -> int:
        """Return how many."""

    @property
    def first(self) -> int:
        """Return the number of the first one."""

    @property
    def next_offset(self) -> int:
        """Return the offset at which reading can go on after them."""


class Format(Protocol):
    """A reader of one file format."""

    def read(self, path: str, offset: int, first: int, end: int | None) -> Iterator[RecordChunk]:
        """Yield the records that begin in ``[offset, end)``; ``first`` numbers the first one."""


@dataclass(frozen=True, eq=False)
class Files(Node):
    """The records of some files, one file after another."""

    name: ClassVar[str] = "files"

    format: Format
    files: tuple[FileRange, ...]
    partial: bool = field(default=False, repr=False)

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; files are opened when they are read."""
        return _FilesIterator(self, context, state)

    def spec(self, run: bool) -> Spec:
        """Return what the first record says."""
        return first_spec(self) if run else None

    def cardinality(self) -> int:
        """Return how many records there are, if the format's files say so."""
        counts = getattr(self.format, "cardinality", None)
        return UNKNOWN if counts is None else sum(counts(*each) for each in self.files)

    def brief(self) -> str:
        """Return the format's name: files differ from part to part of a dataset."""
        return f"{self.name}({type(self.format).__name__})"


class _FilesIterator(NodeIterator):
    """The state: file, where its chunk begins, the number of its first record, how many to skip."""

    def __init__(self, node: Files, context: Context, state: State) -> None:
        self._node, self._context = node, context
        self._file: int
        self._offset: int | None
        self._first: int
        self._skip: int
        self._file, self._offset, self._first, self._skip = state or (0, None, 0, 0)
        self._chunks: Iterator[RecordChunk] | None = None
        self._chunk: Block | None = None
        self._used = 0
        self._next = self._offset, self._first  # where the chunk after this one begins

    def next_block(self, limit: int) -> Block | None:
        while self._chunk is None or self._used == self._chunk.count:
            if not self._read():
                return None
        start, stop = self._used, min(self._used + limit, self._chunk.count)
        self._used = stop
        return self._chunk.part(start, stop)

    def state(self) -> State:
        if self._chunk is not None and self._used == self._chunk.count:
            return [self._file, *self._next, 0]
        used = self._skip if self._chunk is None else self._used
        return [self._file, self._offset, self._first, used]

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
        self._chunks = None

    def _read(self) -> bool:
        """Make the next chunk the current one; return whether there is one."""
        files = self._node.files
        while self._file < len(files):
            path, begin, end = files[self._file]
            if self._chunk is not None:
                self._offset, self._first = self._next
                self._chunk = None
            if self._chunks is None:
                offset = begin if self._offset is None else self._offset
                self._chunks = iter(self._node.format.read(path, offset, self._first, end))
            try:
                records = next(self._chunks, None)
            except Exception as error:  # a user's own format may raise anything
                self._next_file()
                if isinstance(error, DatasetError) and path in str(error):
                    raise
                raise DatasetError(f"{path}: {type(error).__name__}: {error}") from error
            if records is None:
                if self._offset is None and begin == 0:
                    self._context.note_empty(path)
                self._next_file()
                continue
            self._context.counters.any_records = True
            leaves, nesting = flatten(records.columns)
            numbers = np.arange(records.first, records.first + records.count)
            origin = Origin(np.full(records.count, path, object), numbers)
            loose = getattr(records, "loose", False)  # a format of the user's has no such thing
            self._chunk = Block(nesting, tuple(leaves), records.count, origin, loose)
            self._used, self._skip = self._skip, 0
            self._next = records.next_offset, records.first + records.count
            if self._used < records.count:
                return True
        return False

    def _next_file(self) -> None:
        self.close()
        self._file, self._offset, self._first, self._skip = self._file + 1, None, 0, 0
        self._chunk, self._next = None, (None, 0)


def file_ranges(files: Any) -> tuple[FileRange, ...]:
    """Return the ranges for paths or ranges of files."""
    single = isinstance(files, (str, os.PathLike, FileRange))
    several: Sequence[Any] = [files] if single else list(files)
    return tuple(
        each if isinstance(each, FileRange) else FileRange(os.fspath(each)) for each in several
    )


@dataclass(frozen=True, eq=False)
class Npy(Node):
    """For each leaf some files, whose rows are its elements, one file after another."""

    name: ClassVar[str] = "npy"

    files: tuple[tuple[str, ...], ...]
    nesting: Nesting = None

    def iterate(self, context: Context, state: State = None) -> InOrder:
        """Begin."""
        return InOrder(self.indexed(), state)

    def indexed(self) -> Indexed:
        """Open the files and return their rows."""
        leaves = [
            Joined(self, [SelectedRows(Block(None, (array,), len(array))) for array in arrays])
            for arrays in self._arrays()
        ]
        for leaf, name in zip(leaves, paths(self.nesting), strict=True):
            if leaf.count != leaves[0].count:
                raise DatasetError(
                    f"{self.label()}: {name} has {leaf.count} rows in its files, "
                    f"{paths(self.nesting)[0]} has {leaves[0].count}"
                )
        return Zipped(self.nesting, leaves)

    def spec(self, run: bool) -> Spec:
        """Return that of a row; opens the files."""
        specs = [column_spec(arrays[0]) for arrays in self._arrays()]
        return unflatten(self.nesting, iter(specs))

    def cardinality(self) -> int:
        """Return how many rows there are; opens the files."""
        return self.indexed().count

    def _arrays(self) -> list[list[np.ndarray]]:
        """Open the files of each leaf, and check that all have the same rows."""
        leaves = []
        for files in self.files:
            arrays = [_opened(self, file) for file in files]
            spec = column_spec(arrays[0])
            for array, file in zip(arrays, files, strict=True):
                if merged(spec, column_spec(array)) != spec:
                    raise DatasetError(
                        f"{self.label()}: {file} has rows of {column_spec(array)}, {files[0]} of "
                        f"{spec}"
                    )
            leaves.append(arrays)
        return leaves


def _opened(node: Npy, file: str) -> np.ndarray:
    try:
        array: np.ndarray = np.lib.format.open_memmap(file, mode="r")  # never unpickles
    except FileNotFoundError as error:
        raise DatasetError(f"{node.label()}: {missing(file)}") from error
    except Exception as error:
        # A damaged header is parsed as Python text, which raises errors of many classes.
        raise DatasetError(
            f"{node.label()}: {file} cannot be mapped, it is damaged or no .npy file: "
            f"{type(error).__name__}: {error}"
        ) from error
    if array.ndim == 0:
        raise DatasetError(f"{node.label()}: {file} holds no array with rows")
    return array.view(np.ndarray)  # of a memory map: a plain one is faster
