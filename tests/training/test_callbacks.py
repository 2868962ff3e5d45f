"""The callbacks that end training early, and that set learning rates."""

from __future__ import annotations

import math
from typing import Any

import pytest

import psnb
from psnb.errors import ConfigurationError
from tests.training.fake_trainer import FakeTrainer, row


def _end_epoch(stopping: psnb.EarlyStopping, trainer: FakeTrainer, ended: psnb.EpochRow) -> None:
    trainer.history = psnb.TrainingHistory((*trainer.history.rows, ended))
    stopping.on_epoch(trainer, ended)  # type: ignore[arg-type]


def stopped_after(stopping: psnb.EarlyStopping, values: list[float]) -> int | None:
    """Return after which epoch training is stopped."""
    trainer = FakeTrainer()
    stopping.on_begin(trainer)  # type: ignore[arg-type]
    for epoch, value in enumerate(values, 1):
        _end_epoch(stopping, trainer, row(epoch, auc=value))
        if trainer.stopped:
            return epoch
    return None


@pytest.mark.parametrize(
    ("arguments", "values", "after"),
    [
        ({}, [3.0, 2.0, 1.0], None),
        ({}, [3.0, 3.0], 2),
        ({"patience": 2}, [3.0, 4.0, 2.0, 2.5, 2.5], 5),
        ({"mode": "max"}, [0.5, 0.6, 0.6], 3),
        ({"mode": "max", "min_delta": 0.1}, [0.5, 0.55], 2),
        ({}, [math.nan, 2.0, 1.0], None),
        ({}, [2.0, math.nan], 2),
    ],
)
def test_early_stopping_stops_when_nothing_has_improved_for_so_long(
    arguments: dict[str, Any], values: list[float], after: int | None
) -> None:
    assert stopped_after(psnb.EarlyStopping("auc", **arguments), values) == after


def test_early_stopping_can_be_used_again() -> None:
    stopping = psnb.EarlyStopping("auc")
    assert stopped_after(stopping, [1.0, 1.0]) == 2
    assert stopped_after(stopping, [5.0, 4.0]) is None


def test_early_stopping_counts_the_epochs_that_are_resumed() -> None:
    stopping, trainer = psnb.EarlyStopping("auc", patience=2, mode="max"), FakeTrainer()
    trainer.history = psnb.TrainingHistory((row(1, loss=1.0), row(2, auc=0.7), row(3, auc=0.6)))
    stopping.on_begin(trainer)  # type: ignore[arg-type]
    assert (stopping.best, stopping.best_epoch, trainer.stopped) == (0.7, 2, [])
    _end_epoch(stopping, trainer, row(4, auc=0.65))
    assert trainer.stopped == ["auc has not improved since epoch 2: 0.7"]


def test_early_stopping_forgets_epochs_that_were_taken_back() -> None:
    stopping, trainer = psnb.EarlyStopping("auc", mode="max"), FakeTrainer()
    for epoch, value in enumerate((0.5, 0.6, 0.9), 1):
        _end_epoch(stopping, trainer, row(epoch, auc=value))
    trainer.history = psnb.TrainingHistory((row(1, auc=0.5),))  # rewound
    _end_epoch(stopping, trainer, row(2, auc=0.7))
    assert (stopping.best, stopping.best_epoch, trainer.stopped) == (0.7, 2, [])
    _end_epoch(stopping, trainer, row(3, auc=0.7))
    assert trainer.stopped == ["auc has not improved since epoch 2: 0.7"]


def test_early_stopping_ends_again_what_it_has_ended() -> None:
    trainer = FakeTrainer()
    trainer.history = psnb.TrainingHistory((row(1, auc=0.5), row(2, auc=0.5)))
    psnb.EarlyStopping("auc").on_begin(trainer)  # type: ignore[arg-type]
    assert trainer.stopped == ["auc has not improved since epoch 1: 0.5"]


def test_early_stopping_learns_nothing_of_an_epoch_that_was_stopped() -> None:
    stopping, trainer = psnb.EarlyStopping("val_auc"), FakeTrainer()
    trainer.history = psnb.TrainingHistory((row(1, loss=1.0),), "interrupted")
    stopping.on_epoch(trainer, row(1, loss=1.0))  # type: ignore[arg-type]
    assert (stopping.best_epoch, trainer.stopped) == (0, [])


def test_early_stopping_tells_which_metrics_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no metric 'val_auc'; there are loss"):
        psnb.EarlyStopping("val_auc").on_epoch(FakeTrainer(), row(1, loss=1.0))  # type: ignore[arg-type]


def test_early_stopping_by_a_metric_of_validation_needs_one() -> None:
    trainer: Any = FakeTrainer()
    with pytest.raises(ConfigurationError, match="'val_auc' is a metric of validation: give"):
        psnb.EarlyStopping("val_auc").on_begin(trainer)
    trainer.validates = True
    psnb.EarlyStopping("val_auc").on_begin(trainer)


def test_a_scheduler_sets_the_rates_of_each_epoch_before_it() -> None:
    trainer: Any = FakeTrainer()
    scheduler = psnb.LearningRateScheduler(lambda epoch: 0.1**epoch)
    for epoch in (1, 2):
        scheduler.on_epoch_begin(trainer, epoch)
    rates = [(name, pytest.approx(rate)) for rate in (0.1, 0.01) for name in ("w", "users")]
    assert trainer.rates == rates


def test_a_scheduler_sets_the_rates_of_the_given_parameters() -> None:
    trainer: Any = FakeTrainer()
    psnb.LearningRateScheduler(float, ["users"]).on_epoch_begin(trainer, 5)
    assert trainer.rates == [("users", 5.0)]
