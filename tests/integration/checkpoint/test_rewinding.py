"""Parameters that go back to marks and checkpoints, and trainers with them, on a real cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import data, errors
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import Counter
from tests.integration.helpers import Steps
from tests.integration.training.trainer_helpers import counting, numbers, visits_of


def events(coordinator: psnb.ClusterCoordinator) -> list[str]:
    found = coordinator.events()
    return [each.message for each in found if each.kind is psnb.EventKind.REWOUND]


def test_effects_since_a_mark_are_taken_back_with_hyperparameters_and_new_rows(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    counter = Counter(strategy)
    table = strategy.embedding("table", 2, optimizer=psnb.Adam(0.1), initializer=0.0)
    table.push([1], np.ones((1, 2), np.float32))
    counter.schedule(5)
    counter.coordinator.join()
    before, path = table.lookup([1]), psnb.CheckpointManager(counter.coordinator, tmp_path).save()
    mark, kept = counter.coordinator.mark({"steps": [5]}), {"steps": [5]}
    for to, expected in ((mark, kept), (mark, kept), (path, {}), (None, kept)):
        counter.schedule(3)
        table.optimizer.learning_rate = 0.5  # type: ignore[union-attr]
        table.push([1, 2], np.ones((2, 2), np.float32))
        counter.coordinator.join()
        found = dict(counter.coordinator.rewind(to) or {})
        assert found == expected
        found.get("steps", []).append(0)  # it is the caller's
        counter.scheduled = 5
        counter.require_all()
        assert table.optimizer.learning_rate == 0.1  # type: ignore[union-attr]
        np.testing.assert_array_equal(table.lookup([1]), before)
        assert table.statistics().rows == 1
        assert table.optimizer.iterations == 1  # type: ignore[union-attr]
    assert len(events(counter.coordinator)) == 4
    mark.drop()
    with pytest.raises(errors.ConfigurationError, match="was dropped"):
        counter.coordinator.rewind(mark)


def test_what_runs_is_taken_back_and_what_is_queued_runs_afterwards(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    tmp_path: Path,
) -> None:
    v = strategy.variable(np.int64(0))
    steps = Steps(tmp_path)
    mark = coordinator.mark()
    for index in range(2):
        coordinator.schedule(steps.counting(v), worker=index)
    steps.begun(2)
    for index in range(2):
        coordinator.schedule(lambda: v.assign_add(np.int64(10)), worker=index)
    with pytest.raises(TimeoutError):
        coordinator.rewind(mark, timeout=0.1)
    thread = threading.Thread(target=coordinator.rewind, args=(mark,))
    thread.start()
    steps.end()
    thread.join(DEADLINE)
    coordinator.join()
    assert v.read() == 20


class Rewinding(psnb.Callback):
    """Marks a batch, and goes back to it from a later one, in training's thread."""

    def __init__(self, marked: int, back: int) -> None:
        self.marked, self.back, self.begun = marked, back, list[int]()
        self.mark: psnb.Mark | None = None
        self.done = False

    def on_epoch_begin(self, trainer: psnb.Trainer, epoch: int) -> None:
        self.begun.append(epoch)

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        if row.epoch == self.marked and self.mark is None:
            self.mark = trainer.coordinator.mark()
        if row.epoch == self.back and not self.done:
            self.done = True
            assert trainer.coordinator.rewind(self.mark) is None


def test_trainer_goes_back_with_its_parameters_and_each_example_counts_once(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 200)
    rewinding = Rewinding(1, 3)
    trainer = psnb.Trainer(coordinator, counting(visits))
    history = trainer.train_from_dataset(
        data.Dataset.range(200).batch(5), epochs=3, callbacks=[rewinding]
    )
    assert rewinding.begun == [1, 2, 3, 2, 3]
    assert numbers(visits, 200) == [3] * 200
    assert [(row.epoch, row.batches, row.examples) for row in history.rows] == [
        (epoch, 40, 200) for epoch in (1, 2, 3)
    ]


def test_trainer_goes_back_into_the_middle_of_an_epoch_from_another_thread(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
) -> None:
    visits = visits_of(strategy, 400)
    rewound: list[Any] = []

    def step(iterator: Any) -> None:
        time.sleep(0.01)
        counting(visits)(iterator)

    def watch() -> None:
        wait_until(lambda: numbers(visits, 400).count(1) > 50, "some are counted")
        mark = coordinator.mark({"mine": 1})
        marked = numbers(visits, 400).count(1)
        wait_until(lambda: numbers(visits, 400).count(1) > marked + 50, "some more are counted")
        rewound.append(coordinator.rewind(mark))

    thread = threading.Thread(target=watch)
    thread.start()
    trainer = psnb.Trainer(coordinator, step)
    history = trainer.train_from_dataset(data.Dataset.range(400).batch(2))
    thread.join()
    assert rewound == [{"mine": 1}]
    assert numbers(visits, 400) == [1] * 400
    assert [(row.batches, row.examples) for row in history.rows] == [(200, 400)]


@pytest.mark.parametrize("kind", ["mark", "checkpoint", "restore"])
def test_writes_of_other_threads_are_taken_back_wholly_or_come_afterwards(
    cluster: Client, tmp_path: Path, kind: str
) -> None:
    with psnb.ParameterServerStrategy(cluster, partitioner=psnb.FixedShards(2)) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(100_000, np.int64))
        manager = psnb.CheckpointManager(coordinator, tmp_path)
        path, mark = manager.save(), coordinator.mark()
        back: dict[str, Callable[[], Any]] = {
            "mark": lambda: coordinator.rewind(mark),
            "checkpoint": lambda: coordinator.rewind(path),
            "restore": lambda: manager.restore(path),
        }
        for _ in range(10):
            assert not np.ptp(written_while(v, back[kind]))
        assert not mark.dropped
    assert mark.dropped


def written_while(v: psnb.Variable, go_back: Callable[[], Any]) -> np.ndarray:
    """Return what is in a variable after threads added to it meanwhile."""
    ended, written = threading.Event(), list[int]()

    def write() -> None:
        while not ended.is_set():
            v.assign_add(np.ones(v.shape, np.int64))
            written.append(1)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for each in threads:
        each.start()
    wait_until(lambda: len(written) > 2, "some are written")
    go_back()
    ended.set()
    for each in threads:
        each.join(DEADLINE)
    found: np.ndarray = v.read()
    return found
