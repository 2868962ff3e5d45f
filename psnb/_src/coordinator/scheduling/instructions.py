"""Instruction: what the scheduler wants done, by what knows workers, servers and callers. Pure.

A turn of the scheduler changes its own state only, and ends with a list of these: in the order in
which they came, as a failure is recorded before anybody hears that the closure has ended. After
distributed's state machine of a worker, which returns instructions likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.gates import ApplyRound, Flush
from psnb._src.coordinator.scheduling.work import Work


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Workers that have room should ask for closures: there may be some for them now."""


@dataclass(frozen=True, slots=True)
class EndLong:
    """Long closures should end with the step that they do.

    Dispatch is held, or another closure of their priority or a higher one waits, and no worker has
    room.

    Attributes
    ----------
    worker : str, int or None
        On which worker, by its name or index; None: on all.
    """

    worker: str | int | None


@dataclass(frozen=True, slots=True)
class RecordStates:
    """Steps have reported metrics, packed."""

    packed: bytes


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A closure has failed on a worker, with a pickled exception."""

    worker: str
    closure: Work
    error: bytes


@dataclass(frozen=True, slots=True)
class CallBack:
    """A closure has ended for which somebody wants to be called."""

    remote: RemoteValue


Instruction = Dispatch | EndLong | RecordStates | RecordFailure | CallBack | ApplyRound | Flush
