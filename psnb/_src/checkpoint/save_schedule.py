"""SaveSchedule: when a save is due. Pure, without a clock or locks: the caller has both."""

from __future__ import annotations

import math

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 300.0


class SaveSchedule:
    """Says when the next save is due: a number of seconds or steps after the last, if it is wanted.

    After a failure it is due again after a pause, which grows with each failure.

    Parameters
    ----------
    every : float or None
        Seconds between two saves.
    steps : int or None
        Steps between two saves; with both, whichever comes first.
    now : float
        The time of the beginning, of any clock in seconds.
    step : int
        The step at the beginning.

    Attributes
    ----------
    failures : int
        How many saves have failed since the last that succeeded.
    """

    failures: int
    _saved_at: float
    _saved_step: int
    _not_before: float

    def __init__(self, every: float | None, steps: int | None, now: float, step: int = 0) -> None:
        self._every = math.inf if every is None else every
        self._steps = math.inf if steps is None else steps
        self.saved(now, step)

    @property
    def wanted(self) -> bool:
        """Whether a save is ever due."""
        return min(self._every, self._steps) < math.inf

    def due(self, now: float, step: int) -> bool:
        self._saved_step = min(self._saved_step, step)  # training goes back when it is rewound
        late = now - self._saved_at >= self._every or step - self._saved_step >= self._steps
        return late and now >= self._not_before

    def saved(self, now: float, step: int) -> None:
        """Note a save, of this step."""
        self._saved_at, self._saved_step = now, step
        self._not_before, self.failures = -math.inf, 0

    def failed(self, now: float) -> float:
        """Note that a save has failed, and return the seconds until it is due again."""
        pause = min(_FIRST_PAUSE * 2.0**self.failures, _LONGEST_PAUSE)
        self._not_before = now + pause
        self.failures = min(self.failures + 1, 1000)
        return pause

    def count_from(self, step: int) -> None:
        """Count steps from here."""
        self._saved_step = step
