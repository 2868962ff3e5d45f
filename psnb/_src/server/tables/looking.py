"""What is asked of all rows of a shard of an embedding, in pieces that hold no server up. Pure.

A piece begins at a row, and ends where the server says: after so many rows that it takes a few
milliseconds. Rows that come meanwhile are at the end, and belong to a later piece. When rows get
other numbers (some were removed, or another server has the shard now), a piece that is not the
first one is refused by None: the question begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from psnb._src.server.hashing import take_range
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import scratch
from psnb._src.server.scanning import Metric, keep_nearest, row_norms
from psnb._src.server.stored import widened
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.checks import form
from psnb._src.server.tables.row_table import RowTable
from psnb.errors import InvalidArrayError

_BLOCK = 1 << 18
"""Bytes of rows that are copied at a time: they stay in the processor's caches."""

MOST_QUERIES = 64
"""How many there may be in an operation."""

_AS_CHEAP = 4
"""So many queries take about as long as to read the rows."""

OCTAVE = 64
"""Bins of norms between a power of two and the next one."""

_LEAST, _MOST = -64, 64  # powers of two; norms beyond are in the first and the last bin
_FRACTION = 52 - OCTAVE.bit_length() + 1  # bits of a float64 that do not tell its bin
_FIRST = (1023 + _LEAST) * OCTAVE

MOST_DAYS = 4096
"""Rows that were unseen for more days count as unseen for these."""

MOST_USED = 100
"""How many of the most used ids may be asked for."""


