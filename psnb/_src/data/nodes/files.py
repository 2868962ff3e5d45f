"""Files: their names, and the records in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from psnb._src.data.block import Block, Origin, objects
from psnb._src.data.formats.files import translated
from psnb._src.data.nesting import flatten
from psnb._src.data.node import UNKNOWN, Context, Indexed, Node, PartsIterator, State
from psnb._src.data.nodes.indexed import SelectedRows
from psnb._src.data.nodes.sources import Slices
from psnb._src.data.ragged import Ragged
from psnb._src.utils.checks import path_text
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class FileNames(Slices):
    """Paths, found when the dataset was made."""

    name: ClassVar[str] = "list_files"

    partial: bool = field(default=False, repr=False)

    @property
    def names(self) -> list[str]:
        return list(self.block.columns[0])

    def over(self, names: Sequence[str], *, partial: bool = False) -> Node:
        return file_names(names, partial=partial)


def file_names(names: Sequence[str], *, partial: bool = False) -> FileNames:
    """Return the node of some paths."""
    return FileNames(Block(None, (objects(names),), len(names)), partial)


@dataclass(frozen=True, eq=False)
class FileShares(Node):
    """Paths, dealt to several readers: an element is all that one of them reads."""

    name: ClassVar[str] = "files"

    names: tuple[str, ...]
    readers: int
    partial: bool = field(default=False, repr=False)

    def indexed(self) -> Indexed:
        """Return the shares, none of which is empty."""
        count = min(self.readers, len(self.names))
        shares = [objects(self.names[reader :: self.readers]) for reader in range(count)]
        return SelectedRows(Block(None, (Ragged.from_rows(shares, object),), count))

    def over(self, names: Sequence[str], *, partial: bool = False) -> Node:
        return replace(self, names=tuple(names), partial=partial)


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


class Format(Protocol):
    """A reader of one file format."""

    def read(self, path: str, offset: int, first: int, end: int | None) -> Iterator[Any]:
        """Yield the records that begin in ``[offset, end)``; ``first`` numbers the first one.

        They come as chunks of consecutive ones, with ``columns``, an array or `Ragged` with a
        leading axis of ``count``, or a structure of them; ``first``, the number of the first one;
        and ``next_offset``, the offset at which reading can continue after them.
        """


class _FilesIterator(PartsIterator):
    """The state: file, where its chunk begins, the number of its first record, how many to skip."""

    def __init__(self, node: Files, context: Context, state: State) -> None:
        self._node, self._context = node, context
        self._file: int
        self._offset: int | None
        self._first: int
        self._skip: int
        self._file, self._offset, self._first, self._skip = state or (0, None, 0, 0)
        self._chunks: Iterator[Any] | None = None
        self._next = self._offset, self._first  # where the chunk after this one begins

    def state(self) -> State:
        if self._block is not None and self._used == self._block.count:
            return [self._file, *self._next, 0]
        used = self._skip if self._block is None else self._used
        return [self._file, self._offset, self._first, used]

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
        self._chunks = None

    def _advance(self) -> bool:
        while self._file < len(self._node.files):
            path, begin, end = self._node.files[self._file]
            if self._block is not None:
                self._offset, self._first = self._next
                self._block = None
            try:
                with translated(path, path):  # a user's own format may raise anything
                    if self._chunks is None:
                        offset = begin if self._offset is None else self._offset
                        read = self._node.format.read
                        self._chunks = iter(read(path, offset, self._first, end))
                    records = next(self._chunks, None)
            except DatasetError:
                self._next_file()
                raise
            if records is None:
                if self._offset is None and begin == 0:
                    self._context.note_empty(path)
                self._next_file()
                continue
            self._context.counters.any_records = True
            leaves, nesting = flatten(records.columns)
            numbers = np.arange(records.first, records.first + records.count)
            # Not `numpy.full`, which makes as many texts.
            origin = Origin(objects([path]).repeat(records.count), numbers)
            loose = getattr(records, "loose", False)  # a format of the user's has none
            self._block = Block(nesting, tuple(leaves), records.count, origin, loose)
            self._used, self._skip = self._skip, 0
            self._next = records.next_offset, records.first + records.count
            return True
        return False

    def _next_file(self) -> None:
        self.close()
        self._file, self._offset, self._first, self._skip = self._file + 1, None, 0, 0
        self._block, self._next = None, (None, 0)


@dataclass(frozen=True, eq=False)
class Files(Node):
    """The records of some files, one file after another."""

    name: ClassVar[str] = "files"
    iterator: ClassVar[Any] = _FilesIterator
    opaque: ClassVar[bool] = True

    format: Format
    files: tuple[FileRange, ...]
    partial: bool = field(default=False, repr=False)

    def cardinality(self) -> int:
        """Return how many records there are, if the format's files say so."""
        counts = getattr(self.format, "cardinality", None)
        return UNKNOWN if counts is None else sum(counts(*each) for each in self.files)

    def brief(self) -> str:
        """Return the format's name: files differ from part to part of a dataset."""
        return f"{self.name}({type(self.format).__name__})"


def file_ranges(files: Any) -> tuple[FileRange, ...]:
    """Return the ranges for paths or ranges of files."""
    single = isinstance(files, (str, os.PathLike, FileRange))
    several: Sequence[Any] = [files] if single else list(files)
    return tuple(
        each if isinstance(each, FileRange) else FileRange(path_text("files", each))
        for each in several
    )
