"""EpochUnderWay: the epoch that is being trained. Pure, without a lock: see `TrainingRun`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from psnb._src.coordinator import LeasedIterator
from psnb._src.training.callback import TrainingSnapshot
from psnb._src.training.epoch_figures import EpochFigures


@dataclass
class EpochUnderWay:
    """An epoch, also one of which another run has trained a part.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    iterator : LeasedIterator
        What is left of it.
    figures : EpochFigures
        What closures reported.
    began : float
        When, of the monotonic clock.
    earlier_seconds : float
        How long the part took that another run has trained.
    seconds : float or None
        How long this run took, once it is over.
    """

    epoch: int
    iterator: LeasedIterator
    figures: EpochFigures
    began: float
    earlier_seconds: float
    seconds: float | None = None

    def end(self) -> None:
        """Note that it is over."""
        self.seconds = time.monotonic() - self.began

    def snapshot(self) -> TrainingSnapshot:
        """Return the figures of now."""
        seconds = time.monotonic() - self.began if self.seconds is None else self.seconds
        return TrainingSnapshot(
            self.epoch,
            self.iterator.progress().visits,
            self.figures.examples,
            self.figures.so_far(),
            self.earlier_seconds + seconds,
        )

    def part(self) -> dict[str, Any]:
        """Return what came out of it so far, in JSON's types: what another run goes on with."""
        return {**self.figures.saved(), "seconds": self.snapshot().seconds}
