"""RemoteValue: what `schedule` returns, the promise of a closure's result. Pure, without Dask.

All remote values of a coordinator share one condition, the queue's, which guards status, outcome
and callbacks: a separate event for each would cost more than the closure.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import queue
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from psnb._src.jupyter_compat import current_cell
from psnb._src.protocol.packing import InputReference, dumps, loads, unpack_error
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.text import counted, error_text, shown, timed_out, truncate
from psnb._src.utils.threads import Condition
from psnb.errors import (
    ClosureCancelledError,
    ClosureInputError,
    ConfigurationError,
    InternalError,
    ServerUnresponsiveError,
)

# Awaiting remote values from any event loop, without an extra thread.
#
# A closure that ends calls back under the queue's lock; the callback only wakes the waiting loop.

_LOOK_AGAIN = 1.0
"""Seconds between checks whether a closure is blocked: there is no callback for that."""

_LOOK_FOR_EFFECT = 0.01
"""Likewise, whether the round of a closure that has ended is applied, which takes milliseconds."""


class Signal:
    """An event of the running loop that any thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self, *_: object) -> None:
        # A RuntimeError: the loop was closed, so nothing waits in it any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        self._event.clear()


async def until_ended(remote: RemoteValue) -> None:
    """Return when a closure has ended and had its effect, or is blocked; may be cancelled."""
    signal = Signal()
    callback: Callable[[Any], None] = signal.set
    try:
        remote.add_callback(callback)
        while not remote.fetchable():
            await signal.wait(_LOOK_FOR_EFFECT if remote.done() else _LOOK_AGAIN)
    finally:
        remote.remove_callback(callback)


# The states of a closure and the transitions between them. Pure.


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


_TRANSITIONS = {
    ClosureStatus.QUEUED: {
        ClosureStatus.RUNNING,
        ClosureStatus.FAILED,  # there was no worker for too long
        ClosureStatus.CANCELLED,
    },
    ClosureStatus.RUNNING: {
        ClosureStatus.QUEUED,  # its worker was lost
        ClosureStatus.COMPLETED,
        ClosureStatus.FAILED,
        ClosureStatus.CANCELLED,
    },
    ClosureStatus.COMPLETED: set(),
    ClosureStatus.FAILED: set(),
    ClosureStatus.CANCELLED: set(),
}


def check_transition(old: ClosureStatus, new: ClosureStatus) -> None:
    """Raise InternalError unless a closure may go from ``old`` to ``new``."""
    if new not in _TRANSITIONS[old]:
        raise InternalError(f"a closure cannot go from {old.value} to {new.value}")


_ENDED = (ClosureStatus.COMPLETED, ClosureStatus.FAILED, ClosureStatus.CANCELLED)
_UNFETCHED = object()


def _nobody_cancels(remote: RemoteValue) -> bool:
    """Return False: the closure cannot be cancelled."""
    return False


