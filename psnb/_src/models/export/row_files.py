"""Files of a table's rows and of their index, written row by row and mapped into memory. Pure.

A file is a safetensors file of one tensor, ``data``, whose header has a fixed length, so that
the number of rows may be known last. Libraries of safetensors read it. The index is the ids in
ascending order, and the place of each row. It is made in memory that does not depend on the number
of ids: for each range of ids, those within it are picked from all, sorted and written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from psnb._src.utils.mapped_arrays import mapped_arrays, safetensors_head
from psnb.errors import ExportError

_HEADER = 4096
"""Bytes before the data, which so begin with a page."""


class ArrayFile:
    """Writes an array.

    Parameters
    ----------
    path : pathlib.Path
        The file, which is not there yet.
    dtype : str
        Of the array.
    row_shape : tuple of int
        The shape of one row.

    Attributes
    ----------
    rows : int
        How many were written.
    """

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._dtype, self._row_shape, self.rows = np.dtype(dtype), row_shape, 0
        self._file = open(path, "xb")  # noqa: SIM115  # closed by its user
        self._file.write(bytes(_HEADER))

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, rows: np.ndarray) -> None:
        """Write rows at the end."""
        plain = np.ascontiguousarray(rows, self._dtype.newbyteorder("<"))
        self._file.write(plain.reshape(-1).view(np.uint8).data)
        self.rows += len(rows)

    def finish(self) -> None:
        """Write the header."""
        self._file.seek(0)
        form = self._dtype, (self.rows, *self._row_shape)
        self._file.write(safetensors_head({"data": form}, _HEADER))
        self._file.flush()


def mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array of a file, mapped into memory and read-only.

    Raises
    ------
    OSError, SafetensorError, ValueError
        If it is not such a file, or has another array.
    """
    arrays = mapped_arrays(path)
    if arrays.keys() != {"data"}:
        raise ValueError(f"expected one array, 'data', found {sorted(arrays)[:5]}")
    found = arrays["data"]
    if (found.dtype, found.shape) != (np.dtype(dtype), shape):
        raise ValueError(f"expected {dtype} of shape {shape}, found {found.dtype} {found.shape}")
    return found


_AT_A_TIME = 1 << 22
"""Ids that are sorted at a time; they take about 100 bytes each."""

_CHUNK = 1 << 20


def place_dtype(count: int) -> str:
    """Return the dtype of the places of ``count`` rows."""
    return "uint32" if count < 1 << 32 else "uint64"


def write_index(unsorted: Path, count: int, ids: Path, places: Path) -> None:
    """Write the index of ids that are in a file of uint64, in the order of their rows.

    Raises
    ------
    ExportError
        If an id is there twice.
    OSError
        If it cannot be written.
    """
    found = np.memmap(unsorted, np.uint64, "r", shape=(count,)) if count else np.empty(0, np.uint64)
    ranges = -(-count // _AT_A_TIME)
    sample = np.sort(found[:: max(1, count // (1 << 16))])
    bounds = [sample[len(sample) * at // ranges] for at in range(1, ranges)]
    with ArrayFile(ids, "uint64") as out, ArrayFile(places, place_dtype(count)) as where:
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            if not count:
                continue
            within, at = _within(found, low, high)
            order = np.argsort(within)
            ordered = within[order]
            if (ordered[1:] == ordered[:-1]).any():
                raise ExportError("an id is there twice: its table changed its place; try again")
            out.append(ordered)
            where.append(at[order])
        out.finish()
        where.finish()


def _within(found: np.ndarray, low: object, high: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a range, and their places."""
    ids, places = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for start in range(0, len(found), _CHUNK):
        chunk = np.asarray(found[start : start + _CHUNK])
        chosen = np.ones(len(chunk), bool)
        if low is not None:
            chosen &= chunk >= low
        if high is not None:
            chosen &= chunk < high
        at = np.flatnonzero(chosen)
        ids.append(chunk[at])
        places.append(at + start)
    return np.concatenate(ids), np.concatenate(places)


def check_index(ids: np.ndarray, places: np.ndarray) -> None:
    """Raise ValueError unless ids ascend and each has a place among the rows."""
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK + 1]
        if (chunk[1:] <= chunk[:-1]).any():
            raise ValueError("its ids do not ascend")
        if places[start : start + _CHUNK].max() >= len(ids):
            raise ValueError("an id has a place outside of the rows")
