"""Instruction: what the scheduler wants done, by what knows workers, servers and callers. Pure.

`Scheduler.handle` changes its own state only, and returns a list of these: in the order in which
they came, as a failure is recorded before anybody hears that the closure has ended. After
distributed's state machine of a worker, which returns instructions likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.doubts import Doubt
from psnb._src.coordinator.scheduling.gates import ApplyRound, Flush
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.protocol.messages import ToWorker
from psnb._src.utils.range_set import Bounds


@dataclass(frozen=True, slots=True)
class Send:
    """Have a worker run closures, in this order."""

    worker: WorkerState
    closures: Sequence[Work]


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a worker a message that is complete."""

    worker: WorkerState
    message: ToWorker


@dataclass(frozen=True, slots=True)
class EndSession:
    """A worker that leaves has finished what it had."""

    worker: WorkerState


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask the servers; `Decided` is their answer."""

    doubt: Doubt


@dataclass(frozen=True, slots=True)
class ReportSettled:
    """Servers may forget these commits: they are settled."""

    bounds: Bounds


@dataclass(frozen=True, slots=True)
class BalanceLater:
    """Handle `Balance` after some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RecordSteps:
    """Steps of closures have ended on a worker.

    Attributes
    ----------
    worker : WorkerState
        Which.
    seconds : sequence of float
        How long each took, also of those of which it is not known yet how they ended.
    failed : int
        How many have raised.
    staleness : sequence of int
        Of their updates.
    """

    worker: WorkerState
    seconds: Sequence[float]
    failed: int
    staleness: Sequence[int]


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


Instruction = (
    Send
    | Tell
    | EndSession
    | Resolve
    | ReportSettled
    | BalanceLater
    | RecordSteps
    | RecordStates
    | RecordFailure
    | CallBack
    | ApplyRound
    | Flush
)
