"""Tests of questions about all rows of an embedding; servers in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.requests import Request
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import (
    ConfigurationError,
    IdOutOfRangeError,
    InvalidArrayError,
    ServerLostError,
)
from tests.client.in_process import DIM, KINDS, ROWS, SHARDS, InProcess, embedding

IDS = np.array([0, 5, 2**63, 2**64 - 1, 9, 12], np.uint64)
METRICS = pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, of which even these tables have several."""
    monkeypatch.setattr(ops, "SEGMENT", 160)


def filled(shards: int = 3, count: int = 100, **more: Any) -> tuple[psnb.Embedding, Any, Any]:
    ids = np.arange(count, dtype=np.uint64) << np.uint64(50)
    rows = np.random.default_rng(1).normal(size=(count, DIM)).astype(np.float32)
    table = embedding(None, shards, **more)
    table.assign(ids, rows)
    return table, ids, rows


def brute(rows: np.ndarray, query: np.ndarray, metric: str) -> np.ndarray:
    wide, vector = rows.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        return np.linalg.norm(wide - vector, axis=1)
    scores = wide @ vector
    if metric == "cosine":
        scores /= np.linalg.norm(wide, axis=1) * np.linalg.norm(vector)
    return scores


class Between(InProcess):
    """Servers of which something else is asked before the third question of a kind."""

    def __init__(self, shards: int, kind: type) -> None:
        super().__init__(shards)
        self._kind, self.left, self.then = kind, 2, lambda: None

    def attempt(self, requests: Sequence[Request], seen: dict[Any, int] | None = None) -> list[Any]:
        if any(isinstance(getattr(r.operation, "operation", None), self._kind) for r in requests):
            self.left -= 1
            if self.left == -1:
                self.then()
        return super().attempt(requests, seen)


@SHARDS
@METRICS
def test_the_nearest_are_those_of_numpy(shards: int, metric: str) -> None:
    table, ids, rows = filled(shards)
    query = np.array([0.3, -1.2])
    found, scores = table.nearest(query, k=7, metric=metric)
    expected = brute(rows, query, metric)
    order = np.argsort(expected if metric == "l2" else -expected)[:7]
    assert found.tolist() == ids[order].tolist()
    np.testing.assert_allclose(scores, expected[order], rtol=1e-12)


@METRICS
def test_several_queries_find_what_each_finds(metric: str) -> None:
    table, _, _ = filled()
    queries = np.random.default_rng(2).normal(size=(130, DIM))
    found, scores = table.nearest(queries, k=3, metric=metric)
    each = [table.nearest(query, k=3, metric=metric) for query in queries]
    np.testing.assert_array_equal(found, [ids for ids, _ in each])
    np.testing.assert_array_equal(scores, [some for _, some in each])


def test_an_id_is_no_neighbour_of_itself() -> None:
    table, ids, rows = filled()
    found, _ = table.nearest(ids[:4], k=99, metric="dot")
    assert found.shape == (4, 99)
    for own, neighbours, row in zip(ids[:4], found, rows[:4], strict=True):
        order = ids[np.argsort(-brute(rows, row, "dot"))]
        assert neighbours.tolist() == order[order != own].tolist()


def test_an_id_gives_one_row_of_results_and_ids_several() -> None:
    table, ids, _ = filled()
    one, _ = table.nearest(int(ids[3]), k=2)
    several, scores = table.nearest([int(ids[3])], k=2)
    assert one.tolist() == several[0].tolist()
    assert scores.shape == (1, 2)
    assert [each.shape for each in table.nearest([], k=2)] == [(0, 2), (0, 2)]


@SHARDS
def test_of_equally_near_rows_smaller_ids_come_first(shards: int) -> None:
    table = embedding(None, shards)
    table.assign(IDS, np.ones((IDS.size, DIM), np.float32) / 3)
    found, scores = table.nearest([1.0, 2.0], k=4)
    assert found.tolist() == sorted(IDS.tolist())[:4]
    assert np.unique(scores).size == 1


def test_there_are_as_many_as_there_are_rows() -> None:
    table, _, _ = filled(count=4)
    assert table.nearest([1.0, 0.0], k=10)[0].shape == (4,)
    assert embedding(None).nearest([1.0, 0.0])[0].shape == (0,)


def test_rows_that_are_not_finite_are_left_out() -> None:
    table, ids, rows = filled(count=4)
    rows[1, 0], rows[2, 1] = np.nan, np.inf
    table.assign(ids, rows)
    for metric in ("cosine", "dot", "l2"):
        found, _ = table.nearest([1.0, 0.0], metric=metric)
        assert set(found.tolist()) == {int(ids[0]), int(ids[3])}


def test_a_row_of_zeros_has_a_cosine_of_zero() -> None:
    table = embedding(None)
    table.assign([1, 2, 3], np.array([[0, 0], [1, 0], [-1, 0]], np.float32))
    found, scores = table.nearest([2.0, 0.0])
    assert (found.tolist(), scores.tolist()) == ([2, 1, 3], [1, 0, -1])


