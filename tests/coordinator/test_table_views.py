"""Tests of what views show of an embedding; servers in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.handles import shards_of
from psnb._src.coordinator.table_views import MOST_AGES, describe_table, look_up_row
from psnb._src.monitor import protocol
from psnb._src.monitor.updates import plain
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import ConfigurationError
from tests.client.in_process import ROWS, embedding, variable
from tests.monitor.test_protocol import fits

VECTORS = np.array([[3, 4], [4, 3], [-3, -4], [0, 0], [np.nan, 1]], np.float32)
IDS = [7, 8, 2**64 - 1, 10, 11]


def parameters(**more: Any) -> tuple[dict[str, Any], psnb.Embedding]:
    table = embedding(None, name="items", **more)
    table.assign(IDS, VECTORS)
    return {"items": shards_of(table), "v": shards_of(variable([1.0, 2.0], 1))}, table


def test_a_row_is_found_with_those_near_to_it() -> None:
    every, _ = parameters()
    found = look_up_row(every, "items", " 7 ")
    assert fits(plain(found), protocol.RowFound)
    assert (found["values"], found["norm"], found["unseen_days"]) == ([3, 4], 5, None)
    assert [near["id"] for near in found["nearest"]] == ["8", "10", str(2**64 - 1)]
    assert found["nearest"][0]["score"] == pytest.approx(0.96)
    assert [near["norm"] for near in found["nearest"]] == [5, 0, 5]


def test_its_use_is_told_where_it_is_recorded() -> None:
    every, table = parameters(accessor=CtrAccessor(), optimizer=psnb.SGD(0))
    table.end_day()
    table.push([8], VECTORS[:1], shows=[10])
    found = look_up_row(every, "items", "7")
    assert (found["unseen_days"], found["score"]) == (1, 0)
    assert [near["unseen_days"] for near in found["nearest"]] == [0, 1, 1]


@pytest.mark.parametrize("id_", ["10", "11", "-1"])
def test_rows_without_a_direction_and_negative_ids_are_found(id_: str) -> None:
    every, _ = parameters()
    found = look_up_row(every, "items", id_)
    assert fits(plain(found), protocol.RowFound)
    assert bool(found["nearest"]) == (id_ == "-1")


@pytest.mark.parametrize(
    ("table", "id_", "match"),
    [
        ("items", "77", "no row for id 77"),
        ("items", "seven", "is not an id"),
        ("items", str(2**64), "does not fit 64 bits"),
        ("item", "7", "did you mean 'items'"),
        ("v", "7", "no embedding 'v'"),
    ],
)
def test_what_is_not_there_is_refused(table: str, id_: str, match: str) -> None:
    every, _ = parameters()
    with pytest.raises(ConfigurationError, match=match):
        look_up_row(every, table, id_)


def test_ids_outside_of_fixed_rows_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"ids are 0 to {ROWS - 1}"):
        look_up_row({"e": shards_of(embedding(ROWS))}, "e", str(ROWS))


def test_a_table_is_described() -> None:
    every, table = parameters(accessor=CtrAccessor(), optimizer=psnb.SGD(0))
    for day in range(20):
        table.push([100 + day], VECTORS[:1])
        table.end_day()
    found = describe_table(every, "items")
    assert fits(plain(found), protocol.TableDescribed)
    assert (found["rows"], found["zeros"], found["not_finite"]) == (25, 1, 1)
    assert sum(found["counts"]) == 23
    assert len(found["ages"]) == MOST_AGES
    assert found["ages"][0] == (1, 1)
    assert sum(rows for _, rows in found["ages"]) == 25
    assert found["most_used"][0] == ("119", pytest.approx(0.1 * 0.98))
