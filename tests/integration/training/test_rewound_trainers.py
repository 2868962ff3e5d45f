"""Trainers that go back in other modes, with other workers and datasets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import data
from tests.conftest import wait_until
from tests.integration.training.trainer_helpers import counting, numbers, visits_of

pytestmark = pytest.mark.second_tier("the same as tests of rewinding, in other modes")

COUNT = 400


def slow(step: Callable[[Any], None]) -> Callable[[Any], None]:
    def slowly(iterator: Any) -> None:
        time.sleep(0.01)
        step(iterator)

    return slowly


def more_than(visits: psnb.Embedding, count: float) -> bool:
    return sum(numbers(visits, COUNT)) > count


def go_back_meanwhile(
    coordinator: psnb.ClusterCoordinator,
    visits: psnb.Embedding,
    mark: Callable[[], Any],
    train: Callable[[], psnb.TrainingHistory],
) -> psnb.TrainingHistory:
    """Mark a place in training, go back there from a later one, twice, and return the history."""
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            wait_until(partial(more_than, visits, COUNT / 8), "some are counted")
            marked = mark()
            for _ in range(2):
                enough = sum(numbers(visits, COUNT)) + COUNT / 8
                wait_until(partial(more_than, visits, enough), "some more are counted")
                coordinator.rewind(marked)
        except BaseException as error:  # of whatever kind: the test's own thread has it
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    history = train()
    thread.join()
    assert not errors, errors
    return history


@pytest.mark.parametrize(
    ("mode", "worker"),
    [
        (psnb.Async(), psnb.Downpour(2, 2)),
        (psnb.Async(), psnb.Hogwild(2)),
        (psnb.Sync(2), psnb.Hogwild()),
        (psnb.Geo(3), psnb.Hogwild()),
        (psnb.BoundedStaleness(2), psnb.Hogwild()),
    ],
    ids=str,
)
def test_modes_and_workers(cluster: Client, mode: Any, worker: Any) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=mode) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        plain, visits = (
            strategy.embedding(name, 1, initializer=0.0, optimizer=psnb.SGD(1.0))
            for name in ("plain", "visits")
        )

        def train(table: psnb.Embedding) -> psnb.TrainingHistory:
            trainer = psnb.Trainer(coordinator, slow(counting(table)), worker)
            return trainer.train_from_dataset(data.Dataset.range(COUNT).batch(2), 2)

        train(plain)
        marked = coordinator.mark
        history = go_back_meanwhile(coordinator, visits, marked, partial(train, visits))
        # Rounds divide by their closures, and workers of `Geo` send their share.
        assert numbers(visits, COUNT) == numbers(plain, COUNT)
        assert [(r.epoch, r.batches, r.examples) for r in history.rows] == [
            (1, COUNT // 2, COUNT),
            (2, COUNT // 2, COUNT),
        ]


def test_back_to_a_checkpoint_in_the_middle_of_an_epoch(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, COUNT)
    manager = psnb.CheckpointManager(coordinator, tmp_path, full_every=4)
    trainer = psnb.Trainer(coordinator, slow(counting(visits)), checkpoint=manager)
    history = go_back_meanwhile(
        coordinator,
        visits,
        manager.save,
        lambda: trainer.train_from_dataset(data.Dataset.range(COUNT).batch(2), save_steps=30),
    )
    assert {*numbers(visits, COUNT)} == {1.0}
    assert [(row.batches, row.examples) for row in history.rows] == [(COUNT // 2, COUNT)]
    saved = psnb.checkpoint.load(manager.latest_checkpoint or "")
    assert saved.metadata["epoch"] == 1
    assert {*saved["visits"].lookup(np.arange(COUNT))[:, 0].tolist()} == {1.0}


class BackToFirst(psnb.Callback):
    """Goes back from the third epoch to the end of the first."""

    def __init__(self) -> None:
        self.mark: psnb.Mark | None = None
        self.begun: list[int] = []

    def on_epoch_begin(self, trainer: psnb.Trainer, epoch: int) -> None:
        self.begun.append(epoch)

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        if row.epoch == 1 and self.mark is None:
            self.mark = trainer.coordinator.mark()
        elif row.epoch == 3 and len(self.begun) == 3:
            trainer.coordinator.rewind(self.mark)


def test_dataset_in_memory_has_the_order_of_the_epoch_again(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    for file in range(4):
        lines = (f"1 {file * 100 + each}\n" for each in range(100))
        (tmp_path / f"{file}.txt").write_text("".join(lines))
    slots = [data.Slot("id", "int64")]
    source = data.InMemoryDataset(str(tmp_path / "*.txt"), slots, 5)
    visits, callback = visits_of(strategy, COUNT), BackToFirst()

    def step(iterator: Any) -> None:
        ids = next(iterator)["id"].values
        counting(visits)(iter([ids]))

    trainer = psnb.Trainer(coordinator, step)
    history = trainer.train_from_dataset(source, 3, callbacks=[callback])
    assert callback.begun == [1, 2, 3, 2, 3]
    assert {*numbers(visits, COUNT)} == {3.0}
    assert [row.examples for row in history.rows] == [COUNT] * 3
