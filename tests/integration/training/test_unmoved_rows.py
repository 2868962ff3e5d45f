"""An epoch that hardly moves the rows that it pushes is said, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import data

SAID = "the rows that were pushed have moved by"


@pytest.fixture(scope="module")
def client() -> Any:
    with psnb.local_cluster(workers=1, servers=1, processes=False) as client:
        yield client


def said(coordinator: psnb.ClusterCoordinator) -> list[str]:
    events = coordinator.events()
    return [each.message for each in events if each.kind.value == "rows hardly moved"]


def epochs(of: psnb.Embedding, length: float = 0.1) -> tuple[data.Dataset, Any]:
    """Return a dataset of a hundred batches, and a step that pushes gradients of a length."""

    def step(iterator: Any) -> None:
        ids = next(iterator)
        of.push(ids, np.full((len(ids), 4), length / 2, np.float32))

    return data.Dataset.range(400).map(lambda number: number % 80).batch(4), step


def test_an_epoch_of_short_steps_is_said_once(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        short = strategy.embedding("short", 4, optimizer=psnb.SGD(0.001))
        strategy.embedding("never pushed", 4, optimizer=psnb.SGD(1.0))
        dataset, step = epochs(short)
        leased = coordinator.create_per_worker_dataset(dataset, sharding="dynamic")
        coordinator.run_epoch(step, iter(leased))
        coordinator.run_epoch(step, iter(leased))
        (message,) = said(coordinator)
        # Five pushes of 0.0001, of rows whose length is some 0.06.
        assert message.startswith(f"'short': {SAID} 0.")
        assert message in caplog.text


def test_an_epoch_of_a_trainer_is_said_whatever_its_device_worker(client: Client) -> None:
    class Once(psnb.DeviceWorker):
        def train(self, coordinator: Any, step: Any, iterator: Any, watch: Any) -> None:
            while not iterator.progress().over:
                coordinator.schedule(step, (iterator,))
                coordinator.join()

    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        dataset, step = epochs(strategy.embedding("short", 4, optimizer=psnb.SGD(0.001)))
        trainer = psnb.Trainer(coordinator, step, worker=Once(), progress=False)
        trainer.train_from_dataset(dataset, epochs=1)
        assert len(said(coordinator)) == 1


def test_an_epoch_of_long_steps_is_not_said(client: Client) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        table = strategy.embedding("long", 4, optimizer=psnb.SGD(0.1))
        dataset, step = epochs(table)
        leased = coordinator.create_per_worker_dataset(dataset, sharding="dynamic")
        coordinator.run_epoch(step, iter(leased))
        assert said(coordinator) == []
        # Late in training, steps may be short.
        assert table.optimizer is not None
        table.optimizer.learning_rate = 1e-9
        coordinator.run_epoch(step, iter(leased))
        assert said(coordinator) == []


def test_short_steps_after_a_restore_are_not_said(client: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        table = strategy.embedding("restored", 4, optimizer=psnb.SGD(1e-9))
        table.push(np.arange(80), np.ones((80, 4), np.float32))
        manager = psnb.CheckpointManager(coordinator, tmp_path)
        manager.save()
        manager.restore()
        dataset, step = epochs(table)
        leased = coordinator.create_per_worker_dataset(dataset, sharding="dynamic")
        coordinator.run_epoch(step, iter(leased))
        assert said(coordinator) == []
