"""The states of coordinators, workers and servers: the meaning and the tone of each. Pure.

They are defined here once. Widget, panel, saved summary and progress line show the words as they
are, and have one colour a tone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Tone = Literal["good", "busy", "waiting", "bad", "quiet"]
"""How good a state is: all is well; work is done; something is awaited, or held back on purpose;
people must do something; nothing runs any more, or nothing is known."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the state of a coordinator is derived from.

    Attributes
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

    closed: bool = False
    failing: bool = False
    parameters_lost: bool = False
    paused: bool = False
    queued: int = 0
    in_flight: int = 0
    workers: int = 1


class StateRule(NamedTuple):
    """A state of a coordinator: its word, its tone, what it means, and when it holds."""

    state: str
    tone: Tone
    meaning: str
    holds: Callable[[Situation], object]


CLOSED = "closed"

RUNNING = "running"

IDLE = "idle"

COORDINATOR_STATES: tuple[StateRule, ...] = (
    StateRule(CLOSED, "quiet", "It was closed; these are its last figures.", lambda s: s.closed),
    StateRule(
        "failing",
        "bad",
        "A closure has failed. The next schedule, join or done raises its error.",
        lambda s: s.failing,
    ),
    StateRule(
        "parameters lost",
        "bad",
        "Servers are lost with all copies of some parameters. strategy.recover() brings these back "
        "from a checkpoint, strategy.recover(initialize=True) starts over without one.",
        lambda s: s.parameters_lost,
    ),
    StateRule(
        "draining",
        "waiting",
        "No closure begins any more; those that workers have end.",
        lambda s: s.paused and s.in_flight,
    ),
    StateRule("paused", "waiting", "No closure begins until Resume.", lambda s: s.paused),
    StateRule(
        "no workers",
        "bad",
        "Closures wait, and there is no worker. Start one, for example with `dask worker`.",
        lambda s: s.queued and not s.workers,
    ),
    StateRule(RUNNING, "busy", "Closures run or wait.", lambda s: s.queued or s.in_flight),
    StateRule(IDLE, "good", "All that was scheduled has ended.", lambda s: True),
)
"""The states of a coordinator: it is in the first one that holds."""

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

_RULES = {rule.state: rule for rule in COORDINATOR_STATES}


def coordinator_state(situation: Situation) -> str:
    """Return the word for the state of a coordinator."""
    return next(rule.state for rule in COORDINATOR_STATES if rule.holds(situation))


def coordinator_tone(state: str) -> Tone:
    """Return the tone of a coordinator's state; an unknown state is quiet."""
    return _RULES[state].tone if state in _RULES else "quiet"


def meaning(state: str) -> str:
    """Return what a coordinator's state means, in a sentence; nothing for an unknown state."""
    return _RULES[state].meaning if state in _RULES else ""
