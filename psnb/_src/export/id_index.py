"""The index of a stored table: its ids in ascending order, and the place of each row. Pure.

It is made in memory that does not depend on the number of ids: for each range of ids, those within
it are picked from all, sorted and written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from psnb._src.export.array_file import ArrayFile
from psnb.errors import ExportError

_AT_A_TIME = 1 << 22
"""Ids that are sorted at a time; they take about 100 bytes each."""

_PIECE = 1 << 20


def place_dtype(count: int) -> str:
    """Return the dtype of the places of so many rows."""
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
    for start in range(0, len(found), _PIECE):
        piece = np.asarray(found[start : start + _PIECE])
        chosen = np.ones(len(piece), bool)
        if low is not None:
            chosen &= piece >= low
        if high is not None:
            chosen &= piece < high
        at = np.flatnonzero(chosen)
        ids.append(piece[at])
        places.append(at + start)
    return np.concatenate(ids), np.concatenate(places)


def check_index(ids: np.ndarray, places: np.ndarray) -> None:
    """Raise ValueError unless ids ascend and each has a place among the rows."""
    for start in range(0, len(ids), _PIECE):
        piece = ids[start : start + _PIECE + 1]
        if (piece[1:] <= piece[:-1]).any():
            raise ValueError("its ids do not ascend")
        if places[start : start + _PIECE].max() >= len(ids):
            raise ValueError("an id has a place outside of the rows")