def test_padding_is_no_neighbour() -> None:
    table = embedding(ROWS)
    table._shards.padding_idx = 3
    found, _ = table.nearest(4, k=ROWS)
    assert sorted(found.tolist()) == [0, 1, 2, 5, 6, 7, 8, 9]
    with pytest.raises(ConfigurationError, match="is padding"):
        table.nearest(3)
    (_, rows), *_ = table.items()
    assert not rows[3].any()


@pytest.mark.parametrize("kept", [{"dtype": "bfloat16"}, {"dtype": "float16"}, {"storage": "disk"}])
def test_rows_of_half_width_and_on_disk_are_searched(kept: dict[str, str]) -> None:
    table, ids, _ = filled(**kept)
    rows = table.lookup(ids)
    found, scores = table.nearest(ids[3], k=5)
    expected = brute(rows, rows[3], "cosine")
    order = np.argsort(-expected)[1:6]
    assert found.tolist() == ids[order].tolist()
    np.testing.assert_allclose(scores, expected[order])
    for some, values in table.items(chunk=30):
        np.testing.assert_array_equal(values, table.lookup(some))
    assert table.describe().dtype == kept.get("dtype", "float32")


def test_tables_of_float64_are_searched() -> None:
    table = embedding(None, dtype="float64")
    table.assign([1, 2], np.array([[1e200, 0], [1, 1]]))
    found, scores = table.nearest([1.0, 1.0])
    assert (found.tolist(), scores[0]) == ([2], pytest.approx(1))  # 1e200 squared is infinite


@KINDS
def test_nothing_is_made_or_counted(rows: int | None) -> None:
    table = embedding(rows, admission=None)
    before = table.statistics()
    table.nearest([1.0, 0.0])
    list(table.items())
    table.describe()
    assert table.statistics() == before


