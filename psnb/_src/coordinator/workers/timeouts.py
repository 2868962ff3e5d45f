"""Timeouts: how long a coordinator waits for its workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.checks import seconds

HEARTBEAT = 10.0
"""Seconds, by default, that a worker may give no sign of life."""

DRAIN = 30.0
"""Seconds, by default, that a leaving worker may take to finish its closures."""


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
        for name in ("worker", "heartbeat", "drain"):
            value = getattr(self, name)
            if name != "worker" or value is not None:
                object.__setattr__(self, name, seconds(f"{name}_timeout", value))

    @property
    def beat(self) -> float:
        """Seconds between two signs of life of a worker: several fit into ``heartbeat``."""
        return min(1.0, self.heartbeat / 4)
