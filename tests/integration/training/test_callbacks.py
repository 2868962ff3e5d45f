"""Callbacks of trainers on a real cluster: what they hear, and when."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import psnb
from psnb import data
from tests.integration.helpers import wait_for_file
from tests.integration.training.trainer_helpers import Heard, counting, numbers, visits_of


def test_callbacks_hear_what_happens_in_order(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    heard = Heard()
    psnb.Trainer(coordinator, counting(visits_of(strategy, 200))).train_from_dataset(
        data.Dataset.range(200).batch(5),
        epochs=2,
        callbacks=[heard],
        checkpoint=psnb.CheckpointManager(coordinator, tmp_path),
    )
    assert [each for each in heard.heard if each != "batch"] == [
        *("begin", "epoch 1", "checkpoint", "epoch 2", "checkpoint", "end 2")
    ]


def test_a_callback_that_raises_ends_training_and_is_reported_by_name(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 200)

    class Unlucky(psnb.Callback):
        def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
            raise ValueError("no luck")

    heard = Heard()
    trainer = psnb.Trainer(coordinator, counting(visits))
    with pytest.raises(ValueError, match="no luck") as raised:
        trainer.train_from_dataset(
            data.Dataset.range(200).batch(5), epochs=3, callbacks=[heard, Unlucky()]
        )
    assert raised.value.__notes__ == ["raised by callback Unlucky.on_epoch"]
    assert heard.heard[-2:] == ["failure ValueError", "end 1"]
    assert trainer.history["examples"] == [200]
    assert numbers(visits, 200) == [1] * 200
    assert trainer.train_from_dataset(data.Dataset.range(200).batch(5)).rows[0].examples == 200


def test_all_callbacks_hear_of_a_failure_and_the_end_though_earlier_ones_raise(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    class Spiteful(psnb.Callback):
        def on_failure(self, trainer: psnb.Trainer, error: Exception) -> None:
            raise OSError("disk full")

        def on_end(self, trainer: psnb.Trainer, history: psnb.TrainingHistory) -> None:
            raise KeyError("no end")

    def fail() -> None:
        raise ValueError("bad batch")

    heard = Heard()
    trainer = psnb.Trainer(coordinator, counting(visits_of(strategy, 200), fail))
    with pytest.raises(ValueError, match="bad batch") as raised:
        trainer.train_from_dataset(
            data.Dataset.range(200).batch(5), callbacks=[Spiteful(), Spiteful(), heard]
        )
    assert heard.heard[-2:] == ["failure ValueError", "end 0"]
    assert raised.value.__notes__[-4:] == [
        *["besides, callback Spiteful.on_failure raised OSError: disk full"] * 2,
        *["besides, callback Spiteful.on_end raised KeyError: 'no end'"] * 2,
    ]


def test_all_callbacks_hear_of_a_good_end_and_the_first_error_is_raised_with_the_others(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    class Ending(psnb.Callback):
        def __init__(self, error: BaseException) -> None:
            self._error = error

        def on_end(self, trainer: psnb.Trainer, history: psnb.TrainingHistory) -> None:
            raise self._error

    heard = Heard()
    trainer = psnb.Trainer(coordinator, counting(visits_of(strategy, 200)))
    with pytest.raises(OSError, match="disk full") as raised:
        trainer.train_from_dataset(
            data.Dataset.range(200).batch(5),
            callbacks=[Ending(OSError("disk full")), Ending(KeyError("no end")), heard],
        )
    assert heard.heard[-2:] == ["epoch 1", "end 1"]
    assert raised.value.__notes__ == [
        "raised by callback Ending.on_end",
        "besides, callback Ending.on_end raised KeyError: 'no end'",
    ]


def test_callbacks_hear_of_an_epoch_that_was_stopped_in_the_middle(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    heard = Heard()
    stopped_once = tmp_path / "stopped"

    class Enough(psnb.Callback):
        def on_batch(self, trainer: psnb.Trainer, snapshot: psnb.TrainingSnapshot) -> None:
            trainer.stop("enough")
            stopped_once.touch()

    count = counting(visits_of(strategy, 200))

    def step(iterator: Any) -> None:
        count(iterator)
        wait_for_file(stopped_once)  # the epoch is not over before, however fast it is

    dataset = data.Dataset.range(200).batch(5)
    trainer = psnb.Trainer(coordinator, step)
    log = psnb.CSVLog(tmp_path / "log.csv")
    stopped = trainer.train_from_dataset(
        dataset, callbacks=[psnb.EarlyStopping("val_auc"), heard, log, Enough()], validation=dataset
    )
    assert heard.heard[-2:] == ["epoch 1", "end 1"]
    assert 0 < stopped["examples"][0] < 200
    trainer.train_from_dataset(dataset, callbacks=[log], resume=stopped.state)
    with (tmp_path / "log.csv").open() as file:
        lines = [(each["epoch"], each["examples"]) for each in csv.DictReader(file)]
    assert lines == [("1", str(stopped["examples"][0])), ("1", "200")]


def test_training_stops_when_stop_is_called(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 200)

    class Enough(psnb.Callback):
        def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
            if row.epoch == 2:
                trainer.stop("enough")

    history = psnb.Trainer(coordinator, counting(visits)).train_from_dataset(
        data.Dataset.range(200).batch(5), epochs=9, callbacks=[Enough()]
    )
    assert history.stopped == "enough"
    assert numbers(visits, 200) == [2] * 200


def test_a_scheduler_is_asked_for_the_epochs_that_are_trained_and_no_other(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits_of(strategy, 20)
    asked: list[int] = []

    def schedule(epoch: int) -> float:
        asked.append(epoch)
        return 0.1

    trainer = psnb.Trainer(coordinator, lambda iterator: bool(next(iterator).any()))
    told = [psnb.LearningRateScheduler(schedule)]
    trainer.train_from_dataset(data.Dataset.range(20).batch(5), 2, callbacks=told)
    assert asked == [1, 2]
