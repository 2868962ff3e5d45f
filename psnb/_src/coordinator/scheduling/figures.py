"""WorkerFigures: what one worker has done. The event loop writes, any thread reads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from psnb._src.coordinator.scheduling.states import ConnectionState
from psnb._src.monitor.counters import Rate
from psnb._src.monitor.history import EXAMPLES
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.utils.phases import PHASES, PhaseStatistics
from psnb._src.utils.stages import Stages

_SAME = 0.5
"""Seconds by which the beginning of one and the same activity may seem to differ."""


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
    activity : str
        What it does, if that takes long.
    stages : dict of str to Stages
        What it has read, by the kind of the chain.
    """

    def __init__(self, name: str, address: str, index: int) -> None:
        self._name, self._address, self._index = name, address, index
        self._memory: int | None = None
        self._gpu_memory: int | None = None
        self._cpu_seconds: float | None = None  # of its process so far
        self._cpu, self._examples = Rate(), Rate()
        self._reports_examples = False
        self.activity = ""
        self.stages: dict[str, Stages] = {}
        self._since: float | None = None
        self._completed = self._failed = 0
        self._busy_seconds = 0.0
        self._ended, self._busy = Rate(), Rate()  # closures, and the seconds that they took
        self._phases = PhaseStatistics()
        self._phases_lately = [Rate() for _ in PHASES]

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
        self.note_activity("", 0.0)  # one that still runs comes with the next heartbeat
        self._ended.add(len(seconds), now)
        self._busy.add(total, now)
        self._busy_seconds += total
        self._completed += completed
        self._failed += failed

    def add_phases(self, seconds: Sequence[float]) -> None:
        """Count how long closures that have ended were in each phase."""
        now = time.monotonic()
        self._phases = PhaseStatistics.sum([self._phases, PhaseStatistics(*seconds)])
        for rate, each in zip(self._phases_lately, seconds, strict=True):
            rate.add(each, now)

    def add_reports(self, reports: Sequence[tuple[float, Mapping[str, float]]]) -> None:
        """Count the examples that its closures have reported."""
        counts = [values[EXAMPLES] for _, values in reports if EXAMPLES in values]
        if counts:
            self._reports_examples = True
            self._examples.add(sum(counts), time.monotonic())

    def note_use(self, memory: int, gpu_memory: int | None, cpu_seconds: float) -> None:
        """Note what its process takes: bytes, of GPUs too if it uses some, and CPU time so far."""
        self._memory, self._gpu_memory = memory, gpu_memory
        before, self._cpu_seconds = self._cpu_seconds, cpu_seconds
        # The first look begins to count: what it took to start is of another time.
        self._cpu.add(0.0 if before is None else cpu_seconds - before, time.monotonic())

    def note_activity(self, activity: str, seconds: float) -> None:
        """Note what the worker does, and for how long already; empty for nothing."""
        since = time.time() - seconds
        # The same as before, by clocks that differ a little?
        if not activity or self._since is None or abs(since - self._since) > _SAME:
            self._since = since if activity else None
        self.activity = activity

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
            examples_per_second=self._examples.value(now) if self._reports_examples else None,
            cpu=None if self._cpu_seconds is None else self._cpu.value(now),
            memory=self._memory,
            gpu_memory=self._gpu_memory,
            activity=self.activity if state is not ConnectionState.LOST else "",
            running_since=self._since if state is not ConnectionState.LOST else None,
            stages=dict(self.stages),
            phases=self._phases,
            phases_lately=PhaseStatistics(*(each.value(now) for each in self._phases_lately)),
        )

    def _busy_share(self, now: float, running: int, threads: int) -> float:
        # The time of a closure is counted when it ends, even if it takes longer than the window.
        seconds = self._busy.value(now)
        if running and not self._ended.value(now):
            seconds = float(running)
        return min(1.0, seconds / threads)
