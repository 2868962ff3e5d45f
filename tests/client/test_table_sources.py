"""Tests of the rows of tables in chunks; servers in this process."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.models.export.tables import quantized, restored
from psnb._src.models.table_rows import table_source
from psnb._src.server.optimizers import SGD
from psnb._src.server.tables import operations
from psnb._src.server.tables.row_use import CtrAccessor
from tests.client.in_process import DIM, ROWS, embedding

IDS = np.arange(50) * 2**40


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SEGMENT", 40)


def test_rows_of_any_ids_come_in_pieces() -> None:
    table = embedding(rows=None)
    expected = table.lookup(IDS)
    chunks = list(table_source(table).chunks())
    assert len(chunks) > 10
    ids = np.concatenate([chunk.ids for chunk in chunks])
    rows = np.concatenate([chunk.rows for chunk in chunks])
    order = np.argsort(ids)
    np.testing.assert_array_equal(ids[order], IDS.astype(np.uint64))
    np.testing.assert_array_equal(rows[order], expected)
    assert all(chunk.scores is None for chunk in chunks)


@pytest.mark.parametrize("rows", [ROWS, None])
def test_small_rows_of_half_width_are_exported_as_exactly_as_others(rows: int | None) -> None:
    table = embedding(rows, dtype="float16")
    ids = np.arange(ROWS)
    table.assign(ids, np.full((ROWS, DIM), 1e-6, np.float32))
    for chunk in table_source(table).chunks():
        assert chunk.rows.dtype == np.float32
        # A scale of float16 would be 0.
        found = restored(*quantized(chunk.rows, "int8"), chunk.rows.dtype)
        np.testing.assert_allclose(found, chunk.rows, rtol=0.01)


def test_fixed_rows_come_in_pieces_in_their_order() -> None:
    table = embedding()
    chunks = list(table_source(table).chunks())
    assert len(chunks) > 1
    ids = np.concatenate([chunk.ids for chunk in chunks])
    np.testing.assert_array_equal(ids, np.arange(ROWS))
    rows = np.concatenate([chunk.rows for chunk in chunks])
    np.testing.assert_array_equal(rows, table.lookup(np.arange(ROWS)))


def test_rows_have_their_scores_if_their_use_is_recorded() -> None:
    table = embedding(rows=None, optimizer=SGD(0.1), accessor=CtrAccessor())
    clicks = np.arange(50, dtype=np.float32)
    table.push(IDS, np.zeros((50, DIM), np.float32), clicks, clicks)
    found = {
        int(key): score
        for chunk in table_source(table).chunks()
        for key, score in zip(chunk.ids, chunk.scores, strict=True)  # type: ignore[arg-type]
    }
    assert [found[int(each)] for each in IDS] == pytest.approx(clicks)


def test_a_table_that_shrinks_while_it_is_read_is_read_as_it_was() -> None:
    table = embedding(rows=None, shards=1, optimizer=SGD(0.1), accessor=CtrAccessor())
    table.push(IDS, np.zeros((50, DIM), np.float32))
    chunks = table_source(table).chunks()
    found = [next(chunks)]
    table.shrink(delete_threshold=9.0)
    found += chunks
    assert sorted(np.concatenate([chunk.ids for chunk in found])) == sorted(IDS)
