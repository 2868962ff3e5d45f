"""RemoteValue: what `schedule` returns, the promise of a closure's result. Pure, without Dask.

Only the event loop changes status, outcome and callbacks. Any thread may read them; one that waits
goes through the coordinator's `Inbox`: an event for each would cost more than the closure.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from psnb._src.jupyter_compat import current_cell
from psnb._src.protocol.errors import unpack_error
from psnb._src.protocol.packing import InputReference, dumps, loads
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.inbox import Inbox
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.text import error_text, truncate
from psnb._src.utils.tracebacks import timed_out
from psnb.errors import (
    ClosureCancelledError,
    ClosureInputError,
    InternalError,
    ServerUnresponsiveError,
)

_LOOK_AGAIN = 1.0
"""Seconds between checks whether a closure is blocked: there is no callback for that."""


class Signal:
    """An event of the running loop that any thread may set; a `Waiter`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event, self._done = asyncio.Event(), False

    def set_result(self, *_: object) -> None:
        """Wake it; any thread."""
        self._done = True
        # A RuntimeError: the loop was closed, so nothing waits in it any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    set_exception = set_result  # the waiter reads the status; the value is ignored

    def cancel(self) -> None:
        """Note that it is not waited for any more."""
        self._done = True

    def done(self) -> bool:
        """Return whether it waits no more."""
        return self._done

    async def wait(self, timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        self._event.clear()


class ClosureStatus(enum.Enum):
    """The status of a closure."""

    QUEUED = "queued"
    """Waits for a worker."""
    RUNNING = "running"
    """Was sent to a worker."""
    COMPLETED = "completed"
    """Returned; its value can be fetched."""
    FAILED = "failed"
    """Raised, or was lost with its workers too often."""
    CANCELLED = "cancelled"
    """Never ran to its end: another closure failed, or the coordinator was closed."""

    __hash__ = object.__hash__  # Enum's own is in Python, and took 5 % of the loop's time


_ENDED = (ClosureStatus.COMPLETED, ClosureStatus.FAILED, ClosureStatus.CANCELLED)
_EARLY = (ClosureStatus.QUEUED, ClosureStatus.COMPLETED)


def check_transition(old: ClosureStatus, new: ClosureStatus) -> None:
    """Raise InternalError unless a closure may go from ``old`` to ``new``.

    One that is queued may fail, as where there was no worker for too long, but not complete; and
    one that runs is queued again if its worker was lost.
    """
    if old is new or old in _ENDED or (old, new) == _EARLY:
        raise InternalError(f"a closure cannot go from {old.value} to {new.value}")


_UNFETCHED = object()


_storing = Lock()  # for a moment, so that of two threads one stores what it has fetched


class RemoteValue(InputReference, SaysWhatToUse):
    """The result of a scheduled closure, once there is one; made by `ClusterCoordinator.schedule`.

    As an argument of another closure of the same coordinator, at any depth, it is replaced by the
    result: that closure waits for it. ``await remote`` does what `fetch` does, in a notebook's cell
    or any other coroutine, without blocking the event loop. Thread-safe.
    """

    __slots__ = ("_callbacks", "_cancel", "_effect", "_inbox", "_outcome", "_status", "_value")

    def __init__(self, inbox: Inbox, cancel: Callable[[RemoteValue], bool] | None = None) -> None:
        self._inbox, self._cancel = inbox, cancel
        self._status = ClosureStatus.QUEUED
        # Pickled value or error; why it was cancelled, or what holds up one that has not ended; or
        # the input that has no value.
        self._outcome: bytes | str | RemoteValue = b""
        self._value: Any = _UNFETCHED  # of a failed one: when and where `fetch` first raised
        # What has its round applied, and returns what holds that up; or why it was not; or None.
        self._effect: Callable[[], str] | RemoteValue | None = None
        self._callbacks: list[Callable[[RemoteValue], None]] | None = None  # most have none

    @classmethod
    def failed(cls, error: bytes) -> RemoteValue:
        """Return that of something that has failed, with a pickled error."""
        made = cls(None)  # type: ignore[arg-type]  # nobody waits for it
        made._status, made._outcome = ClosureStatus.FAILED, error
        return made

    def __repr__(self) -> str:
        return f"<psnb.RemoteValue {self._status.value}>"

    stays = (
        "a RemoteValue is resolved among the arguments of schedule(...) only, where a closure "
        "waits for it: pass it as an argument, or fetch() it and use the value"
    )

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._until_effective().__await__()
        return self.fetch()

    async def _until_effective(self) -> None:
        """Return when it has ended and had its effect, or is blocked; may be cancelled."""
        signal = Signal()
        self.call_back(signal.set_result)
        try:
            while not self.done() and not self.trouble():
                await signal.wait(_LOOK_AGAIN)
        finally:
            self.forget(signal.set_result)
        if not callable(self._effect):
            return
        signal = Signal()
        self._inbox.post(partial(self._inbox.when, self._fetchable, signal))
        try:
            while not signal.done():
                await signal.wait(_LOOK_AGAIN)
        finally:
            signal.cancel()

    @property
    def status(self) -> ClosureStatus:
        """The closure's status."""
        return self._status

    def done(self) -> bool:
        """Return whether `fetch` would return or raise at once."""
        return self._status in _ENDED

    def blocked_by(self) -> str:
        """Return what blocks the closure itself, if it has not ended; for psnb only."""
        return self._outcome if isinstance(self._outcome, str) and not self.done() else ""

    def trouble(self) -> str:
        """Return what blocks the closure, or one that it waits for, if it has not ended.

        Every wait for closures asks this, and raises it. Any thread; for psnb only.
        """
        if self.done() or not self._trouble():
            return ""  # nearly always
        # Not while events are handled, in the midst of which nothing runs for a moment.
        return self._inbox.ask(self._trouble)

    def _trouble(self) -> str:
        return self.blocked_by() or self._inbox.trouble(self)

    def ended_or_blocked(self) -> tuple[str] | None:
        """Return what blocks it, or an empty text if it has ended; None: not yet. On the loop.

        For psnb only.
        """
        if self.done():
            return ("",)
        return (found,) if (found := self._trouble()) else None

    def await_round(self, begin: Callable[[], str]) -> None:
        """Note, on the loop, that what it pushed is not applied; for the scheduler only.

        Parameters
        ----------
        begin : callable
            Has it applied as soon as that may be, and returns what holds it up, or an empty string.
        """
        self._effect = begin

    def note_effect(self, failed: RemoteValue | None) -> None:
        """Note likewise that it is, or why it will not be; for the scheduler only."""
        self._effect = failed

    def _fetchable(self) -> tuple[str] | None:
        """Return what `fetch` raises as blocked, or an empty text if nothing; None: not yet.

        If its round would wait for closures that nobody has scheduled, it is applied without them.
        """
        if not self.done():
            return self.ended_or_blocked()
        blocked = self._effect() if callable(self._effect) else ""
        return (blocked,) if blocked or not callable(self._effect) else None

    def block(self, trouble: str) -> None:
        """Note what blocks the closure, on the loop; for the scheduler only."""
        self._outcome = trouble or b""

    def fetch(self, timeout: float | None = None) -> Any:
        """Wait for the closure's end and its effect, and return what it returned.

        In mode `Sync` it waits until the round is applied in which the closure has pushed
        gradients. If nothing else runs or waits to run, the round is applied as it is, as by
        `ClusterCoordinator.join`. Others that need the result do not wait for the round: closures
        that have it among their arguments, `done`, `wait` and `psnb.as_completed`.

        May be called any number of times, before and after the coordinator's `join` raised.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None waits for as long as it takes.

        Returns
        -------
        object
            The closure's return value: the same object at each call.

        Raises
        ------
        Exception
            What the closure raised: its own exception type, with the worker, the arguments and the
            user's lines as notes, and the whole remote traceback as ``full_traceback``.
        ClosureCancelledError
            If the closure was cancelled: schedule it again.
        ClosureInputError
            If a remote value among the closure's arguments failed, or had been cancelled before the
            closure was scheduled: the input's error is its cause. (If inputs were cancelled
            *together* with the closure, because another closure failed, that is a
            `ClosureCancelledError`.)
        TimeoutError
            If it has not ended in time; nothing has changed.
        ServerUnresponsiveError
            If a server that does not respond must say first whether the closure, or one whose
            result it waits for, has had its effect, or apply its round; nothing has changed.
        """
        if not self.done() or callable(self._effect):
            found = self._inbox.wait(self._fetchable, timeout)
            if found is None:
                has = "had its effect" if self.done() else "ended"
                raise timed_out(
                    f"the closure has not {has} within {timeout} s; it is {self._status.value}; "
                    "remote.cancel() gives up one that does not end by itself"
                )
            if found[0]:
                raise ServerUnresponsiveError(found[0])
        if isinstance(self._effect, RemoteValue):
            raise self._effect.note_raised()
        return self.returned()

    def returned(self) -> Any:
        """Return what a closure returned that has ended, or raise as `fetch`; for psnb only.

        Does not wait for its round.
        """
        if self._status is ClosureStatus.COMPLETED:
            if self._value is _UNFETCHED:
                # Two threads may both unpickle it; the first to store wins, so that every caller
                # gets the same object.
                packed: Any = self._outcome
                if self._value is _UNFETCHED:
                    value = loads(packed) if packed else None
                    with _storing:
                        if self._value is _UNFETCHED:
                            self._value = value
                            self._outcome = b""  # after the value: see `packed`
            return self._value
        raise self.note_raised()

    def cancel(self) -> bool:
        """Cancel the closure, unless it has had its effect; return whether it was cancelled.

        One that is queued never runs. One that a worker has is asked to stop early (see
        `WorkerContext.cancelled`), and the servers are asked to take no more writes of it: either
        they have them, and it has completed; or it has written nothing, and what it returns is
        dropped. This takes a round trip to the servers; the closure's thread is busy for as long as
        it runs. What it has written with ``immediate=True`` stays. What it has taken from a leased
        dataset is read again.

        If it cannot be found out whether it has had its effect, as the servers' answer is an error,
        it has failed with that error, which `fetch` and `join` raise.

        `fetch` of a cancelled closure raises `ClosureCancelledError`, and so it does for closures
        that wait for its result: they are cancelled with it. `join` raises nothing. In mode `Geo`,
        where workers keep what was written, a closure that a worker has is not cancelled.

        Returns
        -------
        bool
            False if it has completed or failed, or was cancelled before.

        Raises
        ------
        ServerUnresponsiveError
            If a server that does not respond must say whether the closure has had its effect. When
            it answers or is replaced, the closure is cancelled or has completed.
        """
        cancel = self._cancel
        if self.done() or cancel is None or not self._inbox.ask(lambda: cancel(self)):
            return False
        self.wait()
        return self._status is ClosureStatus.CANCELLED

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the closure's end, however it ends; return whether it has ended.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None waits for as long as it takes.

        Raises
        ------
        ServerUnresponsiveError
            If a server that does not respond must say first whether the closure, or one whose
            result it waits for, has had its effect; nothing has changed.
        """
        found = None if self.done() else self._inbox.wait(self.ended_or_blocked, timeout)
        if found is not None and found[0]:
            raise ServerUnresponsiveError(found[0])
        return self.done()

    def error(self) -> BaseException:
        """Return a new copy of what `fetch` raises; for closures that failed or were cancelled."""
        chain = self._chain()
        outcome = chain[-1]._outcome
        error: BaseException
        if chain[-1]._status is ClosureStatus.CANCELLED:
            error = ClosureCancelledError(outcome)
        else:
            error = unpack_error(outcome)  # type: ignore[arg-type]
        root = truncate(error_text(error))
        text = f"a remote value among the closure's arguments has no value: {root}"
        for _ in chain[1:]:
            dependent = ClosureInputError(text)
            dependent.__cause__ = error
            error = dependent
        return error

    def raised(self) -> str:
        """Return when, and in which cell, `fetch` first raised its error; empty if it has not."""
        value = self._chain()[-1]._value
        return "" if value is _UNFETCHED else value

    def note_raised(self) -> BaseException:
        """Return what `fetch` raises, and note that it does, and when."""
        root = self._chain()[-1]
        if root._value is _UNFETCHED:
            cell = current_cell()
            root._value = time.strftime("at %H:%M:%S") + (f" in {cell}" if cell else "")
        return self.error()

    def call_back(self, callback: Callable[[RemoteValue], None]) -> None:
        """Call back when the closure has ended, at once if it has; any thread, for psnb only.

        The callback is called on the loop, and must neither block nor raise.
        """

        def add() -> None:
            if self.done():
                callback(self)
            else:
                self._callbacks = [*(self._callbacks or ()), callback]

        self._inbox.post(add)

    def forget(self, callback: Callable[[RemoteValue], None]) -> None:
        """Undo `call_back`; nothing happens if the closure has ended."""

        def remove() -> None:
            if self._callbacks is not None:
                self._callbacks = [each for each in self._callbacks if each != callback] or None

        self._inbox.post(remove)

    def shares(self, inbox: Inbox) -> bool:
        """Return whether this is a value of the coordinator that has this inbox."""
        return self._inbox is inbox

    def packed(self) -> bytes | None:
        """Return the pickled value of a completed closure; None if it was unpickled already."""
        packed: Any = self._outcome  # before the next line: see `returned`
        return packed if self._value is _UNFETCHED else None

    def pack_again(self) -> bytes:
        """Return the pickled value of a closure whose value was fetched; without any lock.

        Raises
        ------
        SerializationError
            If the value was changed, and cannot be pickled any more.
        """
        return dumps(self._value, "a fetched value among the arguments")

    def outcome(self, values: Sequence[bytes]) -> bytes:
        """Take what the latest steps have returned; return the value if it ends with them."""
        return values[-1] if values else b""

    def set_status(self, status: ClosureStatus, outcome: bytes | str | RemoteValue = b"") -> bool:
        """Change the status, on the loop; for the scheduler only.

        Parameters
        ----------
        status : ClosureStatus
            The next one.
        outcome : bytes, str or RemoteValue
            Pickled value or exception of an ended closure; the reason of a cancelled one; the input
            whose failure made it fail.

        Returns
        -------
        bool
            Whether somebody is to be called back now: `tell` does that.
        """
        check_transition(self._status, status)
        self._status, self._outcome = status, outcome
        return self._callbacks is not None and self.done()

    def tell(self) -> None:
        """Call those back who wait for its end, on the loop; for the scheduler's instruction."""
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)

    def _chain(self) -> list[RemoteValue]:
        """Return the input that failed it, the input that failed that, and so on, after itself."""
        chain = [self]  # a loop, not a recursion: there may be thousands of dependents in a row
        while isinstance(outcome := chain[-1]._outcome, RemoteValue):
            chain.append(outcome)
        return chain


class StepValues(RemoteValue):
    """The result of many steps, which is None; what each returns comes meanwhile.

    Attributes
    ----------
    arrived : deque of bytes
        What steps have returned, pickled, and nobody has taken. The loop adds to it, and one thread
        takes from it.
    """

    __slots__ = ("arrived",)

    arrived: deque[bytes]

    def __init__(self, inbox: Inbox, cancel: Callable[[RemoteValue], bool]) -> None:
        super().__init__(inbox, cancel)
        self.arrived = deque()

    def outcome(self, values: Sequence[bytes]) -> bytes:
        self.arrived.extend(values)
        return b""

    def take(self) -> Iterator[Any]:
        """Take what has arrived."""
        while self.arrived:
            packed = self.arrived.popleft()
            yield loads(packed) if packed else None


def require_progress(remotes: Iterable[RemoteValue]) -> None:
    """Raise ServerUnresponsiveError if every closure that has not ended is blocked."""
    found = ""
    for each in remotes:
        if not each.done():
            found = each.trouble()
            if not found:
                return
    if found:
        raise ServerUnresponsiveError(found)
