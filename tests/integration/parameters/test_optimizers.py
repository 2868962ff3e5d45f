"""Optimizers on a real cluster: hyperparameters set live, gradients that are not finite."""

from __future__ import annotations

import numpy as np
import optax
import pytest
from distributed import Client

import psnb
import psnb.jax
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.conftest import DEADLINE


def test_rate_by_a_function_of_the_notebook_fails_before_anything_is_written(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    strategy = coordinator.strategy
    rates = [0.5, 0.25]
    v = strategy.variable([0.0], name="v", optimizer=psnb.SGD(lambda step: rates[step]))
    w = strategy.variable([0.0], name="w", optimizer=psnb.SGD(1.0))

    def step() -> None:
        w.push([1.0])
        v.push([1.0])

    for _ in range(2):
        coordinator.schedule(step)
        coordinator.join(DEADLINE)  # both at once might be prepared at the same step
    coordinator.schedule(step)
    with pytest.raises(
        ConfigurationError, match=r"'v': the learning rate .*<lambda> fails for step 2"
    ):
        coordinator.join(DEADLINE)
    assert (v.read().tolist(), w.read().tolist()) == ([-0.75], [-2])
    coordinator.set_learning_rate("v", optax.linear_schedule(0.0, 2.0, 4))
    coordinator.schedule(step)
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [-1.75]


def test_rate_set_in_the_notebook_counts_in_closures_and_back(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable([0.0, 0.0], optimizer=psnb.SGD(1.0))
    live = v.optimizer
    assert live is not None

    def step(rate: float) -> float:
        assert v.optimizer is not None
        seen: float = v.optimizer.learning_rate
        v.optimizer.learning_rate = rate
        v.push([1.0, 1.0])
        return seen

    live.learning_rate = 0.5
    assert coordinator.schedule(step, (0.125,)).fetch(DEADLINE) == 0.5
    assert live.learning_rate == 0.125
    assert v.read().tolist() == [-0.125, -0.125]


def test_bad_hyperparameter_in_a_closure_is_its_own_error(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable([0.0], optimizer=psnb.SGD(1.0))

    def step() -> None:
        assert v.optimizer is not None
        v.optimizer.learning_rate = -1

    coordinator.schedule(step)
    with pytest.raises(ConfigurationError, match="learning_rate=-1"):
        coordinator.join(DEADLINE)
    assert v.optimizer is not None
    assert v.optimizer.learning_rate == 1.0


def test_refusal_names_variable_worker_and_closure(coordinator: psnb.ClusterCoordinator) -> None:
    v = coordinator.strategy.variable([0.0, 0.0], name="weights", optimizer=psnb.SGD(1.0))

    def diverging_step(seed: int) -> None:
        v.push([1.0, 1.0])
        v.push([1.0, float("nan")])

    coordinator.schedule(diverging_step, (7,))
    with pytest.raises(InvalidArrayError, match="variable 'weights'") as caught:
        coordinator.join(DEADLINE)
    notes = "\n".join(caught.value.__notes__)
    assert "diverging_step(7) on worker " in notes
    assert v.read().tolist() == [0, 0]  # nothing of the closure was written


def test_skipped_updates_of_closures_are_counted_once(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    strategy = coordinator.strategy
    v = strategy.variable([0.0, 0.0], optimizer=psnb.SGD(1.0), nonfinite="skip")
    e = strategy.embedding("e", 1, 10, 0.0, psnb.SGD(1.0), nonfinite="skip")

    def step() -> None:
        v.push([1.0, float("inf")])
        e.push([1, 2, 3], [[1.0], [float("nan")], [1.0]])

    for _ in range(5):
        coordinator.schedule(step)
    coordinator.join(DEADLINE)
    assert (v.skipped(), e.skipped()) == (5, 5)
    assert v.read().tolist() == [0, 0]
    assert e.lookup([1, 2, 3]).tolist() == [[-5], [0], [-5]]


def test_how_many_updates_were_applied_can_be_read_and_not_set(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    strategy = coordinator.strategy
    v = strategy.variable([1.0], optimizer=psnb.SGD(0.1))
    e = strategy.embedding("counted", 2, optimizer=psnb.Adam(0.1))
    assert v.optimizer is not None
    assert e.optimizer is not None
    assert v.optimizer.iterations == e.optimizer.iterations == 0

    def step() -> int:
        v.push([1.0])
        e.push(np.arange(100), np.ones((100, 2), np.float32))
        return v.optimizer.iterations  # type: ignore[union-attr]

    remotes = [coordinator.schedule(step) for _ in range(7)]
    coordinator.join(DEADLINE)
    assert all(0 <= remote.fetch() < 7 for remote in remotes)
    assert v.optimizer.iterations == e.optimizer.iterations == 7
    with pytest.raises(ConfigurationError, match="no hyperparameter 'iterations'"):
        v.optimizer.iterations = 3


def test_what_needs_the_whole_of_a_parameter_is_refused_where_it_has_parts(
    cluster: Client,
) -> None:
    whole = psnb.jax.optimizer(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)))
    by_element = psnb.jax.optimizer(optax.sgd(0.1))
    with psnb.ParameterServerStrategy(cluster, partitioner=psnb.FixedShards(2)) as strategy:
        with pytest.raises(ConfigurationError, match=r"variable 'v', in 2 parts, cannot have psnb"):
            strategy.variable(np.zeros(4, np.float32), "v", whole)
        with pytest.raises(ConfigurationError, match=r"embedding 'e' cannot have psnb\.jax\."):
            strategy.embedding("e", 2, optimizer=whole)
        with pytest.raises(ConfigurationError, match=r"psnb\.jax\.optimizer makes one"):
            strategy.embedding("e", 2, optimizer=optax.sgd(0.1))  # type: ignore[arg-type]
        assert not strategy.parameters
        v = strategy.variable(np.zeros(4, np.float32), "v", by_element)
        e = strategy.embedding("e", 2, initializer=0.0, optimizer=by_element)
        v.push(np.ones(4, np.float32))
        e.push([3, 5, 8], np.ones((3, 2), np.float32))
        np.testing.assert_allclose(v.read(), -0.1)
        np.testing.assert_allclose(e.lookup([3, 8, 9]), [[-0.1, -0.1], [-0.1, -0.1], [0, 0]])
