"""Callers: the threads that wait for a queue's closures, and what is raised to them.

It has no lock of its own: all is called under the queue's lock, which the two conditions share and
which a thread that waits gives up meanwhile.

After the first failure the running closures are waited for; then the next of those who put, join or
ask whether all is done gets the first error once, with the other errors so far attached
(`FailedClosures`). After that the queue is as new. Who puts a closure after `RemoteValue.fetch` has
raised all errors gets none: in a notebook, a cell that is right would fail for an earlier one. When
all that is left waits for a server that does not respond, those who wait get an error that changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from psnb._src.coordinator.queue.scheduled_closures import ScheduledClosures
from psnb._src.excerpt import counted
from psnb._src.shown_error import timed_out
from psnb._src.threads import Condition
from psnb.errors import CoordinatorClosedError, ServerSilentError


class Callers:
    """Those who wait for room, for outcomes, or for the end of all.

    Parameters
    ----------
    closures : ScheduledClosures
        What they wait for.
    room : Condition
        For those who wait to put a closure.
    settled : Condition
        For those who wait for outcomes.
    ended : callable
        Returns why what it schedules for cannot be used any more, and what to do; None if it can.
    """

    def __init__(
        self,
        closures: ScheduledClosures,
        room: Condition,
        settled: Condition,
        ended: Callable[[], CoordinatorClosedError | None],
    ) -> None:
        self._closures, self._room, self._settled = closures, room, settled
        self._ended = ended
        self._idle_callbacks: list[Callable[[], None]] = []

    def add_idle_callback(self, callback: Callable[[], None]) -> None:
        """Call back whenever nothing waits or runs any more."""
        self._idle_callbacks.append(callback)

    def remove_idle_callback(self, callback: Callable[[], None]) -> None:
        """Undo `add_idle_callback`."""
        self._idle_callbacks.remove(callback)

    def announce(self) -> None:
        """Wake those who may have got what they wait for; after closures have ended or moved."""
        closures = self._closures
        if not closures.closed:
            closures.go_on()
        self._settled.notify_all()
        if closures.errors or closures.closed:
            self._room.notify_all()
        if self._idle_callbacks and self._is_over():
            for callback in self._idle_callbacks:
                callback()

    def require_open(self) -> None:
        """Raise CoordinatorClosedError if the queue is closed."""
        if self._closures.closed:
            ended = self._ended()
            if ended is None:
                raise CoordinatorClosedError(
                    "the coordinator is closed: make a new one with "
                    "psnb.ClusterCoordinator(strategy)"
                )
            if type(ended) is CoordinatorClosedError:
                raise CoordinatorClosedError(f"{ended}, and a coordinator of it")
            raise ended

    def wait_for_room(self, max_size: int) -> None:
        """Wait until fewer closures than ``max_size`` are queued; raise a pending error."""
        while True:
            self.require_open()
            if self._closures.errors:
                self._wait_for_running()
                if self._closures.errors.fetched():
                    self._closures.clear_errors()
                else:
                    self._closures.errors.throw()
                continue
            if self._closures.queued() < max_size:
                return
            self._room.wait()

    def wait_for_rest(self, timeout: float | None) -> None:
        """Wait until nothing runs; see `ClosureQueue.wait_until_nothing_runs`."""
        closures = self._closures

        def ended() -> bool:
            return closures.closed or closures.at_rest() or self._stuck(closures.begins())

        if not self._settled.wait_for(ended, timeout):
            left = counted(len(closures.in_flight), "closure")
            raise timed_out(f"after {timeout} s: {left} in flight; all goes on")
        if not closures.closed and not closures.at_rest():
            self._raise_held_up()

    def is_over_within(self, seconds: float) -> bool:
        """Wait until all is over, for so long at most, and return whether it is; raises nothing."""
        return self._settled.wait_for(self._is_over, seconds)

    def end_join(self, timeout: float | None) -> None:
        """Raise what there is, or that it is not over after ``timeout`` seconds."""
        if not self._is_over():
            queued, in_flight = self._closures.queued(), len(self._closures.in_flight)
            left = f"{counted(queued, 'closure')} queued and {in_flight} in flight"
            if not queued and not in_flight:
                left = "what closures pushed is not applied yet"
            raise timed_out(f"after {timeout} s: {left}; all goes on")
        self.require_open()
        self._raise_what_there_is()

    def done(self) -> bool:
        """Return whether all is over, and raise what there is; see `ClosureQueue.done`."""
        self.require_open()
        if not self._is_over():
            return False
        self._raise_what_there_is()
        return True

    def _is_over(self) -> bool:
        # Whether those who wait for all should stop: nothing is left, or the rest is held up.
        # Who holds dispatch does so for a moment: then it goes on.
        closures = self._closures
        return closures.closed or self._finished() or self._stuck(not closures.paused)

    def _finished(self) -> bool:
        return not self._closures.queued() and self._closures.at_rest()

    def _stuck(self, begins: bool) -> bool:
        # Whether nothing runs, and what is left waits for a server that does not respond.
        closures = self._closures
        goes_on = closures.waiting and begins and closures.gate.open()
        in_flight = closures.in_flight
        return bool(in_flight.held_up) and not goes_on and not in_flight.running()

    def _wait_for_running(self) -> None:
        # A caller of put comes here while closures still run. Another thread may raise the errors
        # meanwhile, and go on.
        closures = self._closures
        self._settled.wait_for(
            lambda: (
                closures.closed
                or not closures.errors
                or not closures.in_flight
                or self._stuck(not closures.paused)
            )
        )

    def _raise_what_there_is(self) -> None:
        if self._closures.errors:
            self._wait_for_running()
        if self._closures.errors:
            self._closures.errors.throw()
        if not self._finished():
            self._raise_held_up()

    def _raise_held_up(self) -> None:
        # Once; if it is held up still, those who wait again get the error again.
        in_flight = self._closures.in_flight
        text, in_flight.held_up = in_flight.held_up, ""
        raise ServerSilentError(
            f"{text}. {counted(in_flight.open(), 'closure')} waiting for its answer, to go on then"
        )
