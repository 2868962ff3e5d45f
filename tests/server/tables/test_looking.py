"""Tests of questions about all rows of a shard: what is not a question, and how they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server.making import begins_scan, takes_long, warm_up_scans
from psnb._src.server.operations import OnShard
from psnb._src.server.scanning import Metric, keep_nearest
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.looking import MOST_QUERIES, edges_of
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import IdOutOfRangeError, InvalidArrayError
from tests.server.no_memory import Allocator

DIM = 16
QUERY = np.ones((1, DIM))


def table(rows: int | None = None, count: int = 10, dtype: str = "float32") -> SparseTable:
    made = SparseTable("e", DIM, rows, 0, 1, dtype, Uniform(), 3, None)
    if rows is None:
        made.lookup(np.arange(count, dtype=np.uint64))
    return made


def nearest(start: int = 0, numbering: str = "", **of: Any) -> ops.FindNearest:
    given = {"queries": QUERY, "count": 3, "metric": 0, **of}
    return ops.FindNearest(start, numbering, **given)


@pytest.mark.parametrize(
    "of",
    [
        nearest(queries=np.ones((1, DIM), np.float32)),
        nearest(queries=np.ones(DIM)),
        nearest(queries=np.ones((1, DIM - 1))),
        nearest(queries=np.ones((0, DIM))),
        nearest(queries=np.ones((MOST_QUERIES + 1, DIM))),
        nearest(queries=[[1.0] * DIM]),
        nearest(queries=QUERY * np.nan),
        nearest(count=0),
        nearest(metric=3),
        nearest(count=ops.MOST_FOUND + 1),
        ops.MeasureRows(0, "", 0),
        ops.MeasureRows(0, "", 101),
        ops.ListIds(0, "", 2, 1),
        ops.ListIds(0, "", -1, 1),
        ops.ListIds(0, "", 0, 2),
        ops.ReadRows(np.arange(3)),
        ops.ReadRows(np.zeros((1, 1), np.uint64)),
    ],
    ids=repr,
)
def test_what_would_be_misread_is_refused(of: ops.TableOperation) -> None:
    with pytest.raises(InvalidArrayError):
        table().run(of)


def test_a_piece_beyond_the_rows_is_refused() -> None:
    made = table()
    for start in (11, -1):
        with pytest.raises(InvalidArrayError, match=f"{start} is not 0 to 10"):
            made.run(nearest(start, made.index.numbering))


def test_a_piece_of_another_numbering_is_refused() -> None:
    one, other = table(), table()
    assert one.run(nearest(3, other.index.numbering)) is None
    assert one.run(nearest(3, one.index.numbering)) is not None
    numbering = one.index.numbering
    one.clear()
    assert one.run(nearest(3, numbering)) is None


def test_fixed_rows_have_one_numbering_everywhere() -> None:
    one, other = table(10), table(10)
    assert one.run(nearest(3, other.index.numbering)).ids.tolist() != []
    with pytest.raises(IdOutOfRangeError):
        one.run(ops.ReadRows(np.array([10], np.uint64)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_more_queries_have_shorter_pieces(dtype: str) -> None:
    made = table(200_000, dtype=dtype)
    one = made.run(nearest()).then
    assert one == ops.SEGMENT // (DIM * np.dtype(dtype).itemsize)
    assert made.run(nearest(queries=np.ones((4, DIM)))).then == one
    assert made.run(nearest(queries=np.ones((64, DIM)))).then == one // 16
    last = made.run(nearest(200_000 - 5, made.index.numbering, count=9))
    assert (last.then, last.ids.shape) == (None, (1, 5))


def test_without_memory_nothing_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    made, allocator = table(), Allocator(monkeypatch)
    for of in (nearest(), ops.MeasureRows(0, "", 1), ops.ListIds(0, "", 0, 1)):
        with allocator.fails(0), pytest.raises(MemoryError):
            made.run(of)


def test_only_the_first_piece_waits_for_loops_to_be_compiled() -> None:
    warm_up_scans()
    first, next_one = (OnShard(0, ops.on_table("e", nearest(start, "some"))) for start in (0, 1))
    assert begins_scan(first)
    assert takes_long(first)
    assert not takes_long(next_one)


@pytest.mark.parametrize("metric", Metric)
def test_equal_rows_have_equal_keys(metric: Metric) -> None:
    row = np.random.default_rng(0).normal(size=DIM).astype(np.float32)
    rows, ids = np.tile(row, (1001, 1)), np.arange(1001, dtype=np.uint64)[::-1].copy()
    queries = np.random.default_rng(1).normal(size=(3, DIM))
    keys, found = np.empty((3, 20)), np.empty((3, 20), np.uint64)
    assert keep_nearest(rows, ids, queries, int(metric), keys, found, 0) == 20
    for some, own in zip(keys, found, strict=True):
        assert np.unique(some).size == 1
        assert sorted(own.tolist()) == list(range(20))


def test_edges_are_those_of_the_bins() -> None:
    bins = np.arange(0, 8192, 7)
    edges = edges_of(bins)
    assert (np.diff(edges) > 0).all()
    assert (edges[0], edges_of(np.array([64 * 64 + 32]))[0]) == (2.0**-64, 1.5)
