"""Chunks of records, their places in files, and limits on a record's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.data.formats.files import check_compression
from psnb._src.utils.checks import integer
from psnb.errors import DatasetError

CHUNK_BYTES = 1 << 20
"""About how much of a file becomes one chunk: as much as a processor's own cache holds."""

CHUNK_RECORDS = 4096
"""The most records of one chunk, however short they are."""


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Some consecutive records of a file.

    The division into chunks depends on the file from its first record on, and on nothing else: when
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
        Where the record after the last begins. Given to ``read`` as ``offset``, reading continues
        there. In uncompressed bytes from the start of the file; for Parquet, in rows.
    loose : bool
        Whether arrays that have one shape here may have another in other chunks.
    """

    columns: Any
    count: int
    first: int
    next_offset: int
    loose: bool = False


def byte_strings(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return parts of a buffer as an array of bytes objects."""
    found = np.empty(len(starts), object)
    view = data.data
    # Some at a time: as Python's own numbers, their places take ten times the memory.
    for at in range(0, len(starts), CHUNK_RECORDS):
        some = slice(at, at + CHUNK_RECORDS)
        places = zip(starts[some].tolist(), ends[some].tolist(), strict=True)
        found[some] = [bytes(view[begin:end]) for begin, end in places]
    return found


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A file, and where reading it began.

    Parameters
    ----------
    path : str
        The file.
    offset : int
        Where reading began.
    first : int
        The number of the record there, from 0. If it is 0 in the middle of a file, it is unknown,
        and errors say from where they count.
    """

    path: str
    offset: int = 0
    first: int = 0

    def error(self, noun: str, number: int, byte: int, problem: str) -> DatasetError:
        """Return the error that something is wrong with a record.

        Parameters
        ----------
        noun : str
            What the format calls a record: "line".
        number : int
            The record's number, from 0; messages count from 1.
        byte : int
            Where in the file it is.
        problem : str
            What is wrong, and what to do.
        """
        from_there = f" after byte {self.offset}" if self.offset > 0 and self.first == 0 else ""
        return DatasetError(f"{self.path}, {noun} {number + 1}{from_there}, byte {byte}: {problem}")


MAX_RECORD_BYTES = 1 << 26
"""How many bytes a record may have, unless a reader is given another limit."""

MAX_COLUMNS = 1 << 14
"""How many columns a CSV file may have, unless its reader is given another limit."""

LONGEST = 1 << 30
"""The largest limit that can be set."""


def checked_limit(limit: int) -> int:
    """Return a limit as an int, or raise `ConfigurationError` if it cannot be one."""
    return integer("max_record_bytes", limit, 1, LONGEST)


def check_reading(form: Any) -> None:
    """Check what most formats have, a frozen dataclass each; make its limit an int.

    Raises
    ------
    ConfigurationError
        If the compression is not known, or the limit not possible.
    """
    check_compression(form.compression)
    object.__setattr__(form, "max_record_bytes", checked_limit(form.max_record_bytes))


def too_long(place: FilePosition, noun: str, number: int, byte: int, limit: int) -> DatasetError:
    """Return the error for a record over the limit; parameters as for `FilePosition.error`."""
    return place.error(
        noun,
        number,
        byte,
        f"it is longer than max_record_bytes={limit}; give the reader more, unless the file is of "
        "another format, or compressed",
    )


def within(lengths: np.ndarray, limit: int) -> int:
    """Return how many records come before the first that is too long."""
    longer = lengths > limit
    return int(longer.argmax()) if longer.any() else len(lengths)