class RemoteValue(InputReference, SaysWhatToUse):
    """The result of a scheduled closure, once there is one; made by `ClusterCoordinator.schedule`.

    As an argument of another closure of the same coordinator, at any depth, it is replaced by the
    result: that closure waits for it. ``await remote`` does what `fetch` does, in a notebook's cell
    or any other coroutine, without blocking the event loop. Thread-safe.
    """

    __slots__ = ("_callbacks", "_cancel", "_condition", "_effect", "_outcome", "_status", "_value")

    def __init__(
        self, condition: Condition, cancel: Callable[[RemoteValue], bool] = _nobody_cancels
    ) -> None:
        self._condition, self._cancel = condition, cancel
        self._status = ClosureStatus.QUEUED
        # Pickled value or error; why it was cancelled, or what holds up one that has not ended; or
        # the input that has no value.
        self._outcome: bytes | str | RemoteValue = b""
        self._value: Any = _UNFETCHED  # of a failed one: when and where `fetch` first raised
        # What has its round applied, and returns what holds that up; or why it was not; or None.
        self._effect: Callable[[], str] | RemoteValue | None = None
        self._callbacks: list[Callable[[RemoteValue], None]] | None = None  # most have none

    def __repr__(self) -> str:
        return f"<psnb.RemoteValue {self._status.value}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a RemoteValue is resolved among the arguments of schedule(...) only, where a closure "
            "waits for it: pass it as an argument, or fetch() it and use the value"
        )

    def __await__(self) -> Generator[Any, None, Any]:
        yield from until_ended(self).__await__()
        return self.fetch()

    @property
    def status(self) -> ClosureStatus:
        """The closure's status."""
        return self._status

    def done(self) -> bool:
        """Return whether `fetch` would return or raise at once."""
        return self._status in _ENDED

    def ended_or_blocked(self) -> bool:
        """Return whether `fetch` would return or raise at once, also if blocked; for psnb only."""
        return self.done() or isinstance(self._outcome, str)

    def fetchable(self) -> bool:
        """Return whether `fetch` would return or raise at once; for psnb only.

        If its round would wait for closures that were never scheduled, it is applied without them.
        """
        with self._condition:
            return self._fetchable()

    def owe_effect(self, begin: Callable[[], str]) -> None:
        """Note, under the condition's lock, that what it pushed is not applied; for the queue only.

        Parameters
        ----------
        begin : callable
            Has it applied as soon as that may be, and returns what holds it up, or an empty string.
        """
        self._effect = begin

    def note_effect(self, failed: RemoteValue | None) -> None:
        """Note likewise that it is, or why it will not be; for the queue only."""
        self._effect = failed

    def _fetchable(self) -> bool:
        if not self.done():
            return self.ended_or_blocked()
        return not callable(self._effect) or bool(self._effect())

    def block(self, trouble: str) -> None:
        """Note what holds the closure up, under the condition's lock; for the queue only."""
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
            If its worker was lost, and a server that does not respond must say whether it had its
            effect, or apply its round; nothing has changed.
        """
        with self._condition:
            if not self._condition.wait_for(self._fetchable, timeout):
                has = "had its effect" if self.done() else "ended"
                raise timed_out(
                    f"the closure has not {has} within {timeout} s; it is {self._status.value}"
                )
            if not self.done():
                raise ServerUnresponsiveError(self._outcome)
            effect = self._effect
            if effect is not None and not isinstance(effect, RemoteValue):
                raise ServerUnresponsiveError(effect())
        if effect is not None:
            raise effect.note_raised()
        return self.returned()

    def returned(self) -> Any:
        """Return what a closure returned that has ended, or raise as `fetch`; for psnb only.

        Does not wait for its round.
        """
        if self._status is ClosureStatus.COMPLETED:
            if self._value is _UNFETCHED:
                # Outside the lock: unpickling runs foreign code. Two threads may both do it; the
                # first to store wins, so that every caller gets the same object.
                value = loads(self._outcome) if self._outcome else None  # type: ignore[arg-type]
                with self._condition:
                    if self._value is _UNFETCHED:
                        self._value, self._outcome = value, b""
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
        if self.done() or not self._cancel(self):
            return False
        with self._condition:
            self._condition.wait_for(self.ended_or_blocked)
            if not self.done():
                raise ServerUnresponsiveError(self._outcome)
        return self._status is ClosureStatus.CANCELLED

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the closure's end, however it ends; return whether it has ended."""
        with self._condition:
            return self._condition.wait_for(self.done, timeout)

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

    def add_callback(self, callback: Callable[[RemoteValue], None]) -> bool:
        """Call back when the closure ends; if it has ended, return False and do not call back.

        For psnb only: it is called under the condition's lock and must neither block nor raise.
        """
        with self._condition:
            if self.done():
                return False
            self._callbacks = [*(self._callbacks or ()), callback]
            return True

    def remove_callback(self, callback: Callable[[RemoteValue], None]) -> None:
        """Undo `add_callback`; nothing happens if the closure has ended."""
        with self._condition:
            if self._callbacks is not None:
                self._callbacks = [each for each in self._callbacks if each != callback] or None

    def shares(self, condition: Condition) -> bool:
        """Return whether this is a value of the queue that has this condition."""
        return self._condition is condition

    def packed(self) -> bytes | None:
        """Return the pickled value of a completed closure; None if it was unpickled already."""
        return self._outcome if self._value is _UNFETCHED else None  # type: ignore[return-value]

    def pack_again(self) -> bytes:
        """Return the pickled value of a closure whose value was fetched; without any lock.

        Raises
        ------
        SerializationError
            If the value was changed, and cannot be pickled any more.
        """
        return dumps(self._value, "a fetched value among the arguments")

    def set_status(self, status: ClosureStatus, outcome: bytes | str | RemoteValue = b"") -> None:
        """Change the status, under the condition's lock; for the queue only.

        Parameters
        ----------
        status : ClosureStatus
            The next one.
        outcome : bytes, str or RemoteValue
            Pickled value or exception of an ended closure; the reason of a cancelled one; the input
            whose failure made it fail.
        """
        check_transition(self._status, status)
        self._status, self._outcome = status, outcome
        if self._callbacks is not None and self.done():
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback(self)

    def _chain(self) -> list[RemoteValue]:
        """Return the input that failed it, the input that failed that, and so on, after itself."""
        chain = [self]  # a loop, not a recursion: there may be thousands of dependents in a row
        while isinstance(outcome := chain[-1]._outcome, RemoteValue):
            chain.append(outcome)
        return chain


