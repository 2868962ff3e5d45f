"""Which initial values are kept, and how tables are made again with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import psnb
import psnb._src.strategy.tables
from psnb._src.client.arguments import NonFinite
from psnb._src.client.requests import Request
from psnb._src.placement.layout import Layout, ServerAddress, ShardId, ShardPlacement
from psnb._src.server.operations import CreateDense
from psnb._src.strategy.tables import TableFactory


class Given:
    """Servers with two shards, and what was asked of them."""

    name = "s"
    shards = (ShardId("s", 0), ShardId("s", 1))
    layout = Layout("s", 1, 0, 10.0, (ShardPlacement(ServerAddress("tcp://a", "a")),) * 2)

    def __init__(self, parts: int = 1) -> None:
        self.asked: list[Request] = []
        self.tables = TableFactory(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            lambda shape, dtype: parts if shape[0] > 3 else 1,
            False,
            lambda parameter: None,
        )

    def call(self, requests: Sequence[Request]) -> None:
        self.asked += requests

    def variable(self, name: str, values: np.ndarray) -> None:
        self.tables.variable(name, values, psnb.SGD(1.0), NonFinite.REFUSE)

    def made_again(self, *parameters: str) -> dict[str, np.ndarray]:
        """Return the values with which tables are made again."""
        self.asked.clear()
        self.tables.make_again({0, 1}, dict.fromkeys(parameters, psnb.SGD(0.5)), {})
        found = [each.operation for each in self.asked]
        made = [each for each in found if isinstance(each, CreateDense)]
        assert all(each.optimizer == psnb.SGD(0.5) for each in made)
        return {each.name: each.values for each in made}


def test_values_are_kept_as_they_were() -> None:
    given, values = Given(), np.arange(4.0)
    given.variable("v", values)
    values += 1  # they are the user's
    np.testing.assert_array_equal(given.made_again("v")["v"], np.arange(4.0))
    assert given.tables.unkept({0, 1}) == []


def test_beyond_a_limit_values_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psnb._src.strategy.tables, "MOST_KEPT", 40)
    given = Given(parts=2)
    given.variable("a", np.arange(2.0))
    given.variable("b", np.arange(4.0))
    assert given.tables.unkept({0}) == given.tables.unkept({1}) == ["b"]
    again = given.made_again("a", "b")
    np.testing.assert_array_equal(again["a"], np.arange(2.0))
    np.testing.assert_array_equal(again["b/0"], np.zeros(2))


@pytest.mark.parametrize("value", [0.0, -0.0, np.nan, 2.5])
def test_equal_values_take_no_memory(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(psnb._src.strategy.tables, "MOST_KEPT", 0)
    given = Given()
    given.variable("v", np.full((3, 2), value, np.float32))
    (kept,) = given.made_again("v").values()
    assert kept.strides == (0, 0)
    assert kept.tobytes() == np.full((3, 2), value, np.float32).tobytes()


def test_zeros_of_both_signs_are_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psnb._src.strategy.tables, "MOST_KEPT", 0)
    given = Given()
    given.variable("v", np.array([0.0, -0.0]))
    assert given.tables.unkept({0}) == ["v"]


def test_values_that_held_the_place_of_others_are_forgotten() -> None:
    given = Given()
    given.variable("v", np.arange(4.0))
    given.tables.forget_values("v")
    assert given.tables.unkept({0}) == ["v"]
    assert given.tables.unkept({1}) == []


def test_only_the_tables_of_lost_shards_are_made_again_with_values_that_are_given() -> None:
    given = Given(parts=2)
    given.variable("v", np.arange(4.0))
    given.asked.clear()
    given.tables.make_again({1}, {}, {(1, "v/2"): np.ones(2)})
    [asked] = given.asked
    assert asked.to == ShardId("s", 1)
    assert isinstance(asked.operation, CreateDense)
    np.testing.assert_array_equal(asked.operation.values, np.ones(2))
