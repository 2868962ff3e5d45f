"""Interrupts: deferred while the main thread runs code that they must not break. Pure.

Python runs the handler of SIGINT (the stop button, Ctrl-C) between any two instructions of the main
thread, and as a rule the handler raises KeyboardInterrupt there: also between taking a lock and the
block that releases it, or between two halves of an update. That harms other threads: an event loop
that waits for a lock which is never released waits for ever.

So psnb does such things in *sections* (`uninterrupted`). There psnb's handler replaces the present
one. It raises nothing, it only notes the interrupt. When the outermost section ends, the other
handler is restored and, if an interrupt was noted, called: that is where it strikes. A section must
be short, and may wait only by `sleep`, which an interrupt ends: it strikes there, as any call may
raise, and the sections around it end as on any other exception.

An interrupt that strikes at the end of a section that raises has that exception as its context.

Threads: Python runs handlers on the main thread only. All fields here belong to that thread; on
other threads a section does nothing, and `sleep` just waits. Signals other than SIGINT are left
alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time

# The C function that `signal` wraps in Python: it takes a tenth of the time.
from _signal import getsignal, raise_signal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from _thread import LockType, allocate_lock, get_ident
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from psnb._src.utils.tracebacks import hide_internal_frames

P = ParamSpec("P")
R = TypeVar("R")

_SIGINT = int(signal.SIGINT)
_DEFAULT = int(signal.SIG_DFL)


class DeferInterrupts:
    """Defers interrupts: ``with uninterrupted:`` or ``@uninterrupted``; sections may nest.

    Attributes
    ----------
    main : int
        Identifier of the main thread.
    locks : int
        How many locks the main thread holds that others wait for.
    """

    __slots__ = ("_depth", "_handler", "_noted", "_sleeps_on", "_struck", "locks", "main")

    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.locks = 0
        self._depth = 0
        # How many interrupts were noted, and how many of them have struck. Two numbers, as a flag
        # could be set between being read and being cleared.
        self._noted = self._struck = 0
        self._sleeps_on: LockType | None = None  # what ends the sleep of this moment
        self._handler: Any = None  # SIGINT's outside of sections

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function that is a section."""

        @functools.wraps(function)
        def whole(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return whole

    def __enter__(self) -> None:
        if get_ident() == self.main:
            self.begin()

    def __exit__(self, *exc_info: object) -> None:
        if get_ident() == self.main:
            self.end()

    def begin(self) -> None:
        """Begin a section; on the main thread."""
        if self._depth:
            self._depth += 1  # nothing strikes here
            return
        try:
            # An interrupt may strike at any of these instructions until the handler is ours. It
            # leaves everything as it was; an interrupt that this very call raises was pending
            # before, and is raised before it changes anything. Counted first: from then on a
            # finalizer that the garbage collector runs here, and that has sections of its own, is
            # within this one.
            self._depth = 1
            self._struck = self._noted  # one may be left over: see `end`
            # None: a handler that C code has set, which could not be put back. It raises nothing.
            handler = getsignal(_SIGINT)
            self._handler = None if handler is None else set_handler(_SIGINT, _note)
        except BaseException:  # an interrupt in this very moment
            self._depth = 0
            raise

    def end(self) -> None:
        """End a section; at the end of the outermost one, an interrupt that was noted strikes."""
        if self._depth > 1:
            self._depth -= 1
            return
        # In locals: a finalizer that has sections of its own may run as soon as this one has ended.
        handler, struck = self._handler, self._struck
        self._depth = 0
        # No interrupt strikes before the handler is restored, and one that was noted up to then is
        # seen below. A later interrupt finds all in order, and strikes immediately: then it is the
        # one that is raised, and the noted one is forgotten.
        if handler is not None:
            set_handler(_SIGINT, handler)
        if self._noted != struck:
            _strike(handler)

    def sleep(self, lock: LockType, timeout: float | None, look_again: float = 1.0) -> None:
        """Wait until a lock is released, or for a shorter time; in a section.

        Parameters
        ----------
        lock : LockType
            A lock that is acquired, by any thread. It may be released more than once.
        timeout : float or None
            Seconds to wait at most.
        look_again : float
            Seconds after which the main thread looks whether it was interrupted though nothing woke
            it. CPython may miss a signal: one that comes between the last look and the wait itself,
            or one that another thread only simulates (`_thread.interrupt_main`).

        Raises
        ------
        BaseException
            What the handler of SIGINT raises, if there is an interrupt: KeyboardInterrupt.
        """
        limit = threading.TIMEOUT_MAX if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        if get_ident() != self.main:
            lock.acquire(True, limit)
            return
        limit = min(limit, look_again)
        if self.locks:
            # A finalizer that runs in the middle of a block with a lock waits here. An exception of
            # it would be lost, and the interrupt with it.
            lock.acquire(True, limit)
            return
        self._sleeps_on = lock
        try:
            # In this order: one that is noted later releases the lock.
            if self._noted == self._struck:
                lock.acquire(True, limit)
        finally:
            self._sleeps_on = None
        if self._noted != self._struck:
            self._struck = self._noted
            try:
                _strike(self._handler)
            finally:
                # It may have set another one: "the next Ctrl-C shall end the process".
                if self._handler is not None and getsignal(_SIGINT) is not _note:
                    self._handler = set_handler(_SIGINT, _note)

    def note(self) -> None:
        """Note an interrupt, and end the sleep of this moment."""
        self._noted += 1
        if self._sleeps_on is not None:
            wake(self._sleeps_on)


uninterrupted = DeferInterrupts()
"""Defers interrupts of the main thread. See the module's docstring."""


def _begin_anew() -> None:
    """End the sections of the parent in a forked process: the parent's main thread is not there."""
    handler, depth = uninterrupted._handler, uninterrupted._depth
    uninterrupted.__init__()  # type: ignore[misc]  # as if it was new
    if depth and handler is not None:
        set_handler(_SIGINT, handler)


os.register_at_fork(after_in_child=_begin_anew)


def wake(lock: LockType) -> None:
    """Release a lock that a thread sleeps on; no effect if another thread just did."""
    with contextlib.suppress(RuntimeError):
        lock.release()


def _note(number: int, frame: object) -> None:
    uninterrupted.note()


def _strike(handler: Any) -> None:
    """Do what the interrupt would have done without psnb."""
    if callable(handler):
        try:
            handler(_SIGINT, sys._getframe())
        except KeyboardInterrupt as error:
            hide_internal_frames(
                error
            )  # a notebook's user sees the line that was interrupted, not psnb's
            raise
    elif handler == _DEFAULT:
        set_handler(_SIGINT, _DEFAULT)
        raise_signal(_SIGINT)  # ends the process


class Lock:
    """A lock for short blocks, which are sections: ``with lock:``. Not re-entrant.

    No interrupt leaves it locked, or its data half changed. Use it in place of `threading.Lock`
    where the main thread meets an event loop, or where half an update would do harm, and
    `Condition` in place of `threading.Condition` wherever the main thread may wait.
    """

    __slots__ = ("_mutex",)

    def __init__(self) -> None:
        self._mutex = allocate_lock()

    def __enter__(self) -> None:
        if get_ident() == uninterrupted.main:
            uninterrupted.begin()
            self._mutex.acquire()
            uninterrupted.locks += 1
        else:
            self._mutex.acquire()

    def __exit__(self, *exc_info: object) -> None:
        if get_ident() == uninterrupted.main:
            uninterrupted.locks -= 1
            self._mutex.release()
            uninterrupted.end()
        else:
            self._mutex.release()


class Condition(Lock):
    """A lock, and waiting until others have changed what it guards."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        super().__init__()
        self._waiters: list[LockType] = []  # each is released once, by whichever removes it

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` holds; return whether it does: it is False after a timeout.

        It is evaluated now, and after each `notify_all`. An interrupt strikes while this thread
        waits, and does not hold the lock.
        """
        end = None if timeout is None else time.monotonic() + timeout
        main = get_ident() == uninterrupted.main
        while not predicate():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            waiter = allocate_lock()
            waiter.acquire()
            self._waiters.append(waiter)
            if main:
                uninterrupted.locks -= 1
            self._mutex.release()
            try:
                uninterrupted.sleep(waiter, left)
            finally:
                self._mutex.acquire()
                if main:
                    uninterrupted.locks += 1
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True

    def notify_all(self) -> None:
        """Wake all waiting threads; under the lock."""
        while self._waiters:
            wake(self._waiters.pop())
