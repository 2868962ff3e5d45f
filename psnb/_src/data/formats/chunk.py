"""Chunk: what every reader of files yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHUNK_BYTES = 1 << 20
"""About how much of a file becomes one chunk: as much as a processor's own cache holds."""

CHUNK_RECORDS = 4096
"""The most records of one chunk, however short they are."""


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Some consecutive records of a file.

    What becomes one chunk depends on the file from its first record on, and on nothing else: when
    reading resumes where a chunk began, the same chunk comes again.

    Parameters
    ----------
    columns : array, `Ragged`, or tuple or dict of them
        The records, with leading dimension ``count``. They belong to the chunk: nothing overwrites
        them.
    count : int
        The number of records; at least 1.
    first : int
        The number of the first one, from 0: in the file or, if reading began in the middle of it
        without a number, from there.
    next_offset : int
        Where the record after the last begins. Given to ``read`` as ``offset``, reading goes on
        there. In uncompressed bytes from the start of the file; of Parquet, in rows.
    loose : bool
        Whether arrays that have one shape here may have another in other chunks.
    """

    columns: Any
    count: int
    first: int
    next_offset: int
    loose: bool = False
