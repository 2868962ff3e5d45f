"""Callback: what is told of training, in the thread that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psnb._src.remote_path import Place
    from psnb._src.training.trainer import Trainer
    from psnb._src.training.training_history import EpochRow, TrainingHistory


@dataclass(frozen=True, slots=True)
class TrainingSnapshot:
    """Training at one moment.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    batch : int
        Elements of the dataset used in this epoch so far.
    examples : int or None
        As in `EpochRow`, so far.
    metrics : mapping of str to float
        Likewise.
    seconds : float
        Since the epoch began.
    """

    epoch: int
    batch: int
    examples: int | None
    metrics: Mapping[str, float]
    seconds: float


class Callback:
    """What is told of training; its methods do nothing, override those that you need.

    They are called in the thread that called `Trainer.train_from_dataset`, one at a time, while
    the workers go on: be quick, or the workers wait. ``trainer.stop("why")`` ends training. What a
    method raises ends it, too, at a consistent point, and is raised with the callback's name; the
    other callbacks hear of the moment all the same, and what they raise is among the error's notes.
    """

    def on_begin(self, trainer: Trainer) -> None:
        """Hear that training begins."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Hear that an epoch begins, or the rest of one; its number counts from 1."""

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Hear how far it is; at most four times a second."""

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Hear that an epoch is over, and its validation: of each row that the history gets.

        Also of an epoch that was stopped in the middle: ``trainer.history.stopped`` says why then,
        and the row is of that part and has no validation. If training goes on with it later, its
        next row is of the whole epoch.
        """

    def on_checkpoint(self, trainer: Trainer, path: Place) -> None:
        """Hear that a checkpoint was saved."""

    def on_failure(self, trainer: Trainer, error: Exception) -> None:
        """Hear that training fails: a closure raised, for example. The error is raised then."""

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """Hear that training has ended, in whichever way."""
