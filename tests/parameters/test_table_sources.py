"""Tests of the rows of tables in pieces; servers in this process."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.client import requests
from psnb._src.models import shared
from psnb._src.models.shared import table_source
from psnb._src.server.optimizer import CtrAccessor
from psnb._src.server.optimizers import SGD
from tests.parameters.in_process import DIM, ROWS, embedding

IDS = np.arange(50) * 2**40


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (requests, shared):
        monkeypatch.setattr(module, "SEGMENT", 40)


def test_rows_of_any_ids_come_in_pieces() -> None:
    table = embedding(rows=None)
    expected = table.lookup(IDS)
    pieces = list(table_source(table).pieces())
    assert len(pieces) > 10
    ids = np.concatenate([piece.ids for piece in pieces])
    rows = np.concatenate([piece.rows for piece in pieces])
    order = np.argsort(ids)
    np.testing.assert_array_equal(ids[order], IDS.astype(np.uint64))
    np.testing.assert_array_equal(rows[order], expected)
    assert all(piece.scores is None for piece in pieces)


def test_fixed_rows_come_in_pieces_in_their_order() -> None:
    table = embedding()
    pieces = list(table_source(table).pieces())
    assert len(pieces) > 1
    ids = np.concatenate([piece.ids for piece in pieces])
    np.testing.assert_array_equal(ids, np.arange(ROWS))
    rows = np.concatenate([piece.rows for piece in pieces])
    np.testing.assert_array_equal(rows, table.lookup(np.arange(ROWS)))


def test_rows_have_their_scores_if_their_use_is_recorded() -> None:
    table = embedding(rows=None, optimizer=SGD(0.1), accessor=CtrAccessor())
    clicks = np.arange(50, dtype=np.float32)
    table.push(IDS, np.zeros((50, DIM), np.float32), clicks, clicks)
    found = {
        int(key): score
        for piece in table_source(table).pieces()
        for key, score in zip(piece.ids, piece.scores, strict=True)  # type: ignore[arg-type]
    }
    assert [found[int(each)] for each in IDS] == pytest.approx(clicks)


def test_a_table_that_shrinks_while_it_is_read_is_read_as_it_was() -> None:
    table = embedding(rows=None, shards=1, optimizer=SGD(0.1), accessor=CtrAccessor())
    table.push(IDS, np.zeros((50, DIM), np.float32))
    pieces = table_source(table).pieces()
    found = [next(pieces)]
    table.shrink(delete_threshold=9.0)
    found += pieces
    assert sorted(np.concatenate([piece.ids for piece in found])) == sorted(IDS)
