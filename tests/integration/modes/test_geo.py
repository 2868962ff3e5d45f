"""Workers that train copies of their own, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import Steps, wait_until_ready

NEVER = 1000
"""More closures than any test here runs."""


def geo(client: Client, closures: int) -> psnb.ParameterServerStrategy:
    return psnb.ParameterServerStrategy(client, mode=psnb.Geo(closures))


@pytest.fixture
def coordinator(cluster: Client) -> Iterator[psnb.ClusterCoordinator]:
    """That of a strategy whose workers exchange nothing unless asked."""
    with geo(cluster, NEVER) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, "worker-0", "worker-1")
        yield coordinator


def test_join_returns_when_the_servers_have_what_the_workers_have_learned(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable(np.zeros(2), optimizer=psnb.SGD(1.0))
    e = coordinator.strategy.embedding("e", 1, initializer=0.0, optimizer=psnb.SGD(1.0))

    def step() -> None:
        v.push(-np.ones(2))
        e.push([3, 2**63], -np.ones((2, 1), np.float32))

    for number in range(10):
        coordinator.schedule(step, worker=number % 2).fetch(DEADLINE)
    assert v.read().tolist() == [0, 0]
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [5, 5]  # each of two workers has its share
    assert e.lookup([3, 2**63]).tolist() == [[5], [5]]
    assert coordinator.statistics().staleness.count == 2


def test_done_is_true_when_the_servers_have_it(coordinator: psnb.ClusterCoordinator) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
    coordinator.schedule(v.push, ([-2.0],))
    wait_until(coordinator.done, "all is done")
    assert v.read().tolist() == [1]


def test_a_checkpoint_of_a_drained_coordinator_has_everything(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
    steps = Steps(tmp_path)

    def step() -> None:
        v.push([-2.0])
        steps()

    for number in (0, 1, 0):
        coordinator.schedule(step, worker=number)
    steps.begun(2)
    coordinator.pause()
    steps.end()
    coordinator.drain(DEADLINE)
    manager = psnb.CheckpointManager(coordinator, tmp_path / "checkpoints")
    manager.save()
    coordinator.resume()
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [3]
    manager.restore()
    assert v.read().tolist() == [2]


def test_a_closure_that_raises_has_changed_nothing(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))

    def step(gradient: float) -> None:
        v.push([gradient])
        if gradient > 0:
            raise ValueError("boo")

    coordinator.schedule(step, (-2.0,), worker=0).fetch(DEADLINE)
    coordinator.schedule(step, (100.0,), worker=0)
    with pytest.raises(ValueError, match="boo"):
        coordinator.join(DEADLINE)
    assert v.read().tolist() == [1]


def test_an_exchange_after_each_closure_is_asynchronous_training(cluster: Client) -> None:
    found = []
    # Two workers have half a share each, and here they take turns.
    modes: list[tuple[psnb.Async | psnb.Geo, float]] = [(psnb.Async(), 0.1), (psnb.Geo(1), 0.2)]
    for mode, rate in modes:
        with psnb.ParameterServerStrategy(cluster, mode=mode) as strategy:
            coordinator = psnb.ClusterCoordinator(strategy)
            wait_until_ready(coordinator, "worker-0", "worker-1")
            v = strategy.variable(np.arange(4.0), optimizer=psnb.SGD(rate))
            e = strategy.embedding("e", 2, optimizer=psnb.SGD(rate), dtype="float64")

            def step(ids: list[int], v: psnb.Variable = v, e: psnb.Embedding = e) -> None:
                rows = e.lookup(ids)
                v.push(v.read() + rows.sum())
                e.push(ids, rows - 1)

            for number in range(20):
                coordinator.schedule(step, ([number, 3, 3],), worker=number % 2).fetch(DEADLINE)
            coordinator.join(DEADLINE)
            assert coordinator.statistics().staleness.count == 20
            found.append((v.read(), e.lookup(np.arange(20))))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_two_workers_learn_a_regression_together(cluster: Client) -> None:
    truth = np.array([1.0, -2.0, 3.0])
    with geo(cluster, 5) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, "worker-0", "worker-1")
        w = strategy.variable(np.zeros(3), optimizer=psnb.Adam(0.1))

        def step(seed: int) -> None:
            x = np.random.default_rng(seed).normal(size=(32, 3))
            w.push((x @ (w.read() - truth)) @ x / 32)

        for seed in range(300):  # each has its half: one that did all would learn half as much
            coordinator.schedule(step, (seed,), worker=seed % 2)
        coordinator.join(DEADLINE)
        np.testing.assert_allclose(w.read(), truth, atol=0.05)
        assert 60 <= coordinator.statistics().staleness.count <= 62
