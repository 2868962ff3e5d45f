"""Device workers: how workers go through an epoch, on real clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind
from psnb.errors import ClosureInputError, ConfigurationError
from tests.integration.helpers import kill_myself

EXAMPLES, BATCH = 240, 5


@pytest.fixture
def strategy(cluster: Client) -> Iterator[psnb.ParameterServerStrategy]:
    with psnb.ParameterServerStrategy(cluster, partitioner=psnb.FixedShards(2)) as strategy:
        yield strategy


def _counting(strategy: psnb.ParameterServerStrategy) -> tuple[Any, Any, Callable[..., None]]:
    """Return a variable and a table that count batches and examples, and the step that does."""
    batches = strategy.variable(np.zeros(6), optimizer=psnb.SGD(1.0))
    rows = strategy.embedding("rows", 1, initializer=0.0, optimizer=psnb.SGD(1.0))

    def step(iterator: Any) -> None:
        ids = next(iterator)
        batches.read()
        batches.push(-np.ones(6))
        rows.push(ids, -np.ones((len(ids), 1), np.float32))

    return batches, rows, step


def _train(
    worker: psnb.DeviceWorker, strategy: psnb.ParameterServerStrategy, step: Callable[..., None]
) -> psnb.ClusterCoordinator:
    coordinator = psnb.ClusterCoordinator(strategy)
    data = psnb.data.Dataset.range(EXAMPLES).batch(BATCH)
    iterator = iter(coordinator.create_per_worker_dataset(data, sharding="dynamic", splits=6))
    worker.train(coordinator, step, iterator, lambda: None)
    assert iterator.exhausted
    return coordinator


WORKERS = pytest.mark.parametrize(
    "worker",
    [psnb.Hogwild(), psnb.Hogwild(threads=3), psnb.Downpour(), psnb.Downpour(2, 4)],
    ids=str,
)


@WORKERS
def test_every_example_counts_exactly_once(
    worker: psnb.DeviceWorker, strategy: psnb.ParameterServerStrategy
) -> None:
    batches, rows, step = _counting(strategy)
    _train(worker, strategy, step)
    assert batches.read().tolist() == [EXAMPLES / BATCH] * 6
    assert rows.lookup(np.arange(EXAMPLES)).tolist() == [[1.0]] * EXAMPLES


@pytest.mark.parametrize("worker", [psnb.Hogwild(threads=3), psnb.Downpour(2, 4)], ids=str)
def test_every_example_counts_exactly_once_when_a_worker_is_killed(
    worker: psnb.DeviceWorker, whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole, partitioner=psnb.FixedShards(2)) as strategy:
        batches, rows, counting = _counting(strategy)

        killed = tmp_path / "killed"

        def step(iterator: Any) -> None:
            counting(iterator)
            if psnb.worker_context().closure > 1 and not killed.exists():
                killed.touch()
                kill_myself()

        coordinator = _train(worker, strategy, step)
        assert EventKind.WORKER_LOST in [event.kind for event in coordinator.events()]
        assert batches.read().tolist() == [EXAMPLES / BATCH] * 6
        assert rows.lookup(np.arange(EXAMPLES)).tolist() == [[1.0]] * EXAMPLES


def test_downpour_makes_one_step_of_the_optimizer_for_several_batches(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    # Momentum counts steps: four gradients of one in one step move it by four.
    moved = strategy.variable(np.zeros(1), optimizer=psnb.Momentum(1.0, 0.5))

    def step(iterator: Any) -> None:
        next(iterator)
        moved.push(np.ones(1))

    coordinator = psnb.ClusterCoordinator(strategy)
    data = psnb.data.Dataset.range(8)
    iterator = iter(coordinator.create_per_worker_dataset(data, sharding="dynamic", splits=1))
    psnb.Downpour(push_every=4).train(coordinator, step, iterator, lambda: None)
    assert moved.read().tolist() == [-(4.0 + (0.5 * 4.0 + 4.0))]


def test_downpour_loses_no_batch_that_a_step_has_taken_at_the_end(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    coordinator = psnb.ClusterCoordinator(strategy)

    def step(iterator: Any) -> None:
        next(iterator), next(iterator)

    trainer = psnb.Trainer(coordinator, step, worker=psnb.Downpour(push_every=2))
    dataset = coordinator.create_per_worker_dataset(
        psnb.data.Dataset.range(3), sharding="dynamic", splits=1
    )
    with pytest.raises(ClosureInputError, match="had taken 1 element when it found no more"):
        trainer.train_from_dataset(dataset)


def test_downpour_refuses_to_clip_sums_by_norm(strategy: psnb.ParameterServerStrategy) -> None:
    strategy.variable(np.zeros(1), "w", optimizer=psnb.SGD(1.0, clipnorm=1.0))
    with pytest.raises(ConfigurationError, match="optimizers of 'w' clip each by its norm"):
        _train(psnb.Downpour(push_every=2), strategy, lambda iterator: None)


def test_downpour_refuses_geo(cluster: Client) -> None:
    with (
        psnb.ParameterServerStrategy(cluster, mode=psnb.Geo(2)) as strategy,
        pytest.raises(ConfigurationError, match="in mode Geo workers send differences"),
    ):
        _train(psnb.Downpour(), strategy, lambda iterator: None)


def test_downpour_takes_part_in_rounds(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(2)) as strategy:
        batches, _, step = _counting(strategy)
        _train(psnb.Downpour(push_every=2), strategy, step)
        # The mean of a round's closures: each pushes two batches, the last round may have one.
        assert batches.read()[0] in {EXAMPLES / BATCH / 2, EXAMPLES / BATCH / 2 + 1}


@WORKERS
def test_a_trainer_counts_batches_and_examples_whatever_a_closure_takes(
    worker: psnb.DeviceWorker, strategy: psnb.ParameterServerStrategy
) -> None:
    _, rows, counting = _counting(strategy)

    def step(iterator: Any) -> None:
        counting(iterator)
        psnb.report(loss=1.0, examples=BATCH)

    data = psnb.data.Dataset.range(EXAMPLES).batch(BATCH)
    trainer = psnb.Trainer(psnb.ClusterCoordinator(strategy), step, worker, progress=False)
    history = trainer.train_from_dataset(data, 2)
    assert [(each.batches, each.examples) for each in history.rows] == [
        (EXAMPLES / BATCH, EXAMPLES)
    ] * 2
    assert rows.lookup(np.arange(EXAMPLES)).tolist() == [[2.0]] * EXAMPLES


def test_a_trainer_without_a_step_is_refused(strategy: psnb.ParameterServerStrategy) -> None:
    with pytest.raises(ConfigurationError, match="step must be a function of an iterator"):
        psnb.Trainer(psnb.ClusterCoordinator(strategy))
