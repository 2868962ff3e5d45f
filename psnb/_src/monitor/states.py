"""The states of coordinators, workers and servers: the meaning and the tone of each. Pure.

They are defined here once. Widget, panel, saved summary and progress line show the words as they
are, and have one colour a tone.
"""

from __future__ import annotations

from typing import Literal

Tone = Literal["good", "busy", "waiting", "bad", "quiet"]
"""How good a state is: all is well; work is done; something is awaited, or held back on purpose;
people must do something; nothing runs any more, or nothing is known."""


CLOSED = "closed"

RUNNING = "running"

IDLE = "idle"

COORDINATOR_STATES: dict[str, tuple[Tone, str]] = {
    CLOSED: ("quiet", "It was closed; these are its last figures."),
    "failing": ("bad", "A closure has failed. The next schedule, join or done raises its error."),
    "parameters lost": (
        "bad",
        "Servers are lost with all copies of some parameters. strategy.recover() brings these back "
        "from a checkpoint, strategy.recover(initialize=True) starts over without one.",
    ),
    "draining": ("waiting", "No closure begins any more; those that workers have end."),
    "paused": ("waiting", "No closure begins until Resume."),
    "no workers": (
        "bad",
        "Closures wait, and there is no worker. Start one, for example with `dask worker`.",
    ),
    RUNNING: ("busy", "Closures run or wait."),
    IDLE: ("good", "All that was scheduled has ended."),
}
"""The states of a coordinator, each with its tone and what it means."""

WORKER_TONES: dict[str, Tone] = {
    "connecting": "waiting",
    "ready": "good",
    "draining": "waiting",
    "retired": "quiet",
    "lost": "bad",
    "released": "quiet",
}
"""The states of a worker. Retired is one that left on purpose; released, one whose coordinator was
closed."""

SERVER_TONES: dict[str, Tone] = {
    "unknown": "quiet",
    "serving": "good",
    "unreachable": "bad",
    "lost": "bad",
    "released": "quiet",
}
"""The states of a server. Unknown is one that was not asked yet; lost, one whose process has ended,
until all shards have a server again; released, one whose coordinator was closed."""


def coordinator_state(
    *,
    closed: bool = False,
    failing: bool = False,
    parameters_lost: bool = False,
    paused: bool = False,
    queued: int = 0,
    in_flight: int = 0,
    workers: int = 1,
) -> str:
    """Return the state of a coordinator.

    Parameters
    ----------
    closed : bool
        Whether it was closed.
    failing : bool
        Whether the error of a closure waits to be raised.
    parameters_lost : bool
        Whether shards are lost with all of their replicas.
    paused : bool
        Whether no closures are begun.
    queued, in_flight : int
        Closures that wait, and closures that workers have.
    workers : int
        Workers that are here, or that it is connecting to.
    """
    if closed:
        return CLOSED
    if failing:
        return "failing"
    if parameters_lost:
        return "parameters lost"
    if paused:
        return "draining" if in_flight else "paused"
    if queued and not workers:
        return "no workers"
    return RUNNING if queued or in_flight else IDLE


def coordinator_tone(state: str) -> Tone:
    """Return the tone of a coordinator's state; an unknown state is quiet."""
    return COORDINATOR_STATES[state][0] if state in COORDINATOR_STATES else "quiet"


def meaning(state: str) -> str:
    """Return what a coordinator's state means, in a sentence; nothing for an unknown state."""
    return COORDINATOR_STATES[state][1] if state in COORDINATOR_STATES else ""
