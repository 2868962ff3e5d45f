"""WorkerFigures: what one worker has done. The event loop writes, any thread reads."""

from __future__ import annotations

import time
from collections.abc import Sequence

from psnb._src.coordinator.workers.connection_state import ConnectionState
from psnb._src.monitor import Rate, WorkerStatistics


class WorkerFigures:
    """Counts what one worker does.

    Parameters
    ----------
    name, address : str
        The worker.
    index : int
        Its index among the coordinator's workers.

    Attributes
    ----------
    memory : int or None
        Bytes that its process takes, if they are known.
    """

    def __init__(self, name: str, address: str, index: int) -> None:
        self._name, self._address, self._index = name, address, index
        self.memory: int | None = None
        self._completed = self._failed = 0
        self._busy_seconds = 0.0
        self._ended, self._busy = Rate(), Rate()  # closures, and the seconds that they took

    def add(self, seconds: Sequence[float], completed: int, failed: int) -> None:
        """Count closures that have ended.

        Parameters
        ----------
        seconds : sequence of float
            How long each took, also of those of which it is not known yet how they ended.
        completed, failed : int
            How many have succeeded, and how many have raised.
        """
        now, total = time.monotonic(), sum(seconds)
        self._ended.add(len(seconds), now)
        self._busy.add(total, now)
        self._busy_seconds += total
        self._completed += completed
        self._failed += failed

    def snapshot(self, state: ConnectionState, in_flight: int, threads: int) -> WorkerStatistics:
        """Return the figures now.

        Parameters
        ----------
        state : ConnectionState
            The state of the connection.
        in_flight : int
            Closures that the worker has.
        threads : int
            Closures that it runs at the same time.
        """
        now = time.monotonic()
        return WorkerStatistics(
            name=self._name,
            address=self._address,
            index=self._index,
            state=state.value,
            in_flight=in_flight,
            completed=self._completed,
            failed=self._failed,
            busy_seconds=self._busy_seconds,
            closures_per_second=self._ended.value(now),
            busy=self._busy_share(now, min(in_flight, threads), threads),
            memory=self.memory,
        )

    def _busy_share(self, now: float, running: int, threads: int) -> float:
        # The time of a closure is counted when it ends, even if it takes longer than the window.
        seconds = self._busy.value(now)
        if running and not self._ended.value(now):
            seconds = float(running)
        return min(1.0, seconds / threads)
