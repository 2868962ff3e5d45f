"""The tables of an exported model, from the servers to a prediction. Thread-safe.

Rows are in files that are written row by row and mapped into memory: only what a lookup touches is
read. A file is a safetensors file of one tensor, ``data``, whose header has a fixed length, so that
the number of rows may be known last. Libraries of safetensors read it. Rows may be stored in fewer
bits than they have, and then the error of that is measured.

The index is the ids in ascending order, and the place of each row: an id is found by bisection. It
is made in memory that does not depend on the number of ids: for each range of ids, those within it
are picked from all, sorted and written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import finfo

from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.data.ragged import Ragged
from psnb._src.server.kernels import read_only
from psnb._src.server.tables.admission import Admission
from psnb._src.server.tables.initializers import Initializer
from psnb._src.transport.half_width import computed, rounded, widened
from psnb._src.utils.arrays import bits_of, integers_of
from psnb._src.utils.mapped_arrays import mapped_arrays, safetensors_head
from psnb.errors import ConfigurationError, ExportError, IdOutOfRangeError

STORED = ("float64", "float32", "float16", "bfloat16", "int8")
"""The dtypes that rows are stored in."""

_LEVELS = 127


def quantized(rows: np.ndarray, stored: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return rows in another dtype, and for int8 the scale of each row (float32 ``(n,)``).

    Raises
    ------
    ConfigurationError
        If numbers are too large for it; or for int8, if they are not finite.
    """
    if stored == "int8":
        if not np.isfinite(rows).all():
            raise ConfigurationError("rows that are not finite cannot be stored in int8")
        scales = (np.abs(rows).max(axis=1, initial=0) / _LEVELS).astype(np.float32)
        divisors = np.where(scales > 0, scales, 1)[:, None]
        levels = np.rint(rows / divisors).clip(-_LEVELS, _LEVELS)
        return levels.astype(np.int8), scales
    with np.errstate(over="ignore"):
        found = rows.astype(stored)
    if (np.isinf(found) & np.isfinite(rows)).any():
        raise ConfigurationError(
            f"rows have numbers that are too large for {stored}: at most {finfo(stored).max}"
        )
    return found, None


