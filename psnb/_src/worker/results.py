"""ResultSender: results and reports on their way from the closure threads to the coordinator.

When a closure ends, that is sent immediately if no more closures wait. Otherwise results are
gathered until they are as many as the closures that still wait, so that the coordinator can send
more in time, or for `HELD_SECONDS`. What the steps of one that continues have come to, and have
reported, is held for `held_seconds`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sized
from contextlib import suppress

from psnb._src.protocol.messages import (
    EFFECTIVE,
    ClosureResult,
    ClosureResults,
    Taken,
    held_seconds,
)
from psnb._src.worker.attempt import NO_TIME, StepAttempt
from psnb._src.worker.reports import ReportedStates

HELD_SECONDS = 0.015
"""Seconds that a result waits at most for others to be sent with it."""


class ResultSender:
    """Gathers what closure threads hand over; `expect` belongs to the event loop.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The loop whose timer sends.
    unstarted : collection
        The closures that wait to be run; only its length is used.
    send : callable
        Sends them; called by any thread.
    ticked : callable
        Called with each tick, while results are expected.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unstarted: Sized,
        send: Callable[[ClosureResults], None],
        ticked: Callable[[], object] = bool,
    ) -> None:
        self._loop, self._unstarted, self._send, self._ticked = loop, unstarted, send, ticked
        # Keeps messages in order. While it is held, a message is made, with the states of users'
        # metrics, and pickled, and a socket is written that does not block.
        self._sending = threading.Lock()
        self._unsent: list[_Held] = []  # guarded by it: what there was no memory to send
        self.workers = 1  # of the coordinator
        self._lock = threading.Lock()  # guards the next four, used by several threads
        self._held = _Held()
        self._urgent = False  # something is here that is not of a closure that continues
        self._sent_at = time.monotonic()
        self._expected = 0  # results that are still to come
        self._ticking = False  # the loop's alone

    def expect(self, count: int) -> None:
        """Expect this many more results, or fewer if it is negative."""
        with self._lock:
            self._expected += count
        if not self._ticking and self._expected:
            self._ticking = True
            self._loop.call_later(HELD_SECONDS, self._tick)

    def add_step(self, attempt: StepAttempt) -> None:
        """Hand over one of several steps that has had its effect; any thread."""
        with self._lock:
            self._held.steps[attempt.assignment.closure].add(attempt)
            # What it has used up, such as a partition that Dask holds for it, is let go then.
            self._urgent |= any(each.ended for each in attempt.requests.used)
            self._held.phases.append(attempt.clock.seconds)

    def end(self, closure: int, last: ClosureResult | None, phases: list[float]) -> None:
        """Note that a closure has ended: no more steps of it come.

        Parameters
        ----------
        closure : int
            Its id.
        last : ClosureResult or None
            With what it ends, if that was not handed over as a step.
        phases : list of float
            How long that step was in each phase, in seconds.
        """
        with self._lock:
            held = self._held
            self._expected -= 1
            if last is None:
                held.steps[closure].ended = True
            else:
                held.last.append(last)
                held.phases.append(phases)
            held.ended += 1
            self._urgent = True
            enough = held.ended >= len(self._unstarted)
        if enough:
            self._try_flush()

    def add_report(self, when: float, values: dict[str, float], *, urgent: bool = True) -> None:
        """Hand metrics over; they go with the next results, or after `HELD_SECONDS`.

        If they are not urgent: after `held_seconds`.
        """
        with self._lock:
            self._held.reports.append((when, values))
            self._urgent |= urgent

    def add_taken(self, taken: Taken, *, urgent: bool = True) -> None:
        """Hand over what a closure has taken, likewise."""
        with self._lock:
            self._held.taken.append(taken)
            self._urgent |= urgent

    def flush(self) -> None:
        """Send all there is, if there is anything; any thread.

        Raises
        ------
        MemoryError
            If there is no memory for a message. It is sent later, in the same order.
        """
        with self._sending:
            with self._lock:
                if self._held:
                    self._unsent.append(self._held)
                    self._held = _Held()
                self._urgent, self._sent_at = False, time.monotonic()
            while self._unsent:
                self._send(self._unsent[0].message())
                del self._unsent[0]

    def flush_due(self) -> None:
        """Send what has been held for as long as it may be; any thread."""
        with self._lock:
            due = self._urgent or time.monotonic() - self._sent_at >= held_seconds(self.workers)
        if due or self._unsent:
            self._try_flush()

    def _try_flush(self) -> None:
        with suppress(MemoryError):  # the next tick or heartbeat may have some
            self.flush()

    def close(self) -> None:
        """Expect nothing any more."""
        with self._lock:
            self._expected = 0

    def _tick(self) -> None:
        with self._lock:
            self._ticking = self._expected > 0
        try:
            if self._ticking:
                self.flush_due()
            else:
                self._try_flush()
        finally:
            self._ticked()
            if self._ticking:
                self._loop.call_later(HELD_SECONDS, self._tick)


