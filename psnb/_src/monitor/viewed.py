"""Viewed: a coordinator's interface for views and their controls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psnb._src.monitor.counters import Staleness, Timeline
from psnb._src.monitor.events import Event, EventLog
from psnb._src.monitor.failures import FailureLog
from psnb._src.monitor.history import History
from psnb._src.monitor.metrics import MergedMetrics
from psnb._src.monitor.protocol import CommandName, Identity
from psnb._src.monitor.statistics import Statistics
from psnb._src.monitor.worker_output import OutputLog


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one coordinator.

    Attributes
    ----------
    history : History
        What closures reported.
    merged : MergedMetrics
        The metrics that they reported as states, merged.
    staleness : Staleness
        How stale their updates were.
    events : EventLog
        What happened to workers and closures.
    failures : FailureLog
        Which closures raised, and what.
    timeline : Timeline
        When closures ran where.
    output : OutputLog
        What closures printed, by worker.
    """

    history: History
    merged: MergedMetrics
    staleness: Staleness
    events: EventLog
    failures: FailureLog
    timeline: Timeline
    output: OutputLog

    @classmethod
    def empty(cls, unpack: Callable[[bytes], BaseException]) -> Records:
        """Return new records; ``unpack`` as for `FailureLog`."""
        history = History()
        merged, failures = MergedMetrics(history), FailureLog(unpack)
        return cls(history, merged, Staleness(), EventLog(), failures, Timeline(), OutputLog())

    def history_until_now(self) -> History:
        """Return the history with the very last values of merged metrics; any thread.

        While it is only looked at, they are merged once in a while, as merging takes time.
        """
        self.merged.draw(time.time(), period=0.0)
        return self.history

    def cut(self, back: float) -> None:
        """Note that parameters have gone back to a `History.moment`: views count from here."""
        now = time.time()
        self.merged.begin(now)
        self.history.cut(now, back)


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

    def tables(self) -> Sequence[str]:
        """Return the names of the embeddings; cheap."""

    def controls(self) -> dict[CommandName, str]:
        """Return for each command why it cannot be given now; empty if it can."""

    def watch(self) -> None:
        """Keep the figures of the servers up to date for some seconds."""

    def command(self, name: CommandName) -> Callable[..., Any]:
        """Return what carries a command out: a function of its arguments.

        It does what the method of the same name of a `ClusterCoordinator` does; ``stop_training``
        ends the training of a trainer when what runs has ended, and ``describe_table``,
        ``look_up_row`` and ``worker_output`` return what a reply has.
        """