def edges_of(bins: np.ndarray) -> np.ndarray:
    """Return the least norm that is in each of some bins, which int64 numbers name."""
    edges: np.ndarray = np.ldexp(1 + bins % OCTAVE / OCTAVE, bins // OCTAVE + _LEAST)
    return edges


def look(table: RowTable, of: ops.ScanRows) -> ops.Scanned | None:
    """Return the answer to a piece of a question; None if rows have other numbers now."""
    index = table.index
    if of.start and of.numbering != index.numbering:
        return None
    if not 0 <= of.start <= index.count:
        raise InvalidArrayError(f"rows of {table.name!r}: {of.start} is not 0 to {index.count}")
    match of:
        case ops.FindNearest():
            return _nearest(table, of)
        case ops.MeasureRows():
            return _measured(table, of)
    assert isinstance(of, ops.ListIds)
    return _ids(table, of)


def _stop(table: RowTable, start: int, row_nbytes: int, times: int = 1) -> int:
    return min(table.index.count, start + max(1, ops.rows_in_segment(row_nbytes) // times))


def _then(table: RowTable, stop: int) -> tuple[str, int | None]:
    """Return the numbering, and where the next piece begins; None at the end."""
    return table.index.numbering, stop if stop < table.index.count else None


def _blocks(table: RowTable, start: int, stop: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield rows and their values, a part at a time that stays in the processor's caches."""
    step = max(1, _BLOCK // (table.dim * table.dtype.itemsize))
    for at in range(start, stop, step):
        rows = slice(at, min(at + step, stop))
        yield rows, read_only(widened(table.column("values", rows)))


def _nearest(table: RowTable, of: ops.FindNearest) -> ops.Nearest:
    if of.metric not in list(Metric):
        raise InvalidArrayError(f"queries of {table.name!r}: there is no metric {of.metric}")
    dtype, shape = form(f"queries of {table.name!r}", of.queries)
    queries = shape[0] if len(shape) == 2 else 0
    if dtype != np.float64 or not 1 <= queries <= MOST_QUERIES or shape[1] != table.dim:
        raise InvalidArrayError(
            f"queries of {table.name!r}: expected float64 of shape (1 to {MOST_QUERIES}, "
            f"{table.dim}), found {dtype} of shape {shape}"
        )
    if not 1 <= of.count <= ops.MOST_FOUND // queries:
        raise InvalidArrayError(
            f"queries of {table.name!r}: expected 1 to {ops.MOST_FOUND // queries} rows of each, "
            f"found {of.count}"
        )
    wanted = read_only(np.ascontiguousarray(of.queries))
    if not np.isfinite(wanted).all():
        raise InvalidArrayError(f"queries of {table.name!r}: some numbers are not finite")
    size = table.dim * table.dtype.itemsize
    stop = _stop(table, of.start, size, -(-queries // _AS_CHEAP))
    k = min(of.count, stop - of.start)
    keys, found = scratch((queries, k), np.float64), scratch((queries, k), np.uint64)
    metric, count = int(of.metric), 0
    for rows, values in _blocks(table, of.start, stop):
        ids = read_only(table.index.ids(rows))
        count = keep_nearest(values, ids, wanted, metric, keys, found, count)
    return ops.Nearest(*_then(table, stop), keys[:, :count], found[:, :count])


def _measured(table: RowTable, of: ops.MeasureRows) -> ops.Measured:
    if not 1 <= of.most_used <= MOST_USED:
        raise InvalidArrayError(f"most used ids: expected 1 to {MOST_USED}, found {of.most_used}")
    stop = _stop(table, of.start, table.dim * table.dtype.itemsize)
    counts = np.zeros((_MOST - _LEAST) * OCTAVE, np.int64)
    zeros, total, least, most, finite = 0, 0.0, np.inf, 0.0, 0
    for _, values in _blocks(table, of.start, stop):
        norms = scratch(len(values), np.float64)
        row_norms(values, norms)
        norms = norms[np.isfinite(norms)]
        some = norms[norms > 0]
        bins = np.clip((some.view(np.int64) >> _FRACTION) - _FIRST, 0, counts.size - 1)
        counts += np.bincount(bins, minlength=counts.size)
        zeros, finite = zeros + norms.size - some.size, finite + norms.size
        total += float(norms.sum())
        least = min(least, float(norms.min(initial=np.inf)))
        most = max(most, float(norms.max(initial=0)))
    numbers = np.flatnonzero(counts)
    days, used, use = _used(table, slice(of.start, stop), of.most_used)
    return ops.Measured(
        *_then(table, stop),
        rows=stop - of.start,
        finite=finite,
        zeros=zeros,
        total=total,
        least=least,
        most=most,
        bins=numbers,
        counts=counts[numbers],
        days=days,
        used=used,
        use=use,
    )


def _used(table: RowTable, rows: slice, most: int) -> tuple[np.ndarray, ...]:
    """Return how many rows were unseen for 0, 1, ... days, and the most used: ids, their use."""
    use = table.use_of(rows)
    if use is None:
        return np.empty(0, np.int64), np.empty(0, np.uint64), np.empty((0, 4))
    show, click, unseen, score = use
    days = np.bincount(np.clip(unseen, 0, MOST_DAYS).astype(np.int64))
    if score.size > most:  # sorting all would take ten times as long
        some = np.flatnonzero(score >= np.partition(score, -most)[-most])
    else:
        some = np.arange(score.size)
    ids = table.index.ids(rows)[some]
    best = np.lexsort((ids, -score[some]))[:most]
    found = np.stack([show, click, unseen, score], axis=1)[some[best]]
    return days, ids[best], found.astype(np.float64)


def _ids(table: RowTable, of: ops.ListIds) -> ops.Listed:
    if not 0 <= of.part <= of.mask < 2**31 or of.mask & (of.mask + 1):
        raise InvalidArrayError(f"ids of {table.name!r}: part {of.part} by the mask {of.mask}")
    stop = _stop(table, of.start, np.dtype(np.uint64).itemsize)
    ids = table.index.ids(slice(of.start, stop))
    if of.mask:
        own = scratch(ids.size, np.uint64)
        ids = own[: take_range(read_only(ids), of.mask, of.part, own)]
    return ops.Listed(*_then(table, stop), ids)


def read_rows(table: RowTable, ids: np.ndarray) -> ops.RowsThere:
    """Return which ids have a row (bool ``(n,)``), and these rows; makes none, and counts none."""
    rows = table.index.find(ids)
    there = rows >= 0
    return ops.RowsThere(there, widened(table.column("values", rows[there])))