@pytest.mark.parametrize(
    ("query", "error", "match"),
    [
        (77, ConfigurationError, "1 of 1 ids have no row, the first is 77: give vectors"),
        ([[1, 2]], InvalidArrayError, "expected an id or ids"),
        ([1.0, 2.0, 3.0], InvalidArrayError, r"expected a vector \(2,\)"),
        (1.5, InvalidArrayError, "expected a vector"),
        ([np.nan, 1.0], InvalidArrayError, "not finite"),
        ([0.0, 0.0], InvalidArrayError, "vector 0 is all zeros"),
        ("seven", InvalidArrayError, "psnb.hash_ids"),
        (True, InvalidArrayError, "expected integers"),
        ([[1.0], [1.0, 2.0]], InvalidArrayError, "expected ids or vectors"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(query: Any, error: type, match: str) -> None:
    table, _, _ = filled()
    with pytest.raises(error, match=match):
        table.nearest(query)


def test_other_arguments_are_checked() -> None:
    table, _, _ = filled()
    with pytest.raises(ConfigurationError, match=r"metric must be 'cosine', 'dot' or 'l2'"):
        table.nearest([1.0, 0.0], metric="euclidean")
    for k in (0, -1, 1.5, 2**40):
        with pytest.raises(ConfigurationError, match="k must be"):
            table.nearest([1.0, 0.0], k=k)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="chunk must be"):
        table.items(chunk=0)
    with pytest.raises(ConfigurationError, match="most_used must be"):
        table.describe(most_used=101)
    with pytest.raises(IdOutOfRangeError):
        embedding(ROWS).nearest(ROWS)


@SHARDS
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_items_are_all_rows_once(shards: int, chunk: int) -> None:
    table, ids, rows = filled(shards)
    found = list(table.items(chunk=chunk))
    assert max(len(some) for some, _ in found) <= chunk
    order = np.argsort(all_ids := np.concatenate([some for some, _ in found]))
    np.testing.assert_array_equal(all_ids[order], ids)
    np.testing.assert_array_equal(np.concatenate([some for _, some in found])[order], rows)


def test_items_of_fixed_rows_ascend() -> None:
    table = embedding(ROWS)
    ids, rows = (np.concatenate(each) for each in zip(*table.items(chunk=3), strict=True))
    assert ids.tolist() == list(range(ROWS))
    np.testing.assert_array_equal(rows, table.lookup(ids))


def test_ids_come_in_parts_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psnb._src.client.tables.scan._MOST_IDS", 8)
    table, ids, _ = filled()
    found = [some for some, _ in table.items()]
    assert len(found) > 10
    assert sorted(np.concatenate(found).tolist()) == ids.tolist()


def test_rows_may_be_removed_while_they_are_searched() -> None:
    transport = Between(1, ops.FindNearest)
    table, ids, _ = filled(1, transport=transport, accessor=CtrAccessor(), optimizer=psnb.SGD(0))
    table.push(ids[50:], np.zeros((50, DIM), np.float32), shows=[100] * 50)
    transport.then = table.shrink
    found, _ = table.nearest([1.0, 0.0], k=100)
    assert set(found.tolist()) == set(ids[50:].tolist())


def test_rows_may_be_removed_while_ids_are_read() -> None:
    transport = Between(1, ops.ListIds)
    table, ids, _ = filled(1, transport=transport, accessor=CtrAccessor(), optimizer=psnb.SGD(0))
    table.push(ids[50:], np.zeros((50, DIM), np.float32), shows=[100] * 50)
    transport.then = table.shrink
    found = np.concatenate([some for some, _ in table.items(chunk=9)])
    assert sorted(found.tolist()) == ids[50:].tolist()


def test_rows_may_be_removed_while_they_are_read() -> None:
    transport = Between(1, ops.ReadRows)
    table, ids, _ = filled(1, transport=transport, accessor=CtrAccessor(), optimizer=psnb.SGD(0))
    table.push(ids[50:], np.zeros((50, DIM), np.float32), shows=[100] * 50)
    transport.then = table.shrink
    found = np.concatenate([some for some, _ in table.items(chunk=9)]).tolist()
    assert len(set(found)) == len(found)
    assert {*ids[50:].tolist()} <= set(found) < set(ids.tolist())


def test_new_rows_disturb_no_question() -> None:
    transport = Between(1, ops.FindNearest)
    table, _, _ = filled(1, transport=transport)
    transport.then = lambda: table.assign([1], np.array([[9, 9]], np.float32))
    found, _ = table.nearest([1.0, 1.0], k=1, metric="dot")
    assert found.tolist() == [1]


def test_a_question_that_finds_no_rest_ends() -> None:
    transport = Between(1, ops.FindNearest)
    table, _, _ = filled(1, transport=transport, accessor=CtrAccessor())

    def again() -> None:
        table.shrink(0)
        transport.left = 1

    transport.then = again
    with pytest.raises(ServerLostError, match="removed or moved to another server 5 times"):
        table.nearest([1.0, 0.0])


@SHARDS
def test_a_description_counts_rows_by_their_norms(shards: int) -> None:
    table, ids, rows = filled(shards)
    rows[7], rows[8, 0] = 0, np.nan
    table.assign(ids, rows)
    found = table.describe()
    norms = np.linalg.norm(np.delete(rows, 8, 0).astype(np.float64), axis=1)
    assert (found.rows, found.norms.zeros, found.norms.not_finite) == (100, 1, 1)
    assert (found.name, found.dim, found.dtype) == ("e", DIM, np.float32)
    counts, _ = np.histogram(norms[norms > 0], found.norms.edges)
    assert found.norms.counts.tolist() == counts.tolist()
    assert 10 < counts.size <= 32
    np.testing.assert_allclose(
        [found.norms.least, found.norms.mean, found.norms.most], [0, norms.mean(), norms.max()]
    )
    assert found.nbytes == table.statistics().nbytes
    assert found.unseen_days is found.most_used is None
    assert "100 rows of float32[2]" in repr(found)


@pytest.mark.parametrize("norms", [[1e-30, 1e30], [3.0, 3.0], [1.0, 1.01], [1e-3, 1e3]])
def test_histograms_have_few_bins(norms: list[float]) -> None:
    table = embedding(None)
    table.assign([1, 2], np.array([[norm, 0] for norm in norms], np.float32))
    found = table.describe().norms
    assert found.counts.size <= 32
    assert found.counts.sum() == 2
    inside = norms[0] > 2.0**-64 and norms[1] < 2.0**64
    assert not inside or found.edges[0] <= min(norms) <= max(norms) <= found.edges[-1]


def test_a_description_of_nothing() -> None:
    found = embedding(None, accessor=CtrAccessor()).describe()
    assert (found.rows, found.norms.counts.size) == (0, 0)
    assert np.isnan(found.norms.mean)
    assert found.most_used is not None
    assert found.most_used.ids.size == 0
    assert "norms: none" in repr(found)


@SHARDS
def test_a_description_tells_ages_and_the_most_used(shards: int) -> None:
    table, ids, _ = filled(shards, accessor=CtrAccessor(), optimizer=psnb.SGD(0))
    table.end_day()
    table.end_day()
    shows = np.arange(30)[::-1] // 2
    table.push(ids[:30], np.zeros((30, DIM), np.float32), shows=shows)
    found = table.describe(most_used=5)
    assert found.unseen_days is not None
    assert found.most_used is not None
    assert found.unseen_days.tolist() == [30, 0, 70]
    assert found.most_used.ids.tolist() == ids[:5].tolist()
    assert found.most_used.show.tolist() == [14, 14, 13, 13, 12]
    np.testing.assert_allclose(found.most_used.score, found.most_used.show / 10)
    assert "rows by days unseen: 0: 30, 2: 70" in repr(found)
