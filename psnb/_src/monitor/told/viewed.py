"""Viewed: the interface of a coordinator for its views. OptimizerState: a part of what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from psnb._src.monitor.recorded import Event, Records, Statistics
from psnb._src.monitor.told.protocol import CommandName, Identity
from psnb._src.remote_path import Place


@dataclass(frozen=True)
class OptimizerState:
    """The optimizer of one parameter, now."""

    optimizer: str
    """Its class."""
    learning_rate: float
    """Of the next update, on the parameter's first shard; NaN if its function has none."""
    schedule: str = ""
    """What the rate is a function of the step by; empty if it is a number."""


class Viewed(Protocol):
    """A coordinator, to its views; all members may be used from any thread."""

    @property
    def id(self) -> str:
        """Its unique id."""

    @property
    def records(self) -> Records:
        """What its connections to workers have recorded."""

    def statistics(self) -> Statistics:
        """Return a snapshot of its state now."""

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return the events after a time (seconds since the epoch), oldest first."""

    def identity(self) -> Identity:
        """Return its identity, for people."""

    def optimizers(self) -> Mapping[str, OptimizerState]:
        """Return the optimizer of each parameter; cheap."""

    def controls(self) -> dict[CommandName, str]:
        """Return for each command why it cannot be given now; empty if it can."""

    def watch(self) -> None:
        """Keep the figures of the servers up to date for some seconds."""

    def pause(self) -> None:
        """Begin no new closures."""

    def resume(self) -> None:
        """Begin closures again."""

    def drain(self, timeout: float | None = None) -> None:
        """Pause, and wait until nothing runs."""

    def cancel_queued(self) -> int:
        """Cancel the queued closures; return how many."""

    def stop_training(self) -> None:
        """End the training of a trainer when what runs has ended."""

    def checkpoint(self) -> Place:
        """Save all parameters; return where."""

    def set_learning_rate(self, parameter: str, value: float) -> None:
        """Set an optimizer's learning rate."""

    def add_worker(self) -> None:
        """Let the cluster start one more worker."""

    def retire_worker(self, worker: str) -> None:
        """Let a worker finish its closures and leave."""

    def note_command(self, message: str) -> None:
        """Record an event for a command that was given."""