# as_completed: remote values in the order in which they end. Pure, without polling.


def as_completed(
    remotes: Iterable[RemoteValue], timeout: float | None = None
) -> Iterator[RemoteValue]:
    """Iterate over remote values in the order in which their closures end.

    Those that have ended already come first, in the order given. A closure that failed or was
    cancelled has ended too: `RemoteValue.fetch` raises. Each value comes once. They may be of
    several coordinators.

    Parameters
    ----------
    remotes : iterable of RemoteValue
        What `ClusterCoordinator.schedule` or `map` returned.
    timeout : float, optional
        Seconds from this call to the last value; None waits for as long as it takes.

    Returns
    -------
    iterator of RemoteValue
        You may stop early; that changes nothing.

    Raises
    ------
    TimeoutError
        From the iterator, if the next value takes longer; everything goes on.
    ConfigurationError
        If something in ``remotes`` is not a remote value.

    Examples
    --------
    >>> for remote in psnb.as_completed(coordinator.map(score, files)):
    ...     print(remote.fetch())
    """
    distinct = list(dict.fromkeys(remotes))
    for each in distinct:
        if not isinstance(each, RemoteValue):
            raise ConfigurationError(f"as_completed takes remote values, found {shown(each)}")
    end = None if timeout is None else time.monotonic() + timeout
    return _iterate(distinct, end, timeout)


def _iterate(
    remotes: list[RemoteValue], end: float | None, timeout: float | None
) -> Iterator[RemoteValue]:
    ended: queue.SimpleQueue[RemoteValue] = queue.SimpleQueue()
    callback = ended.put
    pending = {remote for remote in remotes if remote.add_callback(callback)}
    try:
        yield from (remote for remote in remotes if remote not in pending)
        while pending:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                remote = ended.get(timeout=left)
            except queue.Empty:
                raise timed_out(
                    f"after {timeout} s {len(pending)} of {len(remotes)} closures have not ended; "
                    "they go on"
                ) from None
            pending.discard(remote)
            yield remote
    finally:
        for remote in pending:
            remote.remove_callback(callback)


# FailedClosures: the errors so far, until the first of them is raised. Pure, no locks.


class FailedClosures:
    """Failed closures, the first one first; true if there are any.

    Attributes
    ----------
    cancelled : int
        How many closures were cancelled because of them.
    """

    def __init__(self) -> None:
        self._failed: list[RemoteValue] = []
        self.cancelled = 0

    def __bool__(self) -> bool:
        return bool(self._failed)

    def add(self, remote: RemoteValue) -> None:
        """Add a closure that failed."""
        self._failed.append(remote)

    def fetched(self) -> bool:
        """Return whether `RemoteValue.fetch` has raised each of the errors."""
        return all(remote.raised() for remote in self._failed)

    def clear(self) -> str:
        """Forget errors that were fetched; return what was cancelled with them, if anything."""
        failed, cancelled = self._failed, self.cancelled
        self._failed, self.cancelled = [], 0
        if not cancelled:
            return ""
        return (
            f"fetch() has raised {failed[0].raised()} why {counted(len(failed), 'closure')} "
            f"failed; {cancelled} queued ones were cancelled with it: schedule them again. From "
            "here on closures run as before"
        )

    def throw(self) -> NoReturn:
        """Raise the first error with the others attached, and forget all of them."""
        failed, self._failed, self.cancelled = self._failed, [], 0
        first, *others = [remote.error() for remote in failed]
        _attach(first, others)
        if raised := failed[0].raised():
            # It was seen already: after a harmless call it would be taken for a new one.
            new = sum(not remote.raised() for remote in failed)
            since = f"{new} of the other errors are new" if new else "nothing new has failed"
            again = (
                f"this is the error that fetch() raised {raised}; {since}, and it is cleared now"
            )
            first.__notes__ = [again, *getattr(first, "__notes__", ())]
        raise first


def raise_together(first: BaseException, remotes: Iterable[RemoteValue]) -> None:
    """Attach to an error that `fetch` raises those of the others that it was to fetch, so far."""
    failed = [each for each in remotes if each.status is ClosureStatus.FAILED]
    new = [each for each in failed if not each.raised()]
    _attach(first, [each.note_raised() for each in new])


def _attach(first: BaseException, others: Sequence[BaseException]) -> None:
    if others:
        names = ", ".join(sorted({type(error).__name__ for error in others}))
        first.add_note(
            f"{counted(len(others), 'more closure')} failed before this was raised ({names}): "
            "they are in the attribute other_errors"
        )
    first.other_errors = tuple(others)  # type: ignore[attr-defined]