class _Held:
    """What is held back, in the order in which it came."""

    def __init__(self) -> None:
        self.steps: defaultdict[int, _StepsDone] = defaultdict(_StepsDone)  # by closure
        self.last: list[ClosureResult] = []  # with what closures have ended, after their steps
        self.ended = 0  # how many closures have
        self.taken: list[Taken] = []
        self.reports: list[tuple[float, dict[str, float]]] = []
        self.phases: list[list[float]] = [NO_TIME]  # of steps, in seconds

    def __bool__(self) -> bool:
        return bool(self.taken or self.reports or self.steps or self.last)

    def message(self) -> ClosureResults:
        """Return all of it; may run what users have written."""
        together = [float(sum(each)) for each in zip(*self.phases, strict=True)]
        results = [result for closure, each in self.steps.items() for result in each.of(closure)]
        told: dict[int, int] = {}
        for each in self.steps.values():
            told |= told_of(each.wrote)
        taken = joined(self.taken, told) if told else self.taken
        return ClosureResults(taken, self.reports, together, results + self.last)


class _StepsDone:
    """What some of a closure's several steps have come to since that was last sent.

    Not the attempts, with batches and gradients: it waits here for up to five seconds.
    """

    def __init__(self) -> None:
        self.wrote: dict[int, bool] = {}  # by number, whether they wrote something
        self.ended = False  # no more of them come
        self._seconds, self._pushed = 0.0, False
        self._staleness: list[int] = []
        self._values: list[bytes] = []
        self._reports: list[tuple[ReportedStates, bytes]] = []  # and each packed

    def add(self, attempt: StepAttempt) -> None:
        self.wrote[attempt.assignment.number] = bool(attempt.updates)
        self._seconds += sum(attempt.clock.seconds)
        self._pushed |= attempt.updates.pushed
        if attempt.staleness is not None:
            self._staleness.append(attempt.staleness)
        if attempt.assignment.results:
            self._values.append(attempt.value)
        if attempt.front:
            self._reports.append((attempt.states, attempt.front))

    def of(self, closure: int) -> list[ClosureResult]:
        """Return it as results of the closure; may run what users have written."""
        apart, front = self._reported()
        done = closure, len(self.wrote), self.ended, True, front, self._values
        result = ClosureResult(*done, self._seconds, self._pushed, self._staleness)
        rest = (), 0.0, False, ()
        return [*(ClosureResult(closure, 0, False, True, each, *rest) for each in apart), result]

    def _reported(self) -> tuple[list[bytes], bytes]:
        """Return what was reported, packed: each if they cannot be merged, or all in one."""
        packed = [each for _, each in self._reports]
        if len(packed) < 2:
            return [], b"".join(packed)
        try:
            states = ReportedStates()
            for each, _ in self._reports:
                states.absorb(each)
            return [], states.packed()
        except Exception:  # of another metric by the same name, or a user's that fails
            return packed, b""


def told_of(wrote: Mapping[int, bool]) -> dict[int, int]:
    """Return in whose name the notebook hears what steps of a closure have taken, by number.

    What those took that wrote nothing is used if the notebook counts them, all or none of them: it
    may have given up their closure before. So it hears of that in the name of the last of them.
    """
    quiet = [number for number, wrote_any in wrote.items() if not wrote_any]
    return dict.fromkeys(wrote, EFFECTIVE) | dict.fromkeys(quiet, max(quiet, default=0))


def joined(taken: list[Taken], told: Mapping[int, int]) -> list[Taken]:
    """Join what steps have taken side by side in one name."""
    found: list[Taken] = []
    for each in taken:
        if each.closure in told:
            each = each._replace(closure=told[each.closure])
            last = found[-1] if found else None
            if last and not last.ended and (*last[:3], last.at + last.size) == each[:4]:
                each = each._replace(at=last.at, size=last.size + each.size)
                found.pop()
        found.append(each)
    return found
