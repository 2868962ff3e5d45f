"""Servers that die under a strategy without replicas, and what `recover` brings back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.checkpoint import restored_files
from psnb._src.strategy import recovery
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import Lose, kill, terminate
from tests.integration.helpers import wait_until_servers
from tests.interrupting import interrupt_its_sleep

LOSSES = pytest.mark.parametrize("lose", [terminate, kill], ids=["graceful", "abrupt"])
IDS = np.arange(20)


@pytest.fixture(scope="module")
def pair() -> Iterator[Client]:
    """A worker and two servers; nannies mend what the tests break."""
    with psnb.local_cluster(workers=1, servers=2) as client:
        yield client


@pytest.fixture
def strategy(pair: Client) -> Iterator[psnb.ParameterServerStrategy]:
    wait_until_servers(pair, 2)
    with psnb.ParameterServerStrategy(pair) as strategy:
        yield strategy


class Model:
    """Two variables, one on each server, and an embedding over both."""

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self.strategy = strategy
        self.variables = [
            strategy.variable(np.zeros(4), optimizer=psnb.Momentum(1.0, 0.5)) for _ in "ab"
        ]
        self.table = strategy.embedding("table", 2, optimizer=psnb.Adagrad(1.0), initializer=0.0)
        places = strategy._core.layout.placements
        assert {places[v._shards.tables[0][0].number].primary for v in self.variables} == set(
            strategy._core.layout.servers
        )

        variables, table = self.variables, self.table

        def step() -> None:
            for variable in variables:
                variable.push(np.ones(4))
            table.push(IDS, np.ones((IDS.size, 2), np.float32))

        self.step = step

    def values(self) -> list[np.ndarray]:
        return [*(variable.read() for variable in self.variables), self.table.lookup(IDS)]

    def server_of(self, variable: int) -> str:
        place = self.strategy._core.layout.placements[
            self.variables[variable]._shards.tables[0][0].number
        ]
        assert place.primary is not None
        return place.primary.address


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for mine, yours in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, yours)


def is_lost(action: Callable[[], object]) -> bool:
    try:
        action()
    except errors.ServerLostError:
        return True
    return False


def test_all_parameters_go_back_to_the_last_checkpoint(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    model.step()
    psnb.CheckpointManager(coordinator, tmp_path).save({"step": 1})
    saved = model.values()
    model.step()
    expected = model.values()
    kill(strategy.client, model.server_of(0))
    coordinator.schedule(model.variables[0].read)
    with pytest.raises(errors.ServerLostError, match=r"strategy\.recover\(\)"):
        coordinator.join(DEADLINE)
    lost = {EventKind.SERVER_LOST, EventKind.SHARDS_LOST}
    wait_until(lambda: lost <= {each.kind for each in strategy.server_events()}, "an event says so")
    assert strategy.recover() == {"step": 1}
    assert_same(model.values(), saved)
    coordinator.schedule(model.step).fetch(DEADLINE)
    assert_same(model.values(), expected)  # the optimizers' state came back as well


def test_what_survived_may_keep_what_it_has_learned(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    model.step()
    path = psnb.CheckpointManager(coordinator, tmp_path).save()
    old = model.values()
    model.step()
    new = model.values()
    kill(strategy.client, model.server_of(1))
    wait_until(lambda: is_lost(model.variables[1].read), "the server is lost")
    strategy.recover(path, consistent=False)
    first, second, rows = model.values()
    np.testing.assert_array_equal(first, new[0])
    np.testing.assert_array_equal(second, old[1])
    assert {*rows[:, 0].tolist()} == {old[2][0, 0], new[2][0, 0]}


@LOSSES
def test_all_servers_may_end_at_once_and_workers_stay_workers(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path, lose: Lose
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    workers = strategy.worker_names()
    model.step()
    psnb.CheckpointManager(coordinator, tmp_path).save()
    saved = model.values()
    lose(strategy.client, model.server_of(0), model.server_of(1))
    wait_until(lambda: is_lost(model.values), "the servers are lost")
    strategy.recover()
    assert_same(model.values(), saved)
    assert strategy.num_servers == 2
    assert strategy.worker_names() == workers


def test_hyperparameters_that_were_changed_live_are_those_of_the_new_shards_too(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    table = strategy.embedding("table", 2, optimizer=psnb.SGD(1.0), initializer=0.0)
    assert table.optimizer is not None
    coordinator = psnb.ClusterCoordinator(strategy)
    psnb.CheckpointManager(coordinator, tmp_path).save()
    table.optimizer.learning_rate = 0.25
    kill(strategy.client, strategy.server_addresses[0])
    wait_until(lambda: is_lost(lambda: table.lookup(IDS)), "the server is lost")
    strategy.recover()
    table.push(IDS, -np.ones((IDS.size, 2), np.float32))
    assert (table.lookup(IDS) == 0.25).all()


def test_without_a_checkpoint_nothing_is_changed_and_it_says_what_to_do(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model = Model(strategy)
    with pytest.raises(errors.CheckpointError, match="no checkpoint to recover from"):
        strategy.recover()
    with pytest.raises(errors.CheckpointError, match="is not a checkpoint"):
        strategy.recover(tmp_path / "nowhere")
    with pytest.raises(errors.ConfigurationError, match="restart_timeout must be 0 or more"):
        strategy.recover(restart_timeout=-1)
    model.step()
    assert (model.values()[0] == -1).all()


def test_without_a_loss_everything_is_rolled_back_all_the_same(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    psnb.CheckpointManager(coordinator, tmp_path).save()
    saved = model.values()
    model.step()
    before = strategy._core.layout
    strategy.recover()
    assert_same(model.values(), saved)
    assert strategy._core.layout == before


def test_a_recovery_that_failed_can_be_tried_again(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    model.step()
    path = psnb.CheckpointManager(coordinator, tmp_path).save()
    saved = model.values()
    kill(strategy.client, model.server_of(0))
    wait_until(lambda: is_lost(model.values), "the server is lost")
    with monkeypatch.context() as damaged:
        gone = errors.CheckpointError("the disk is gone")
        damaged.setattr(restored_files, "load_tables", lambda *load: fail(gone))
        with pytest.raises(errors.CheckpointError, match="the disk is gone"):
            strategy.recover()
    assert not coordinator.paused
    with pytest.raises(errors.PsnbError):  # not zeros, which closures would train on
        model.values()
    strategy.recover(path)
    assert_same(model.values(), saved)


def fail(error: Exception) -> None:
    raise error


def test_a_recovery_that_was_interrupted_can_be_called_again(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    model.step()
    psnb.CheckpointManager(coordinator, tmp_path).save()
    saved = model.values()
    kill(strategy.client, model.server_of(0))
    wait_until(lambda: is_lost(model.values), "the server is lost")
    begun, recover_shards = threading.Event(), recovery.recover_shards

    async def noted(*args: Any) -> list[int]:
        begun.set()
        return await recover_shards(*args)

    monkeypatch.setattr(recovery, "recover_shards", noted)
    interrupt_its_sleep(monkeypatch, begun.is_set)  # before, it waits until nothing runs
    with pytest.raises(KeyboardInterrupt):
        strategy.recover()
    assert not coordinator.paused
    # What was begun goes on: shards are found again, but not their tables.
    wait_until(lambda: strategy.num_servers == 2, "a server takes the dead one's place")
    strategy.recover(consistent=False)
    assert_same(model.values(), saved)


def test_what_was_queued_runs_after_it(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
    psnb.CheckpointManager(coordinator, tmp_path).save()
    coordinator.pause()
    kill(strategy.client, model.server_of(0))
    wait_until(lambda: is_lost(model.values), "the server is lost")
    for _ in range(5):
        coordinator.schedule(model.step)
    strategy.recover()
    assert coordinator.paused
    coordinator.resume()
    coordinator.join(DEADLINE)
    once = Expected(5).values
    np.testing.assert_allclose(model.variables[0].read(), once)


class Expected:
    """What `Model.step` makes of a variable in some steps: momentum 0.5, rate 1, gradient 1."""

    def __init__(self, steps: int) -> None:
        velocity, self.values = np.zeros(4), np.zeros(4)
        for _ in range(steps):
            velocity = 0.5 * velocity + 1
            self.values = self.values - velocity


def test_the_servers_that_are_left_take_everything(tmp_path: Path) -> None:
    with (
        psnb.local_cluster(workers=1, servers=2) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        model, coordinator = Model(strategy), psnb.ClusterCoordinator(strategy)
        model.step()
        psnb.CheckpointManager(coordinator, tmp_path).save()
        saved = model.values()
        nanny = client.cluster.workers["server-0"]
        nanny.close_gracefully()  # nobody starts it again
        kill(client, nanny.worker_address)
        wait_until(lambda: is_lost(model.values), "the server is lost")
        before = time.monotonic()
        strategy.recover(restart_timeout=1.0)
        assert 1 <= time.monotonic() - before < 15  # which it would wait for by default
        assert strategy.num_servers == 1
        assert_same(model.values(), saved)
        coordinator.schedule(model.step).fetch(DEADLINE)
