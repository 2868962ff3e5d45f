"""Settings: the checked arguments of a coordinator. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from psnb._src.checks import integer
from psnb._src.coordinator.workers import StartDelay, Timeouts
from psnb.errors import ConfigurationError

DEFAULT_QUEUE_SIZE = 262_144


@dataclass(frozen=True, slots=True)
class Settings:
    """How a coordinator schedules; see `ClusterCoordinator`.

    Raises
    ------
    ConfigurationError
        If the queue size is of the wrong kind; the other fields are checked already.
    """

    max_queue_size: int = DEFAULT_QUEUE_SIZE
    timeouts: Timeouts = field(default_factory=Timeouts)
    start_delay: StartDelay = field(default_factory=StartDelay)
    name: str = ""

    def __post_init__(self) -> None:
        size = integer("max_queue_size", self.max_queue_size, 1)
        object.__setattr__(self, "max_queue_size", size)

    def require(self, asked: Settings) -> None:
        """Raise ConfigurationError if ``asked`` differs; its default values are ignored."""
        default = Settings()
        for name in (each.name for each in fields(self)):
            mine, other = getattr(self, name), getattr(asked, name)
            if other not in (getattr(default, name), mine):
                raise ConfigurationError(
                    f"the strategy has a coordinator with {name}={mine!r}: close it first to make "
                    f"one with {other!r}"
                )
