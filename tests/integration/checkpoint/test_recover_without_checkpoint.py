"""Servers that are killed while there is no checkpoint: what is said, and beginning anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.strategy import tables
from psnb._src.strategy.tables import TableFactory
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import kill
from tests.integration.helpers import wait_until_servers

IDS = np.arange(20)
RATE = 0.5


@pytest.fixture(scope="module")
def pair() -> Iterator[Client]:
    """A worker and two servers; nannies mend what the tests break."""
    with psnb.local_cluster(workers=1, servers=2) as client:
        yield client


@pytest.fixture
def strategy(pair: Client) -> Iterator[psnb.ParameterServerStrategy]:
    wait_until_servers(pair, 2)
    cut = psnb.FixedShards(2)
    with psnb.ParameterServerStrategy(
        pair, partitioner=lambda shape, dtype: cut(shape, dtype) if shape[0] == 10 else 1
    ) as strategy:
        yield strategy


class Model:
    """A variable on each server, one over both, and two embeddings over both."""

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self.strategy = strategy
        self.first = strategy.variable(np.arange(4.0), "first", psnb.Momentum(1.0, 0.5))
        self.second = strategy.variable(np.ones(4), "second", psnb.Momentum(1.0, 0.5))
        self.wide = strategy.variable(np.arange(10.0), "wide", psnb.SGD(1.0))
        self.users = strategy.embedding("users", 2, 20, optimizer=psnb.Adagrad(RATE))
        self.items = strategy.embedding("items", 2, optimizer=psnb.Adagrad(RATE))
        variables, tables = self.variables, (self.users, self.items)

        def step() -> None:
            for variable in variables:
                variable.push(np.ones(variable.shape))
            for table in tables:
                table.push(IDS, np.ones((IDS.size, 2), np.float32))

        self.step = step

    @property
    def variables(self) -> list[psnb.Variable]:
        return [self.first, self.second, self.wide]

    def values(self) -> list[np.ndarray]:
        tables = [table.lookup(IDS) for table in (self.users, self.items)]
        return [*(variable.read() for variable in self.variables), *tables]

    def lose(self) -> None:
        """Kill the server of the first variable, and wait until that is known."""
        layout = self.strategy._core.layout
        place = layout.placements[self.first._shards.tables[0][0].number]
        assert place.primary is not None
        kill(self.strategy.client, place.primary.address)
        wait_until(lambda: self.strategy._core.layout.incomplete, "the server is lost")


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for mine, yours in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, yours)


def test_everything_starts_over_in_place(strategy: psnb.ParameterServerStrategy) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    begun = model.values()
    coordinator.schedule(model.step).fetch(DEADLINE)
    stepped = model.values()
    coordinator.schedule(model.step).fetch(DEADLINE)
    assert model.users.optimizer is not None
    model.users.optimizer.learning_rate = RATE  # as it was: set live, it stays
    model.lose()
    assert strategy.recover(initialize=True) == {}
    assert_same(model.values(), begun)
    coordinator.schedule(model.step).fetch(DEADLINE)
    assert_same(model.values(), stepped)  # the optimizers' state has begun anew as well


def test_only_what_was_lost_may_start_over(strategy: psnb.ParameterServerStrategy) -> None:
    model = Model(strategy)
    begun = model.values()
    model.step()
    model.step()
    trained = model.values()
    assert model.items.optimizer is not None
    model.items.optimizer.learning_rate = 0.25
    model.lose()
    with pytest.raises(errors.ConfigurationError, match="'second' has lost nothing"):
        strategy.recover(initialize={"second": np.zeros(4)}, consistent=False)
    given = np.full(10, 7.0)
    strategy.recover(initialize={"wide": given}, consistent=False)
    first, second, wide, *tables = model.values()
    np.testing.assert_array_equal(first, begun[0])
    np.testing.assert_array_equal(second, trained[1])
    halves = [
        np.concatenate(each) for each in ((given[:5], trained[2][5:]), (trained[2][:5], given[5:]))
    ]
    assert wide.tolist() in [half.tolist() for half in halves]
    for table, new, old in zip(tables, begun[3:], trained[3:], strict=True):
        anew = (table == new).all(axis=1)
        assert anew.any()
        assert not anew.all()
        np.testing.assert_array_equal(table[~anew], old[~anew])
    assert model.items.optimizer.learning_rate == 0.25  # of the tables made anew, too


def test_a_shard_that_came_back_without_its_tables_starts_over(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    model = Model(strategy)
    begun = model.values()
    model.step()
    trained = model.values()
    core, shard = strategy._core, model.first._shards.tables[0][0].number
    core.server_client.call(core.tables.drops([shard]))
    with pytest.raises(errors.ConfigurationError, match=r"strategy\.recover\(\) brings it back"):
        model.first.read()
    strategy.recover(initialize=True, consistent=False)
    np.testing.assert_array_equal(model.first.read(), begun[0])
    np.testing.assert_array_equal(model.second.read(), trained[1])


def test_values_that_are_not_kept_must_be_given(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_KEPT", 0)  # then only constants are
    model = Model(strategy)
    begun = model.values()
    model.step()
    trained = model.values()
    model.lose()
    with pytest.raises(errors.ServerLostError, match=r"initialize={'first': .*}"):
        model.first.read()
    with pytest.raises(errors.ConfigurationError, match=r"'first', 'wide' are not kept") as raised:
        strategy.recover(initialize=True)
    assert "recover(initialize={'first': array of shape (4,)" in str(raised.value)
    np.testing.assert_array_equal(model.second.read(), trained[1])  # nothing was changed
    strategy.recover(initialize={"first": begun[0] + 1, "wide": begun[2]})
    assert_same(model.values(), [begun[0] + 1, *begun[1:]])


def test_after_an_interrupt_the_values_are_needed_still(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_KEPT", 0)
    model = Model(strategy)
    model.lose()
    given = {"first": np.full(4, 7.0), "wide": np.full(10, 8.0)}

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(TableFactory, "make_again", interrupted)
        with pytest.raises(KeyboardInterrupt):
            strategy.recover(initialize=given, consistent=False)
    # The shards are on a server again, without tables.
    with pytest.raises(errors.ConfigurationError, match=r"'first', 'wide' are not kept"):
        strategy.recover(initialize=True, consistent=False)
    strategy.recover(initialize=given, consistent=False)
    np.testing.assert_array_equal(model.first.read(), given["first"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"frist": np.zeros(4)}, "no variable 'frist'"),
        ({"users": np.zeros((20, 2))}, "'users' is an embedding, whose rows begin by"),
        ({"first": np.zeros(3)}, r"variable 'first': expected shape \(4,\), found \(3,\)"),
        ("yes", "initialize must be True"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_ends(
    strategy: psnb.ParameterServerStrategy, wrong: object, told: str
) -> None:
    model = Model(strategy)
    model.step()
    trained = model.values()
    with pytest.raises(errors.ConfigurationError, match=told):
        strategy.recover(initialize=wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigurationError, match="a checkpoint or initialize="):
        strategy.recover("somewhere", initialize=True)
    assert_same(model.values(), trained)


def test_error_failures_and_event_say_what_is_lost_and_the_ways_on(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    model.lose()
    coordinator.schedule(model.first.read)
    with pytest.raises(errors.ServerLostError) as raised:
        coordinator.join(DEADLINE)

    def told() -> list[str]:
        (event,) = [e for e in coordinator.events() if e.kind is EventKind.SHARDS_LOST]
        with pytest.raises(errors.CheckpointError) as refused:
            strategy.recover()
        return [
            str(raised.value),
            coordinator.failures()[0].traceback,
            event.message,
            str(refused.value),
        ]

    for text in told():
        assert "there is no checkpoint" in text
        assert "strategy.recover(initialize=True)" in text
        assert "variable 'first' (32 B)" in text
        assert "5 of 10 rows of variable 'wide' (40 B)" in text
        assert "10 of 20 rows of table 'users' (80 B)" in text
        assert "'second'" not in text
    assert coordinator.statistics().state == "parameters lost"
    strategy.recover(initialize=True)

    path = psnb.CheckpointManager(coordinator, tmp_path).save()
    model.lose()
    with pytest.raises(errors.ServerLostError) as again:
        model.first.read()
    assert f"strategy.recover() goes back to the checkpoint {str(path)!r}" in str(again.value)
    assert "no checkpoint" not in str(again.value)


def test_a_checkpoint_after_starting_over_restores_the_new_values(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    model.step()
    manager.save()
    strategy.recover(initialize=True)
    begun = model.values()
    manager.save()
    model.step()
    manager.restore()
    assert_same(model.values(), begun)


def test_what_was_resumed_has_no_initial_values(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model = Model(strategy)
    model.step()
    trained = model.values()
    psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path).save()
    strategy.close()
    with psnb.resume(tmp_path, strategy.client) as resumed:
        with pytest.raises(errors.ConfigurationError, match="'first', 'second', 'wide' are not"):
            resumed.strategy.recover(initialize=True)
        first = resumed.strategy.parameters["first"]
        assert isinstance(first, psnb.Variable)
        np.testing.assert_array_equal(first.read(), trained[0])
