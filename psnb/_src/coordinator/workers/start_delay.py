"""StartDelay: workers that begin one after the other. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from psnb._src.checks import seconds


@dataclass(frozen=True, slots=True)
class StartDelay:
    """How long a worker waits before it takes its first closure.

    After TensorFlow's environment variables ``TF_COORDINATOR_SCHEDULE_START_DELAY`` and
    ``TF_COORDINATOR_SCHEDULE_START_DELAY_MAX``.

    Attributes
    ----------
    step : float
        Seconds that each worker waits longer than the one before it.
    most : float
        Seconds that a worker waits at most.

    Raises
    ------
    ConfigurationError
        If one of them is negative or not a number.
    """

    step: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        step = seconds("start_delay", self.step, zero=True)
        most = seconds("start_delay_max", self.most, zero=True, infinite=True)
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "most", most)

    def seconds(self, index: int) -> float:
        """Return how many seconds the worker of an index waits."""
        return min(index * self.step, self.most)
