"""How long a coordinator waits for its workers, and workers for their first closure. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from psnb._src.utils.checks import check_fields, seconds


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


HEARTBEAT = 10.0
"""Seconds, by default, that a worker may give no heartbeat."""


DRAIN = 30.0
"""Seconds, by default, that a leaving worker may take to finish its closures."""


def _timeout(name: str, value: Any) -> float:
    return seconds(f"{name}_timeout", value)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a coordinator waits for its workers.

    Attributes
    ----------
    worker : float or None
        How long queued work waits while there is no worker at all; None waits for ever.
    heartbeat : float
        How long a worker may be unresponsive, or missing though closures wait for it.
    drain : float
        How long a worker that leaves may take to finish its closures.

    Raises
    ------
    ConfigurationError
        If one of them is not a positive number.
    """

    worker: float | None = None
    heartbeat: float = HEARTBEAT
    drain: float = DRAIN

    def __post_init__(self) -> None:
        check_fields(self, _timeout, "worker", "heartbeat", "drain")

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats of a worker: several fit into ``heartbeat``."""
        return min(1.0, self.heartbeat / 4)

    @property
    def rare_beat(self) -> float:
        """The same while nobody looks at what they say."""
        return max(self.beat, min(2.5, self.heartbeat / 4))
