"""MemoryStore: the pieces in one process, within a limit of memory. Thread-safe.

Pieces belong to a generation. A shuffle makes the next generation; the old one stays unchanged
until the shuffle has succeeded everywhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from psnb._src.data.memory.numbered_examples import NumberedExamples
from psnb._src.data.memory.piece import MemoryPiece, over
from psnb._src.data.memory.shuffle_plan import ShufflePlan


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """The part of a dataset in a process.

    Attributes
    ----------
    examples : int
        How many examples.
    bytes_in_memory, bytes_on_disk : int
        Their size; examples beyond the limit are on disk.
    memory_limit : int
        Bytes of memory that they may take.
    pieces : tuple of int
        The numbers of the pieces here.
    """

    examples: int
    bytes_in_memory: int
    bytes_on_disk: int
    memory_limit: int
    pieces: tuple[int, ...]


class MemoryStore:
    """Keeps chunks by generation and piece; beyond the limit, the largest pieces go to disk.

    Parameters
    ----------
    limit : int
        Bytes of memory. A piece that is read takes more, as long as a caller uses it.
    folder : str
        Where to make a folder for files, which is removed with this object.
    """

    def __init__(self, limit: int, folder: str) -> None:
        self._limit, self._parent = limit, folder
        self._lock = threading.Lock()  # guards the dict, for a moment each
        self._spilling = threading.Lock()  # one thread at a time makes room, and the folder
        self._pieces: dict[tuple[int, int], MemoryPiece] = {}
        self._folder: str | None = None
        self._made = 0

    def begin(self, generation: int, number: int) -> None:
        """Note that a piece is here, even if it stays empty."""
        self._piece(generation, number)

    def rename(self, generation: int, number: int, new: int) -> None:
        """Move a piece to another generation, and replace the one there."""
        self.drop(new, number)
        with self._lock:
            self._pieces[new, number] = self._pieces.pop((generation, number))

    def put(self, generation: int, number: int, chunk: NumberedExamples) -> None:
        """Add to a piece.

        Raises
        ------
        DatasetError
            If it exceeds the limit and cannot be written to a file.
        """
        self._piece(generation, number).add(chunk)
        self._make_room()

    def has(self, generation: int, number: int) -> bool:
        """Return whether a piece is here."""
        return (generation, number) in self._pieces

    def read(self, generation: int, number: int, layout: ShufflePlan) -> NumberedExamples | None:
        """Return a piece in order; None if it is empty; see `MemoryPiece`."""
        found = self._found(generation, number).read(layout)
        self._make_room()
        return found

    def chunks(self, generation: int, number: int) -> Iterator[NumberedExamples]:
        """Yield the chunks of a piece, in any order; see `MemoryPiece`."""
        return self._found(generation, number).chunks()

    def drop(self, generation: int, number: int) -> None:
        """Forget a piece, if it is here."""
        with self._lock:
            piece = self._pieces.pop((generation, number), None)
        if piece is not None:
            piece.drop()

    def keep_only(self, generation: int) -> None:
        """Forget all other generations but negative ones."""
        for other, number in list(self._pieces):
            if other >= 0 and other != generation:
                self.drop(other, number)

    def forget(self, generation: int) -> None:
        """Forget a generation."""
        for other, number in list(self._pieces):
            if other == generation:
                self.drop(other, number)

    def statistics(self, generation: int) -> MemoryStatistics:
        """Return the statistics of a generation; the bytes are those of all generations."""
        with self._lock:
            all_ = list(self._pieces.values())
            mine = {n: piece for (other, n), piece in self._pieces.items() if other == generation}
        return MemoryStatistics(
            sum(piece.examples for piece in mine.values()),
            sum(piece.bytes_in_memory for piece in all_),
            sum(piece.bytes_on_disk for piece in all_),
            self._limit,
            tuple(sorted(mine)),
        )

    def _found(self, generation: int, number: int) -> MemoryPiece:
        piece = self._pieces.get((generation, number))
        if piece is None:
            raise over()
        return piece

    def _piece(self, generation: int, number: int) -> MemoryPiece:
        with self._lock:
            piece = self._pieces.get((generation, number))
            if piece is None:
                piece = self._pieces[generation, number] = MemoryPiece()
            return piece

    def _new_path(self) -> str:
        """Return the path for a piece's file; only for the thread that makes room."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="psnb-dataset-", dir=self._parent)
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._made += 1
        return os.path.join(self._folder, str(self._made))

    def _make_room(self) -> None:
        with self._spilling:
            while True:
                with self._lock:
                    pieces = list(self._pieces.values())
                if sum(piece.bytes_in_memory for piece in pieces) <= self._limit:
                    return
                max(pieces, key=lambda piece: piece.bytes_in_memory).spill(self._new_path)
