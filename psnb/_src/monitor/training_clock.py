"""TrainingClock: how far training is, and how long it takes yet.

The thread that trains begins epochs and ends; any thread asks. One lock guards what they share,
and no count is asked for while it is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from psnb._src.monitor.statistics import TrainingProgress
from psnb._src.utils.interrupts import Lock


class EpochCount(NamedTuple):
    """How much of an epoch was used.

    Attributes
    ----------
    batch : int
        Batches that were used.
    batches : int or None
        How many it has; None if that is not known.
    parts : tuple of int
        Parts of the dataset that are done, and how many there are; zeros if it has none.
    """

    batch: int
    batches: int | None = None
    parts: tuple[int, int] = (0, 0)

    @property
    def share(self) -> float | None:
        """How much of the epoch is done, 0 to 1; None if unknown."""
        done, of = self.parts if self.batches is None else (self.batch, self.batches)
        return min(1.0, done / of) if of else None


_EARLY = 0.25
"""The fraction of an epoch within which its first batch must end, or else it counts."""


class TrainingClock:
    """Estimates how long training takes yet, by its speed in the last epoch and the present one.

    The speed since the beginning would include the first batch, which compiles: for long, a hundred
    short epochs would seem to take minutes.

    Parameters
    ----------
    epochs : int, optional
        How many there are to be; None of ``run_epoch``.
    now : callable
        Returns seconds.
    """

    def __init__(
        self, epochs: int | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._epochs, self._now = epochs, now
        self._lock = Lock()  # guards all that follows
        self._epoch: int | None = None
        self._count: Callable[[], EpochCount] | None = None
        # When the last epoch and the present one began, and where, in epochs.
        self._marks: tuple[tuple[float, float], ...] = ()
        self._began = 0  # batches, when the first epoch began here
        self._warm = False  # whether a batch has ended
        self._ended: TrainingProgress | None = None

    def begin(self, epoch: int | None, count: Callable[[], EpochCount]) -> None:
        """Note that an epoch begins; any thread may call ``count``."""
        now, found = self._now(), count()
        with self._lock:
            if not self._marks:
                self._began = found.batch
            self._marks = *self._marks[-1:], (now, (epoch or 1) - 1 + (found.share or 0.0))
            self._epoch, self._count = epoch, count

    def end(self) -> None:
        """Note that training has ended where it is."""
        found = self.progress()
        with self._lock:
            self._ended = None if found is None else replace(found, left=None)
            self._count = None

    def progress(self) -> TrainingProgress | None:
        """Return how far training is; None before the first epoch."""
        with self._lock:
            epoch, count, ended = self._epoch, self._count, self._ended
        if count is None:
            return ended
        now, found = self._now(), count()
        with self._lock:
            left = None if self._epoch != epoch else self._left(now, found)
        return TrainingProgress(epoch, self._epochs, found.batch, found.batches, left)

    def _left(self, now: float, found: EpochCount) -> float | None:
        if found.share is None:
            return None
        place = (self._epoch or 1) - 1 + found.share
        if not self._warm and found.batch > self._began:
            self._warm = True
            if place - self._marks[0][1] < _EARLY:
                self._marks = ((now, place),)
        began, first = self._marks[0]
        gone, ahead = place - first, (self._epochs or 1) - place
        return (now - began) / gone * max(0.0, ahead) if gone > 1e-9 else None
