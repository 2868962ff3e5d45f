"""Chaos: kills and freezes processes of a cluster at random moments, from a thread of its own.

It waits for nothing to be mended in between.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from tests.soak.processes import Process, Processes
from tests.soak.table import Row

logger = logging.getLogger(__name__)

_FREEZE = (0.1, 6.0)
"""Seconds: shorter and longer than anybody is patient."""

_CUT = (0.1, 45.0)
"""Seconds, most of them few: some cuts are longer than Dask waits by default."""

_MEND = 2.0
_START, _SLOWEST = 1.5, 2.0
"""Seconds that importing all that a worker needs takes on two idle cores; at most so many times."""


class Chaos:
    """Does harm for as long as its block runs; then wakes whom it froze.

    ``every`` has the seconds between two harms of a kind, on average: ``worker``, ``server``
    (killed), ``freeze`` (any), ``freeze worker``, ``cut``. ``note_kill`` hears addresses of servers
    right before they are killed.
    """

    def __init__(
        self,
        processes: Processes,
        rng: np.random.Generator,
        every: Mapping[str, float],
        row: Row,
        note_kill: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._processes, self._rng, self._every, self._row = processes, rng, every, row
        self._note_kill = note_kill
        self._pace = _pace()
        logger.info("chaos: it takes %.1f times as long as on an idle machine", self._pace)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos")
        self._error: BaseException | None = None

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        numbers = itertools.count()
        due: list[tuple[float, int, str, Callable[[], None]]] = []

        def later(seconds: float, kind: str, act: Callable[[], None]) -> None:
            heapq.heappush(due, (time.monotonic() + seconds, next(numbers), kind, act))

        for kind in self._every:
            later(self._next(kind), kind, lambda: None)
        later(_MEND, "mend", lambda: None)
        try:
            while not self._stop.wait(max(0.0, due[0][0] - time.monotonic())):
                _, _, kind, act = heapq.heappop(due)
                act()
                if kind == "mend":
                    self._processes.mend()
                    later(_MEND, kind, lambda: None)
                elif kind != "undo":
                    if undo := self._harm(kind):
                        later(self._lasts(kind), "undo", undo)
                    later(self._next(kind), kind, lambda: None)
        except BaseException as error:  # a thread's: told by whoever ends it
            self._error = error
        for _, _, _, act in due:
            act()
        self._processes.mend()  # or what was killed last would be missing, perhaps all workers

    def _lasts(self, kind: str) -> float:
        if kind == "cut":
            return float(np.exp(self._rng.uniform(*np.log(_CUT))))
        return self._rng.uniform(*_FREEZE)

    def _next(self, kind: str) -> float:
        return self._rng.exponential(self._every[kind] * self._pace)

    def _harm(self, kind: str) -> Callable[[], None] | None:
        """Do harm, and return what undoes it."""
        if kind == "cut":
            logger.info("chaos: the link is cut")
            self._processes.cut(True)
            self._row.cuts += 1
            return lambda: self._processes.cut(False)
        wanted = {"worker": (False,), "freeze worker": (False,), "server": (True,)}
        found = [p for p in self._processes.all() if p.is_server in wanted.get(kind, (False, True))]
        if not found:
            return None
        victim: Process = found[self._rng.integers(len(found))]
        logger.info("chaos: %s, %s", kind, victim)
        if kind.startswith("freeze"):
            victim.send(signal.SIGSTOP)
            self._row.freezes += 1
            return lambda: victim.send(signal.SIGCONT)
        self._note_kill(victim.address)  # a worker may have become a server
        victim.send(signal.SIGKILL)
        if victim.is_server:
            self._row.servers_killed += 1
        else:
            self._row.workers_killed += 1
        return None


def _pace() -> float:
    """Return how much slower processes start than on an idle machine: harm leaves them the time."""
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import psnb._src.worker.plugin, psnb._src.server.server"],
        check=True,
    )
    return min(_SLOWEST, max(1.0, (time.monotonic() - begin) / _START))
