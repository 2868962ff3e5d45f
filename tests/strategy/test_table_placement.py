"""Which initial values are kept, and how tables are made again with them."""

from __future__ import annotations

import numpy as np
import pytest

import psnb
import psnb._src.strategy.tables
from psnb._src.server.operations import CreateDense
from psnb._src.strategy.tables import Creation, TablePlacement


def creation(shard: int, table: str, values: np.ndarray) -> Creation:
    return shard, CreateDense(table, values, psnb.SGD(1.0))


def made(tables: TablePlacement, *parameters: str) -> dict[str, np.ndarray]:
    optimizers = dict.fromkeys(parameters, psnb.SGD(0.5))
    found = tables.made_on({0, 1}, optimizers, {})
    assert all(each.optimizer == psnb.SGD(0.5) for _, each in found)
    return {each.name: each.values for _, each in found if isinstance(each, CreateDense)}


def test_values_are_kept_as_they_were() -> None:
    tables, values = TablePlacement(2), np.arange(4.0)
    tables.remember("v", [creation(0, "v", values)])
    values += 1  # they are the user's
    np.testing.assert_array_equal(made(tables, "v")["v"], np.arange(4.0))
    assert tables.unkept({0, 1}) == []


def test_beyond_a_limit_values_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psnb._src.strategy.tables, "MOST_KEPT", 40)
    tables = TablePlacement(2)
    tables.remember("a", [creation(0, "a", np.arange(4.0))])
    tables.remember("b", [creation(0, "b/0", np.arange(2.0)), creation(1, "b/2", np.ones(2))])
    assert tables.unkept({0}) == tables.unkept({1}) == ["b"]
    np.testing.assert_array_equal(made(tables, "a", "b")["b/0"], np.zeros(2))


@pytest.mark.parametrize("value", [0.0, -0.0, np.nan, 2.5])
def test_equal_values_take_no_memory(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(psnb._src.strategy.tables, "MOST_KEPT", 0)
    tables = TablePlacement(2)
    tables.remember("v", [creation(0, "v", np.full((3, 2), value, np.float32))])
    (kept,) = made(tables, "v").values()
    assert kept.strides == (0, 0)
    assert kept.tobytes() == np.full((3, 2), value, np.float32).tobytes()


def test_zeros_of_both_signs_are_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psnb._src.strategy.tables, "MOST_KEPT", 0)
    tables = TablePlacement(2)
    tables.remember("v", [creation(0, "v", np.array([0.0, -0.0]))])
    assert tables.unkept({0}) == ["v"]


def test_values_that_held_the_place_of_others_are_forgotten() -> None:
    tables = TablePlacement(2)
    tables.remember("v", [creation(0, "v", np.arange(4.0))])
    tables.forget_values("v")
    assert tables.unkept({0}) == ["v"]
    assert tables.unkept({1}) == []
