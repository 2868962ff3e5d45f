"""SavingSettings: when a manager saves, and what it keeps. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.checks import integer, period, seconds
from psnb._src.excerpt import shown
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class SavingSettings:
    """The checked arguments of a `CheckpointManager`, with periods in seconds.

    Raises
    ------
    ConfigurationError
        If one is of the wrong kind.
    """

    max_to_keep: int = 3
    every: float | None = None
    steps: int | None = None
    keep_every: float | None = None
    full_every: int = 1
    consistent: bool = True
    save_timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("max_to_keep", "full_every", "steps"):
            if name != "steps" or self.steps is not None:
                object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        for name in ("every", "keep_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, period(name, getattr(self, name)))
        object.__setattr__(self, "save_timeout", seconds("save_timeout", self.save_timeout))
        if not isinstance(self.consistent, bool):
            raise ConfigurationError(
                f"consistent must be True or False, found {shown(self.consistent)}"
            )