def restored(stored: np.ndarray, scales: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Return rows from their stored form."""
    found = widened(stored).astype(dtype, copy=False)
    if scales is not None:
        found *= scales[:, None]  # a copy: int8 is none of the dtypes of rows
    return found


class RowError:
    """The error of all numbers that were stored so far."""

    def __init__(self) -> None:
        self._most, self._squares, self._count = 0.0, 0.0, 0

    def add(self, rows: np.ndarray, found: np.ndarray) -> None:
        """Count rows, and what is restored of them."""
        known = np.isfinite(rows)
        error = (found[known].astype(np.float64) - rows[known]).ravel()
        self._most = max(self._most, float(np.abs(error).max(initial=0)))
        self._squares += float(error @ error)
        self._count += error.size

    def summary(self) -> dict[str, float]:
        """Return the largest error of a number, and the root of the mean square."""
        return {"max": self._most, "rms": math.sqrt(self._squares / max(1, self._count))}


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
        plain = np.ascontiguousarray(rows, self._dtype)
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


_AT_A_TIME = 3 << 19
"""Ids that are sorted at a time; they take about 50 bytes each."""

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
    lows = np.array([0, *bounds], np.uint64)
    highs = np.append(lows[1:] - np.uint64(1), np.uint64(2**64 - 1))
    with ArrayFile(ids, "uint64") as out, ArrayFile(places, place_dtype(count)) as where:
        for low, high in zip(lows, highs, strict=True):
            at = [np.empty(0, np.int64)]
            for start in range(0, count, _CHUNK):
                chunk = np.asarray(found[start : start + _CHUNK])
                at.append(np.flatnonzero((chunk >= low) & (chunk <= high)) + start)
            rows = np.concatenate(at)
            order = np.argsort(within := np.asarray(found[rows]))
            ordered = within[order]
            if (ordered[1:] == ordered[:-1]).any():
                raise ExportError("an id is there twice: its table changed its place; try again")
            out.append(ordered)
            where.append(rows[order])
        out.finish()
        where.finish()


def check_index(ids: np.ndarray, places: np.ndarray) -> None:
    """Raise ValueError unless ids ascend and each has a place among the rows."""
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK + 1]
        if (chunk[1:] <= chunk[:-1]).any():
            raise ValueError("its ids do not ascend")
        if places[start : start + _CHUNK].max() >= len(ids):
            raise ValueError("an id has a place outside of the rows")


@dataclass(frozen=True)
class ExportedTable:
    """A table, wherever its rows are.

    Attributes
    ----------
    name : str
        Its name.
    dim : int
        Floats a row.
    rows : int or None
        As `psnb.Embedding.rows`.
    dtype : numpy.dtype
        Of the rows on servers, also where they are stored in another one. Half width is returned
        as float32.
    padding_idx : int or None
        The id that gives zeros.
    initializer, admission, seed
        How rows of ids begin that have none, and which ids get one.
    """

    name: str
    dim: int
    rows: int | None
    dtype: np.dtype
    padding_idx: int | None
    initializer: Initializer
    admission: Admission
    seed: int

    def known(self) -> dict[str, Any]:
        """Return these by name, for another one of the same table."""
        return {each.name: getattr(self, each.name) for each in fields(ExportedTable)}


@dataclass(frozen=True)
class StoredRows:
    """The rows that were exported.

    Attributes
    ----------
    dtype : numpy.dtype
        In which they are returned.
    stored : numpy.ndarray
        The rows, ``(n, dim)``.
    scales : numpy.ndarray or None
        By what each is multiplied, if they are int8.
    ids, places : numpy.ndarray or None
        Ids that have a row, ascending, and where it is; None if ids are the places.
    """

    dtype: np.dtype
    stored: np.ndarray
    scales: np.ndarray | None
    ids: np.ndarray | None
    places: np.ndarray | None

    def __len__(self) -> int:
        return len(self.stored)

    def found(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of ids (uint64 ``(n,)``), and which have none: theirs are arbitrary."""
        if self.ids is None or self.places is None:
            return self._taken(ids), np.zeros(ids.size, np.bool_)
        if not self.ids.size:
            empty = np.empty((ids.size, self.stored.shape[1]), computed(self.dtype))
            return empty, np.ones(ids.size, np.bool_)
        # An id beyond all others is compared with the last one.
        at = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return self._taken(self.places[at]), self.ids[at] != ids

    def _taken(self, places: np.ndarray) -> np.ndarray:
        scales = None if self.scales is None else self.scales.take(places)
        return restored(
            self.stored.take(places.astype(np.intp), axis=0), scales, computed(self.dtype)
        )


@dataclass(frozen=True)
class StoredTable(ExportedTable):
    """A table, as `psnb.Embedding` gives its rows for evaluation.

    Attributes
    ----------
    content : StoredRows or SavedTable
        Its rows: the exported ones, or a checkpoint's.
    """

    content: StoredRows | SavedTable

    def lookup(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of ids of any shape, ``ids.shape + (dim,)``.

        An id without a row gives the initial values that its row would have, or zeros if it would
        not be admitted at once.

        Raises
        ------
        IdOutOfRangeError
            If an id is outside `rows`.
        InvalidArrayError
            If the ids are not integers.
        """
        flat = self._checked(ids)
        found, missing = self.content.found(flat)
        if missing.any():
            ids_ = flat[missing]
            first = np.zeros((ids_.size, self.dim), computed(self.dtype))
            if self.admission.min_count == 1:
                at = np.flatnonzero(self.admission.may_enter(ids_, self.seed))
                made = np.empty((at.size, self.dim), first.dtype)
                self.initializer.fill(made, read_only(ids_[at]), self.seed)
                first[at] = rounded(made, self.dtype)
            found[missing] = first
        if self.padding_idx is not None:
            found[flat == np.uint64(self.padding_idx)] = 0
        return found.reshape(*ids.shape, self.dim)

    def lookup_bags(self, bags: Ragged, combiner: str) -> np.ndarray:
        """Return the rows of each bag, combined into one by ``sum``, ``mean`` or ``sqrtn``.

        A bag without ids gives zeros, and the padding does not count.
        """
        rows, offsets, lengths = self.lookup(bags.values), bags.offsets, bags.lengths
        found = np.zeros((len(bags), self.dim), rows.dtype)
        some = lengths > 0
        if rows.size:
            found[some] = np.add.reduceat(rows, offsets[:-1][some])
        if combiner != "sum":
            counts = lengths
            if self.padding_idx is not None:
                real = self._checked(bags.values) != np.uint64(self.padding_idx)
                counts = np.diff(np.concatenate([[0], real.cumsum()])[offsets])
            divisors = np.maximum(counts, 1) if combiner == "mean" else np.sqrt(counts.clip(1))
            found /= divisors[:, None].astype(rows.dtype)
        return found

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        flat = integers_of(ids, f"ids of table {self.name!r}").reshape(-1)
        if self.rows is not None and flat.size:
            low, high = int(flat.min()), int(flat.max())
            if low < 0 or high >= self.rows:
                raise IdOutOfRangeError(
                    f"table {self.name!r} has {self.rows} rows, so ids are 0 to {self.rows - 1}; "
                    f"found id {low if low < 0 else high}"
                )
        return bits_of(flat)
