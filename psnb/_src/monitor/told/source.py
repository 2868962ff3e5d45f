"""Viewed: what a view may ask of a coordinator, and have it do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from psnb._src.monitor.recorded import Event, Records, Statistics
from psnb._src.monitor.told.protocol import CommandName, Identity


class Viewed(Protocol):
    """A coordinator, to its views; all members may be used from any thread."""

    @property
    def id(self) -> str:
        """What tells it from all other coordinators."""

    @property
    def records(self) -> Records:
        """What its connections have written down."""

    def statistics(self) -> Statistics:
        """Return the state of affairs now."""

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return what happened later than that, the oldest first; seconds since the epoch."""

    def identity(self) -> Identity:
        """Return who it is, for people."""

    def optimizers(self) -> Mapping[str, tuple[str, float | str]]:
        """Return class and learning rate of each parameter's optimizer; cheap."""

    def controls(self) -> dict[CommandName, str]:
        """Return for each command why it cannot be given now; empty if it can."""

    def watch(self) -> None:
        """Keep figures fresh that take asking the servers, for some seconds."""

    def pause(self) -> None:
        """Begin no more closures."""

    def resume(self) -> None:
        """Go on."""

    def drain(self, timeout: float | None = None) -> None:
        """Pause, and wait until nothing runs."""

    def cancel_queued(self) -> int:
        """Cancel what waits; return how many closures that was."""

    def checkpoint(self) -> Path:
        """Save all parameters; return where."""

    def set_learning_rate(self, parameter: str, value: float) -> None:
        """Set an optimizer's learning rate."""

    def add_worker(self) -> None:
        """Have the cluster start one worker more."""

    def retire_worker(self, worker: str) -> None:
        """Have a worker finish its closures and leave."""

    def note_command(self, message: str) -> None:
        """Note among the events that somebody gave a command."""
