"""TableDescription: what the rows of an embedding are like at the moment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest

import msgspec
import numpy as np

from psnb._src.client.requests import on_table
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.tables.scan import scan
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.looking import edges_of
from psnb._src.utils.text import counted, size_text

MOST_BINS = 32
"""Of a histogram."""

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 8
"""Days and ids in a text."""


@dataclass(frozen=True, slots=True, eq=False)
class NormHistogram:
    """The Euclidean norms of rows.

    Attributes
    ----------
    edges : numpy.ndarray
        Where bins begin and end, float64 ``(bins + 1,)``: at most 32 bins, whose widths double with
        each power of two at most. Empty if no norm is above 0.
    counts : numpy.ndarray
        How many rows have a norm from an edge up to the next one, int64 ``(bins,)``.
    zeros : int
        Rows of zeros, which are in no bin.
    not_finite : int
        Rows with NaN or infinities, which are in no bin either.
    least, mean, most : float
        Of all norms that are finite; NaN if there are none.
    """

    edges: np.ndarray
    counts: np.ndarray
    zeros: int
    not_finite: int
    least: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True, eq=False)
class UsedRows:
    """The rows with the highest scores, the highest first; see `CtrAccessor`.

    Attributes
    ----------
    ids : numpy.ndarray
        uint64 ``(n,)``.
    show, click, unseen_days, score : numpy.ndarray
        As in `RowStatistics`, float64 ``(n,)``.
    """

    ids: np.ndarray
    show: np.ndarray
    click: np.ndarray
    unseen_days: np.ndarray
    score: np.ndarray


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TableDescription:
    """What the rows of an embedding are like; made by `Embedding.describe`.

    Attributes
    ----------
    name : str
        The embedding's.
    dim : int
        Floats a row.
    dtype : numpy.dtype
        In which the rows are kept.
    rows, waiting, nbytes, index_nbytes : int
        As in `EmbeddingStatistics`; rows are those that were read for the rest.
    norms : NormHistogram
        The norms of the rows.
    unseen_days : numpy.ndarray or None
        How many rows were last pushed 0, 1, 2, ... days ago, int64; the last number is of those
        that were not pushed for 4,096 days and more. None without an `accessor`.
    most_used : UsedRows or None
        The most used rows; None without an `accessor`.
    """

    name: str
    dim: int
    dtype: np.dtype
    rows: int
    waiting: int
    nbytes: int
    index_nbytes: int
    norms: NormHistogram
    unseen_days: np.ndarray | None
    most_used: UsedRows | None

    def __repr__(self) -> str:
        """Return lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        norms = self.norms
        lines = [
            f"embedding {self.name!r}: {counted(self.rows, 'row')} of {self.dtype}[{self.dim}], "
            f"{size_text(self.nbytes)} (ids {size_text(self.index_nbytes)}), "
            f"{self.waiting:,} waiting",
            f"norms: mean {norms.mean:.4g}, {norms.least:.4g} to {norms.most:.4g}"
            if self.rows > norms.not_finite
            else "norms: none",
        ]
        if norms.counts.size:
            most = int(norms.counts.max())
            bars = "".join(_BARS[-(-8 * int(count) // most)] for count in norms.counts)
            lines.append(f"  {norms.edges[0]:.3g} |{bars}| {norms.edges[-1]:.3g}")
        if norms.zeros or norms.not_finite:
            lines.append(f"  {norms.zeros:,} of zeros, {norms.not_finite:,} not finite")
        if self.unseen_days is not None:
            days = np.flatnonzero(self.unseen_days).tolist()
            ages = [f"{day}: {self.unseen_days[day]:,}" for day in days[:_SHOWN]]
            more = [f"more: {self.unseen_days[days[_SHOWN] :].sum():,}"] if days[_SHOWN:] else []
            lines.append(f"rows by days unseen: {', '.join(ages + more) or 'none'}")
        if self.most_used is not None and self.most_used.ids.size:
            used = zip(self.most_used.ids[:_SHOWN], self.most_used.score, strict=False)
            lines.append("most used: " + ", ".join(f"{id_} ({score:.4g})" for id_, score in used))
        return lines


def describe_table(shards: SparseShards, most_used: int) -> TableDescription:
    """Return what the rows of an embedding are like; see `Embedding.describe`."""

    def fold(before: ops.Measured | None, new: ops.Measured) -> ops.Measured:
        return new if before is None else _added(before, new, most_used)

    found = scan(shards, lambda start, to: ops.MeasureRows(start, to, most_used), fold)
    whole = reduce(lambda one, other: _added(one, other, most_used), found)
    requests = [on_table(*table, ops.DescribeRows()) for table in shards.tables]
    sizes = shards.server_client.call(requests)
    known = shards.accessor is not None
    return TableDescription(
        name=shards.name,
        dim=shards.dim,
        dtype=shards.spec.dtype,
        rows=whole.rows,
        waiting=sum(each["waiting"] for each in sizes),
        nbytes=sum(each["nbytes"] for each in sizes),
        index_nbytes=sum(each["index_nbytes"] for each in sizes),
        norms=_histogram(whole),
        unseen_days=whole.days if known else None,
        most_used=UsedRows(whole.used, *whole.use.T) if known else None,
    )


def _added(one: ops.Measured, other: ops.Measured, most_used: int) -> ops.Measured:
    bins, at = np.unique(np.concatenate([one.bins, other.bins]), return_inverse=True)
    counts = np.zeros(bins.size, np.int64)
    np.add.at(counts, at, np.concatenate([one.counts, other.counts]))
    days = [a + b for a, b in zip_longest(one.days, other.days, fillvalue=0)]
    used, use = np.concatenate([one.used, other.used]), np.concatenate([one.use, other.use])
    order = np.lexsort((used, -use[:, 3]))
    _, first = np.unique(used[order], return_index=True)  # one may have come back meanwhile
    best = order[np.sort(first)][:most_used]
    return msgspec.structs.replace(
        other,
        rows=one.rows + other.rows,
        finite=one.finite + other.finite,
        zeros=one.zeros + other.zeros,
        total=one.total + other.total,
        least=min(one.least, other.least),
        most=max(one.most, other.most),
        bins=bins,
        counts=counts,
        days=np.array(days, np.int64),
        used=used[best],
        use=use[best],
    )


def _histogram(of: ops.Measured) -> NormHistogram:
    """Return the bins of norms, joined until there are few of them."""
    edges, counts = np.empty(0), np.empty(0, np.int64)
    if of.bins.size:
        first, last, width = int(of.bins[0]), int(of.bins[-1]), 1
        while last // width - first // width >= MOST_BINS:
            width *= 2
        start = first // width
        counts = np.zeros(last // width - start + 1, np.int64)
        np.add.at(counts, of.bins // width - start, of.counts)
        edges = edges_of((start + np.arange(counts.size + 1)) * width)
    some = of.finite > 0
    return NormHistogram(
        edges=edges,
        counts=counts,
        zeros=of.zeros,
        not_finite=of.rows - of.finite,
        least=of.least if some else np.nan,
        mean=of.total / of.finite if some else np.nan,
        most=of.most if some else np.nan,
    )
