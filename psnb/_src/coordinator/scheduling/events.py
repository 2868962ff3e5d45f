"""Event: what has happened, and what callers want; `Scheduler.handle` takes it in. Pure.

After the stimuli of distributed's state machine of a worker. A `Work` is an event itself: it is
submitted. There may be millions, and one object more for each slows scheduling down (see `Inbox`).
"""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.coordinator.closures.options import WorkerPredicate
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.doubts import Applied, Doubt
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.monitor.events import EventKind
from psnb._src.protocol.messages import ToNotebook
from psnb.errors import PsnbError


@dataclass(frozen=True, slots=True)
class Joined:
    """A session on a worker is open; it gets closures when it has `Started`."""

    worker: WorkerState


@dataclass(frozen=True, slots=True)
class Started:
    """A worker's ``start_delay`` is over."""

    worker: WorkerState


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker finishes what it has and gets no more, for a reason."""

    worker: WorkerState
    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """A session is over.

    Attributes
    ----------
    worker : WorkerState
        Whose.
    kind : EventKind or None
        How it has ended, as an event; None for no event.
    why : str
        The same in words.
    """

    worker: WorkerState
    kind: EventKind | None
    why: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A worker's session has sent a message."""

    worker: WorkerState
    message: ToNotebook


@dataclass(frozen=True, slots=True)
class CountWorkers:
    """So many workers are here now, or are being connected."""

    workers: int


@dataclass(frozen=True, slots=True)
class SetThreads:
    """Each worker runs ``threads`` closures at the same time; None: as many as it has threads."""

    threads: int | None


@dataclass(frozen=True, slots=True)
class Decided:
    """Servers have said which commits in doubt are applied; or it cannot be found out.

    Attributes
    ----------
    doubt : Doubt
        What was in doubt.
    outcome : mapping or bytes
        What is applied; or a pickled exception.
    """

    doubt: Doubt
    outcome: Applied | bytes


@dataclass(frozen=True, slots=True)
class Blocked:
    """Closures, or a round, wait for a server that does not respond; said again while it lasts."""

    error: Exception


@dataclass(frozen=True, slots=True)
class StepTaken:
    """The gate's step was done, or why it failed."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Hand out no closures until `Resume`, and call back what workers have not begun."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Undo `Pause`."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Begin nothing until as many of `Release`, but for the rest of a round that has begun.

    What workers have not begun comes back, and long closures end with the step that they do. Apart
    from `Pause`, which is the user's.
    """


@dataclass(frozen=True, slots=True)
class Release:
    """Undo `Hold`."""


@dataclass(frozen=True, slots=True)
class BatchRound:
    """One more puts the closures of a round at this moment (+1), or one less (-1)."""

    more: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a closure; one that a worker has only where ``in_flight`` ones are cancelled."""

    remote: RemoteValue
    in_flight: bool = True


@dataclass(frozen=True, slots=True)
class CancelQueued:
    """Cancel all that waits, for a reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Cancel what waits for a worker that this very function chooses; long ones end.

    These were more than was needed, as at the end of an epoch: they are not counted or shown.
    """

    chooser: WorkerPredicate
    reason: str


@dataclass(frozen=True, slots=True)
class FailWaiting:
    """There is no worker to run what waits."""

    error: PsnbError


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Functions that choose workers may choose others by now."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The time of a `BalanceLater` has come."""


@dataclass(frozen=True, slots=True)
class Close:
    """Cancel all that waits or runs; nothing is handed out any more."""


Event = (
    Work
    | Joined
    | Started
    | Leaving
    | Left
    | Heard
    | CountWorkers
    | SetThreads
    | Decided
    | Blocked
    | StepTaken
    | Pause
    | Resume
    | Hold
    | Release
    | BatchRound
    | Cancel
    | CancelQueued
    | Withdraw
    | FailWaiting
    | LookAgain
    | Balance
    | Close
)
