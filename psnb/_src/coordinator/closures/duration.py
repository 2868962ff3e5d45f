"""Duration: how long the closures of one function take, as known so far. Pure."""

from __future__ import annotations

_WEIGHT = 0.2
"""Weight of the newest closure in the mean."""


class Duration:
    """An exponential moving average; belongs to the event loop, any thread may read `mean`.

    Attributes
    ----------
    mean : float or None
        Seconds; None before the first closure has ended.
    """

    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean: float | None = None

    def add(self, seconds: float) -> None:
        """Add the duration of a closure."""
        old = self.mean
        self.mean = seconds if old is None else old + _WEIGHT * (seconds - old)
