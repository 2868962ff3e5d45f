"""TrainingClock: how far training is, and how long it takes yet.

The thread that trains begins epochs, validates and ends; any thread asks. One lock guards what they
share, and no count is asked for while it is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    Validation is counted apart: it is expected to take as long as the last time.

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
        self._epochs_begun = self._validations = 0
        self._validated = False  # in this epoch
        self._since: float | None = None  # when the validation that goes on began
        self._parts = _none_known
        self._took = 0.0  # seconds, of the last validation

    def begin(self, epoch: int | None, count: Callable[[], EpochCount]) -> None:
        """Note that an epoch begins; any thread may call ``count``."""
        now, found = self._now(), count()
        with self._lock:
            if not self._marks:
                self._began = found.batch
            self._marks = *self._marks[-1:], (now, (epoch or 1) - 1 + (found.share or 0.0))
            self._epoch, self._count = epoch, count
            self._epochs_begun += 1
            self._validated = False

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Note that the block is the validation of an epoch, whose batches are all used."""
        with self._lock:
            self._since, self._parts = self._now(), _none_known
        try:
            yield
        finally:
            with self._lock:
                self._took, self._since = self._now() - self._since, None
                self._marks = tuple((began + self._took, place) for began, place in self._marks)
                self._validations += 1
                self._validated = True

    def count_parts(self, parts: Callable[[], tuple[int, int]]) -> None:
        """Have the parts of the validation counted so; any thread may call ``parts``."""
        self._parts = parts

    def validated_parts(self) -> tuple[int, int] | None:
        """Return how many parts are validated, of how many; None unless validation goes on."""
        return None if self._since is None else self._parts()

    def end(self) -> None:
        """Note that training has ended where it is."""
        found = self.progress()
        with self._lock:
            self._ended = None if found is None else replace(found, left=None, validating=None)
            self._count = None

    def progress(self) -> TrainingProgress | None:
        """Return how far training is; None before the first epoch."""
        with self._lock:
            epoch, count, ended = self._epoch, self._count, self._ended
        if count is None:
            return ended
        now, found, parts = self._now(), count(), self.validated_parts()
        with self._lock:
            left = None if self._epoch != epoch else self._left(now, found)
        return TrainingProgress(epoch, self._epochs, found.batch, found.batches, left, parts)

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
        if gone <= 1e-9:
            return None
        since = self._since
        trained = (now if since is None else since) - began
        left = trained / gone * max(0.0, ahead) + self._validations_left(now)
        # The first validation after the last epoch is all that is left, and nobody knows how much.
        return None if since is not None and not left and not self._validations else left

    def _validations_left(self, now: float) -> float:
        if not self._validations:
            return 0.0
        ended = self._epochs_begun if self._validated else self._epochs_begun - 1
        each = self._took * self._validations / max(1, ended)  # not every epoch may have one
        if self._since is not None:
            present = max(0.0, self._took - (now - self._since))
        else:
            present = 0.0 if self._validated else each
        return present + each * max(0, (self._epochs or 1) - (self._epoch or 1))


def _none_known() -> tuple[int, int]:
    return (0, 0)
