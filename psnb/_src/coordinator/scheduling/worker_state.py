"""WorkerState: what the scheduler knows of one session on a worker. Pure.

The event loop changes it; any thread may ask for `statistics`.
"""

from __future__ import annotations

from psnb._src.coordinator.scheduling.figures import WorkerFigures
from psnb._src.coordinator.scheduling.load import Load
from psnb._src.coordinator.scheduling.states import ConnectionState, check_connection_transition
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.worker.context import InputContext


class WorkerState:
    """One session on a worker, from its connecting to its end.

    Parameters
    ----------
    name, address : str
        The worker.
    index : int
        Its index among the coordinator's workers.
    session : int
        The number of the session, unique within the coordinator.
    num_workers : int
        How many workers there are as it begins.

    Attributes
    ----------
    name, address, index, session
        As given.
    state : ConnectionState
        Where it is between connecting and its end.
    place : InputContext
        Which part of the input it reads, where its closures read parts.
    started : bool
        Whether it may be sent closures.
    threads : int
        Closures that the worker can run at the same time; `Load` has how many it is to.
    load : Load
        The closures that it has.
    figures : WorkerFigures
        What it has done.
    asked_to_stop : set of int
        The ids of the closures that it was asked to end early, after another one has failed.
    """

    def __init__(self, name: str, address: str, index: int, session: int, num_workers: int) -> None:
        self.name, self.address, self.index, self.session = name, address, index, session
        self.place = InputContext(num_workers, index)
        self.state, self.started, self.threads = ConnectionState.CONNECTING, False, 1
        self.load, self.figures = Load(), WorkerFigures(name, address, index)
        self.asked_to_stop: set[int] = set()

    def __str__(self) -> str:
        return f"worker {self.name!r} at {self.address}"

    def enter(self, state: ConnectionState) -> None:
        """Go to another state."""
        check_connection_transition(self.state, state)
        self.state = state

    @property
    def gets_closures(self) -> bool:
        """Whether it may be sent closures now."""
        return self.started and self.state is ConnectionState.READY

    def has_free_threads(self) -> bool:
        """Return whether the worker has threads without work."""
        return self.state is ConnectionState.READY and len(self.load) < self.load.threads

    def statistics(self) -> WorkerStatistics:
        """Return a snapshot; any thread may call."""
        return self.figures.snapshot(self.state, len(self.load), self.load.threads)
