"""ClosureQueue: what threads want of a `Scheduler`, which belongs to the event loop.

Callers `put`, `join` and ask whether all is `done`. Commands go through an `Inbox`; a thread that
waits sleeps on an answer of its own. So no thread holds what the loop needs, and what one thread
posts is carried out in that order.

After the first failure the running closures are waited for; then the next of those who put, join
or ask whether all is done gets the first error once, with the other errors so far attached
(`FailedClosures`). After that the queue is as new. A caller that puts a closure after
`RemoteValue.fetch` has raised all errors gets none: in a notebook, a cell that is right would fail
for an earlier one. When all that is left waits for a server that does not respond, those who wait
get an error that changes nothing.

An interrupt of the main thread comes before or after what a method does, or while it waits: methods
are sections (`uninterrupted`), as an interrupt between two commands would leave a hold behind, or
take an error that is then lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from psnb._src.coordinator.closures.failures import raise_failed
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue, Signal
from psnb._src.coordinator.scheduling.events import (
    BatchRound,
    Cancel,
    CancelQueued,
    Close,
    Event,
    Hold,
    Pause,
    Release,
    Resume,
)
from psnb._src.coordinator.scheduling.scheduler import QueueStatistics, Scheduler
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.utils.inbox import Inbox
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.range_set import Bounds
from psnb._src.utils.text import counted
from psnb._src.utils.tracebacks import timed_out

_LOOK_AGAIN = 1.0
"""Seconds between two calls of what looks after something else while a coroutine waits."""


_CATCH_UP = 0.2
"""Seconds that figures wait for the loop: it may wait for a lock that who asks for them holds."""


_Ended = tuple[list[RemoteValue]]
"""What waiting has ended with: the closures whose errors are to be raised. Never false."""


class ClosureQueue:
    """The way of any thread to a scheduler.

    Parameters
    ----------
    max_size : int
        How many closures may wait; `put` blocks beyond that.
    scheduler : Scheduler
        To look at, and take errors from, on the loop.
    handle : callable
        Has the scheduler take events in, and answers those who wait; on the loop.
    loop : asyncio.AbstractEventLoop
        The event loop that it belongs to.

    Attributes
    ----------
    name : str
        The scheduler's.
    inbox : Inbox
        For other commands.
    """

    def __init__(
        self,
        max_size: int,
        scheduler: Scheduler,
        handle: Callable[..., None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._max_size, self._scheduler, self.name = max_size, scheduler, scheduler.name
        self._handle = handle
        self.inbox = Inbox(loop, handle)
        self.inbox.trouble = scheduler.trouble

    def put(self, closure: Work) -> None:
        """Append a closure, waiting while the queue is full.

        A closure with an input that failed, or was cancelled, fails at once.

        Raises
        ------
        Exception
            The pending error of earlier closures, once all of them have ended; the closure is not
            queued.
        SerializationError
            If the value of an input was fetched, and cannot be pickled any more.
        CoordinatorClosedError
            If the queue is closed.
        """
        closure.call.take_inputs()
        # What is put just before a failure is known is cancelled with all others; and one that is
        # just being added counts twice, so never too few.
        posted, now = len(self.inbox), self._scheduler.statistics  # in this order
        full = posted + now.queued >= self._max_size
        if not (full or now.failing or now.closed):
            self.inbox.post(closure)
        else:
            self._wait_for_room(closure)

    @uninterrupted
    def _wait_for_room(self, closure: Work) -> None:
        _raise_first(self.inbox.wait(partial(self._put, closure), None, self._restore))
        if closure.remote.status is ClosureStatus.CANCELLED:
            self.check_open()

    def _put(self, closure: Work) -> _Ended | None:
        """Put a closure if there is room, or take the errors that are to be raised; on the loop."""
        scheduler = self._scheduler
        if scheduler.errors and not scheduler.closed:
            if not scheduler.may_raise():
                return None
            if not scheduler.errors.fetched():
                return (scheduler.errors.take(),)
            scheduler.clear_errors()
        if not scheduler.closed and scheduler.queued() >= self._max_size:
            return None
        self._handle(closure)
        return ([],)

    def _restore(self, ended: _Ended) -> None:
        self._scheduler.errors.restore(ended[0])

    def pause(self) -> None:
        """Hand out no closures until `resume`; idempotent. Workers return what is not begun."""
        self.inbox.ask(partial(self._change, Pause()))

    def resume(self) -> None:
        """Undo `pause`; idempotent."""
        self.inbox.ask(partial(self._change, Resume()))

    @contextmanager
    def barrier(self) -> Iterator[None]:
        """Hand out no closures while the block runs, but for the rest of a round that has begun.

        What workers have not begun comes back. This is not `pause`: what a `pause` or `resume` sets
        meanwhile holds after the block. Barriers may nest and overlap. To be used in a section
        (`uninterrupted`): one that an interrupt leaves behind would never end.
        """
        handle = self._handle
        self.inbox.ask(partial(handle, Hold()), lambda _: handle(Release()))
        try:
            yield
        finally:
            self.inbox.post(Release())

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Keep a round open while the block puts its closures, one after the other.

        To be used in a section, like `barrier`.
        """
        self.inbox.post(BatchRound(1))
        try:
            yield
        finally:
            self.inbox.post(BatchRound(-1))

    def cancel(self, remote: RemoteValue) -> bool:
        """Begin to cancel a closure; return whether it is going to end; on the event loop.

        One that a worker has is not cancelled where workers keep what was written.
        """
        kept = self._scheduler.gate.exchanges
        self._handle(Cancel(remote, in_flight=not kept))
        return not kept or remote.done()

    def cancel_queued(self) -> int:
        """Cancel the closures that wait, and return how many; running ones go on."""

        def cancel() -> int:
            before = self._scheduler.cancelled
            self._change(CancelQueued("the queue was emptied"))
            return self._scheduler.cancelled - before

        return self.inbox.ask(cancel)

    def _change(self, event: Event) -> None:
        self._scheduler.require_open()
        self._handle(event)

    @uninterrupted
    def wait_until_nothing_runs(self, timeout: float | None) -> None:
        """Wait until no closure runs and all have had their effect, whatever is queued.

        Raises
        ------
        TimeoutError
            If that takes longer than ``timeout`` seconds; it goes on.
        ServerUnresponsiveError
            If no closure runs, but a server that does not respond must say whether lost ones had
            their effect.
        """
        scheduler = self._scheduler
        if not self.inbox.wait(scheduler.rests, timeout):
            left = counted(scheduler.statistics.in_flight, "closure")
            raise timed_out(f"after {timeout} s: {left} in flight; all goes on")

    @uninterrupted
    def join(self, timeout: float | None = None, look: Callable[[], object] = bool) -> None:
        """Wait until no closure waits or runs, and all have had their effect.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.
        look : callable, optional
            Called at once and ten times a second meanwhile; quick.

        Raises
        ------
        Exception
            The pending error, once; nothing runs any more then.
        ServerUnresponsiveError
            If all that is left waits for a server that does not respond; it goes on.
        TimeoutError
            If that takes longer than ``timeout`` seconds; everything is as it was.
        CoordinatorClosedError
            If the queue is closed, before or meanwhile.
        """
        look()
        # One question, which also takes the errors: to ask for them once all is over took as much
        # of the notebook's time as ten closures.
        if _raise_first(self.inbox.wait(self._take_if_over, timeout, self._restore, look)):
            return
        found = self.statistics()
        rest = f"{counted(found.queued, 'closure')} queued and {found.in_flight} in flight"
        if not found.queued and not found.in_flight:
            rest = "what closures pushed is not applied yet"
        raise timed_out(f"after {timeout} s: {rest}; all goes on")

    def _take_if_over(self) -> _Ended | None:
        scheduler = self._scheduler
        return (scheduler.take_errors(),) if scheduler.over() else None

    async def join_async(
        self, timeout: float | None = None, look: Callable[[], object] = bool
    ) -> None:
        """Do what `join` does, on any event loop; may be cancelled, and needs no thread.

        ``look`` is called once a second.
        """
        limit, signal = asyncio.timeout(timeout), Signal()
        signal.cancel()
        try:
            async with limit:
                look()
                while not self.done():
                    if signal.done():
                        signal = Signal()
                        self.inbox.post(partial(self.inbox.when, self._scheduler.over, signal))
                    await signal.wait(_LOOK_AGAIN)
                    look()
        except TimeoutError:
            if not limit.expired():
                raise  # a closure's own
            self.join(0)  # raises, saying what goes on; or returns, if all has just ended
        finally:
            signal.cancel()

    @uninterrupted
    def done(self) -> bool:
        """Return whether no closure waits or runs, and all have had their effect; never blocks.

        Raises
        ------
        Exception
            The pending error, once, as soon as nothing runs any more.
        ServerUnresponsiveError
            As for `join`, once.
        CoordinatorClosedError
            If the queue is closed.
        """
        self.check_open()
        # What was posted and not carried out may be closures that this thread has put.
        if self.inbox or self._scheduler.busy:
            return False
        return _raise_first(self.inbox.wait(self._take_if_over, 0.0, self._restore))

    def close(self) -> None:
        """Have all cancelled that waits or runs, and more refused; idempotent.

        It does not wait for the loop: the garbage collector may call this anywhere, also where this
        thread holds what the loop needs.
        """
        self.inbox.post(Close())

    def check_open(self) -> None:
        """Raise CoordinatorClosedError if it is closed."""
        self._scheduler.require_open()

    @property
    def completed(self) -> int:
        """How many closures have returned, as of the last call of `Scheduler.handle`."""
        return self._scheduler.statistics.completed

    def statistics(self) -> QueueStatistics:
        """Return a snapshot, in which what this thread has put is counted, if the loop responds."""
        self.inbox.catch_up(_CATCH_UP)
        return self._scheduler.statistics

    def closed_attempts(self) -> tuple[Bounds, dict[int, int]]:
        """Do what `Scheduler.closed_attempts` does, in any thread."""
        return self.inbox.ask(self._scheduler.closed_attempts)


def _raise_first(ended: _Ended | None) -> bool:
    """Raise the first error, if there is one; return whether the waiting has ended."""
    if ended and ended[0]:
        raise_failed(ended[0])
    return bool(ended)
