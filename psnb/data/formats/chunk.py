"""What every reader of files yields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

CHUNK_BYTES = 1 << 20
"""About how much of a file becomes one chunk: as much as a processor's own cache holds."""

CHUNK_RECORDS = 4096
"""The most records of one chunk, however short they are."""


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Some consecutive records of a file.

    Parameters
    ----------
    columns : array, `Ragged`, or tuple or dict of them
        The records, with leading dimension ``count``. They are the chunk's own: nothing overwrites
        them.
    count : int
        The number of records; at least 1.
    first : int
        The number of the first one, from 0: in the file or, if reading began in its midst and was
        not told, from there.
    next_offset : int
        Where the record after the last begins. Given to ``read`` as ``offset``, reading goes on
        there. In uncompressed bytes from the start of the file; of Parquet, in rows.
    """

    columns: Any
    count: int
    first: int
    next_offset: int


class Format(Protocol):
    """How one kind of file is read: immutable, pickles, and holds nothing open itself."""

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the `Chunk` objects of the records that begin in ``[offset, end)``."""

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges ``(offset, end)`` of parts of about ``size`` bytes of a file."""
