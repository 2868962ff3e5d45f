"""Interrupts: deferred while the main thread runs code that they must not break. Pure.

Python runs the handler of SIGINT (the stop button, Ctrl-C) between any two instructions of the main
thread, and as a rule the handler raises KeyboardInterrupt there: also between taking a lock and the
block that releases it, or between two halves of an update. That harms other threads: an event loop
that waits for a lock which is never released waits for ever.

So psnb does such things in *sections* (`uninterrupted`). There psnb's handler replaces the one that
was set, by any library. It raises nothing, it only notes the interrupt. When the outermost section
ends, the other handler is put back and, if an interrupt was noted, called: that is where it
strikes. A section must be short, and may wait only by `sleep`, which an interrupt ends: it strikes
there, as any call may raise, and the sections around it end as on any other exception.

An interrupt that strikes at the end of a section that raises has that exception as its context.

Threads: Python runs handlers on the main thread only. All fields here belong to that thread; on
other threads a section does nothing, and `sleep` just waits. Signals other than SIGINT are left
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
from _signal import getsignal, raise_signal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from _thread import LockType, allocate_lock, get_ident
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from psnb._src.utils.text import hide_internal_frames
from psnb.errors import ClosureCancelledError

# What `signal` wraps in Python: so it is one call in C, and takes a tenth of the time.


logger = logging.getLogger("psnb")

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
            # leaves all as it was; what this very call raises was pending before, and is raised
            # before it changes anything. Counted first: from then on a finalizer that the garbage
            # collector runs here, and that has sections of its own, is within this one.
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
        # Nothing strikes before the handler is put back, and what is noted up to then is seen
        # below. An interrupt that comes later finds all in order, and strikes at once: then it is
        # the one that is raised, and what was noted is left over and forgotten.
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
            # A finalizer that runs in the middle of a block with a lock waits here. What it raised
            # would be lost, and the interrupt with it.
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


# Lock and Condition: for what the main thread shares with others, above all with an event loop.
#
# They are like those of `threading`, but their blocks are sections
# (`psnb._src.utils.threads`): no interrupt leaves a lock locked, or what it guards half
# changed. Use `Condition` in place of `threading.Condition` wherever the main thread may wait, and
# `Lock` in place of `threading.Lock` where the main thread meets an event loop, or where half an
# update would do harm. Pure.


class Lock:
    """A lock for short blocks: ``with lock:``. Not re-entrant."""

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
    """A lock, and waiting until others have changed what it guards.

    Parameters
    ----------
    lock : Lock, optional
        Shared with other conditions; its own if left out.
    """

    __slots__ = ("_waiters",)

    def __init__(self, lock: Lock | None = None) -> None:
        self._mutex = allocate_lock() if lock is None else lock._mutex
        self._waiters: deque[LockType] = deque()  # each is released once, by whichever removes it

    def wait(self, timeout: float | None = None) -> None:
        """Release the lock until `notify`, or for a shorter time, and take it again.

        An interrupt strikes here, while this thread does not hold the lock; a `notify` is not lost
        by that, but wakes another thread.
        """
        waiter = allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        main = get_ident() == uninterrupted.main
        if main:
            uninterrupted.locks -= 1
        self._mutex.release()
        struck = True
        try:
            uninterrupted.sleep(waiter, timeout)
            struck = False
        finally:
            self._mutex.acquire()
            if main:
                uninterrupted.locks += 1
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif struck:
                self.notify()

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` holds; return whether it does: it is False after a timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while not predicate():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self, count: int = 1) -> None:
        """Wake ``count`` waiting threads, the longest waiting first; under the lock."""
        while count > 0 and self._waiters:
            wake(self._waiters.popleft())
            count -= 1

    def notify_all(self) -> None:
        """Wake all waiting threads; under the lock."""
        self.notify(len(self._waiters))


# Answer: a value that one thread gives and another one waits for, once. Pure.
#
# It replaces `concurrent.futures.Future`: an interrupt of the waiting thread may leave the lock of
# one locked, and the thread that gives the answer, usually an event loop, would wait for ever. Here
# that thread only stores a value and releases a lock, and never waits.

T = TypeVar("T")


class Answer(Generic[T]):
    """A value that one thread gives, which may be any, and one thread waits for."""

    def __init__(self) -> None:
        self.ended = allocate_lock()  # locked until it is given; the waiting thread sleeps on it
        self.ended.acquire()
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether `result` would return or raise at once."""
        return self._done

    def give(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        """Give the result of a function, or the exception that it raises."""
        try:
            self.set_result(function(*args, **kwargs))
        except BaseException as error:  # `result` raises it
            self.set_exception(error)
            del self  # the error refers to this frame, and would keep itself alive

    def set_result(self, value: T) -> None:
        """Give the value; no effect when it is done."""
        if not self._done:
            self._value = value
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """Give an error instead; no effect when it is done."""
        if not self._done:
            self._error = error
            self._end()

    def pass_on(self, function: Callable[[T], object]) -> None:
        """Call a function with the value, if one was given."""
        if self._done and self._error is None:
            function(cast(T, self._value))

    def cancel(self) -> None:
        """Give `ClosureCancelledError`: it is not waited for any more. No effect when done."""
        self.set_exception(ClosureCancelledError("the answer is not waited for any more"))

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value; an interrupt ends the waiting.

        Raises
        ------
        TimeoutError
            If it is not there within ``timeout`` seconds.
        BaseException
            The error that was given instead.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with uninterrupted:
            while not self._done:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"no answer within {timeout:g} s")
                uninterrupted.sleep(self.ended, left)
        try:
            if self._error is not None:
                raise self._error
            return cast(T, self._value)
        finally:
            del self  # as above

    def _end(self) -> None:
        self._done = True
        wake(self.ended)


# Waiting for code that runs on another thread or an event loop, where no interrupt can break it.
#
# The stop button ends the waiting, at once. Dask's own ``client.sync`` and futures wait in Python
# code, where an interrupt may leave a lock locked for ever (`psnb._src.utils.threads`); the
# event loop would then wait for that lock.


def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that waits in its own way; if this is the main thread, on another thread.

    It runs to its end, even if an interrupt ends the waiting.
    """
    if threading.get_ident() != uninterrupted.main:
        return function(*args, **kwargs)
    answer: Answer[T] = Answer()
    run = partial(answer.give, function, *args, **kwargs)
    try:
        with uninterrupted:
            threading.Thread(target=run, name="psnb-aside", daemon=True).start()
        return answer.result()
    finally:
        del answer, run  # an error that is raised refers to this frame, and would keep itself alive


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this is the thread of an event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False  # no loop runs in this thread


def run_on_loop(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Awaitable[T]],
    timeout: float | None = None,
    *,
    goes_on: bool = False,
) -> T:
    """Call a coroutine function on the event loop of another thread, and wait for its end.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The event loop; it must be running.
    function : callable
        Returns what to await; called on the loop.
    timeout : float, optional
        Seconds to wait at most. None: the coroutine has time limits of its own.
    goes_on : bool
        Whether it runs to its end even if it is not waited for any more; else it is cancelled.

    Raises
    ------
    TimeoutError
        If it takes longer.
    RuntimeError
        If the loop is closed, or this is its thread.
    Exception
        What the coroutine raised.
    """
    if runs_here(loop):
        raise RuntimeError("an event loop cannot wait for itself: call from another thread")
    answer: Answer[T] = Answer()
    tasks: list[asyncio.Task[None]] = []
    with uninterrupted:
        loop.call_soon_threadsafe(_begin, loop, function, answer, tasks)
        try:
            return answer.result(timeout)
        except BaseException:  # an interrupt, or no time left
            if not goes_on and not answer.done():
                with contextlib.suppress(RuntimeError):  # the loop is closed, and all has ended
                    loop.call_soon_threadsafe(_cancel, tasks)
            raise
        finally:
            del answer  # as above


def _begin(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Awaitable[T]],
    answer: Answer[T],
    tasks: list[asyncio.Task[None]],
) -> None:
    tasks.append(loop.create_task(_give(function, answer), name="psnb request of a thread"))


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


async def _give(function: Callable[[], Awaitable[T]], answer: Answer[T]) -> None:
    try:
        answer.set_result(await function())
    except BaseException as error:  # a cancellation, too: the other thread waits
        answer.set_exception(error)
        del answer  # as above
        if not isinstance(error, Exception):
            raise  # the loop's own affair, too


# Inbox: how any thread reaches an object that belongs to an event loop.
#
# The object has no locks: only the loop's thread changes it. Other threads append commands to a
# deque, which is atomic, for signal handlers as well (trio's entry queue does the same), and wait
# on an `Answer` of their own. So no thread ever holds what the loop needs. A queue.Queue would not
# do: an interrupt of the main thread may leave its lock locked, and the loop waits for ever.

_MOST_COMMANDS = 1024
"""Commands in one turn: the loop has other work, too."""

_LOOP_MAY_END = 1.0
"""Seconds after which a waiting thread sees whether the loop runs."""

_LOOK_AGAIN = 0.1
"""Seconds between two calls of what looks after something else while a thread waits."""


class Waiter(Protocol):
    """Who waits: an `Answer`, for example."""

    def done(self) -> bool:
        """Return whether it waits no more."""

    def set_result(self, value: Any) -> None:
        """Wake it."""

    def set_exception(self, error: BaseException) -> None:
        """Wake it: what it waits for cannot be told."""


class Inbox:
    """Commands for what belongs to an event loop, in the order in which they were posted.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        It runs in a thread of its own.
    turn : callable
        Returns a context in which the loop changes the object; at its end `look` is called.
    take : callable
        Called with what is posted and is no command. A closure is posted as it is: a command for
        each, of objects that the garbage collector tracks, made scheduling take twice the time.

    Attributes
    ----------
    trouble : callable
        Returns what holds something up that is waited for, or an empty text; on the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn: Callable[[], AbstractContextManager[object]],
        take: Callable[[Any], object] = bool,
    ) -> None:
        self._loop, self._turn, self._take = loop, turn, take
        self.trouble: Callable[[Any], str] = lambda waited: ""
        self._commands: deque[Any] = deque()
        self._unseen = 0  # that were carried out in this turn, of which nobody sees the effect yet
        self._woken = False  # `run` is going to be called
        self._waiters: list[tuple[Callable[[], object], Waiter]] = []  # the loop's alone
        # Held by the thread that carries out commands once the loop is closed; `_orphan` is its id.
        self._orphaned, self._orphan = threading.Lock(), 0

    def __len__(self) -> int:
        """Return how many commands may have had no effect yet."""
        return len(self._commands) + self._unseen

    def here(self) -> bool:
        """Return whether this is the loop's thread."""
        return runs_here(self._loop)

    def post(self, command: Callable[[], object] | object) -> None:
        """Have a command carried out, or an item taken; that must not raise."""
        main = get_ident() == uninterrupted.main
        if main:  # an interrupt in between would leave a command that nothing wakes
            uninterrupted.begin()  # not `with`, which takes twice the time: each closure comes here
        try:
            self._commands.append(command)
            if not self._woken or self._loop.is_closed():
                self._woken = True
                self._wake()
        except BaseException:  # of a handler of another signal, perhaps before it was woken
            self._woken = False
            raise
        finally:
            if main:
                uninterrupted.end()

    def ask(self, command: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Have a command carried out, and return what it returns, or raise what it raises.

        If an interrupt ends the waiting, ``undo`` is called on the loop with what it has returned.
        """
        if self.here():
            with self._turn():
                return command()
        answer: Answer[T] = Answer()
        try:
            self.post(partial(answer.give, command))
            self._result(answer, None)
        except BaseException:  # an interrupt
            if undo is not None:
                self.post(partial(answer.pass_on, undo))
            raise
        return answer.result()

    def wait(
        self,
        ready: Callable[[], T | None],
        timeout: float | None = None,
        undo: Callable[[T], object] = bool,
        look: Callable[[], object] | None = None,
    ) -> T | None:
        """Wait until ``ready`` returns something true, and return that; None after a timeout.

        It is called on the loop, at once and at the end of each turn, until it is true. What it
        raises is raised here. If an interrupt ends the waiting, ``undo`` is called on the loop with
        what it has returned. ``look`` is called here meanwhile, ten times a second.

        Raises
        ------
        RuntimeError
            If this is the loop's thread, which would wait for itself.
        """
        if self.here():
            if (found := ready()) or timeout == 0:
                return found or None
            raise RuntimeError(
                "Dask's event loop cannot wait for a closure: await the remote value, or call from "
                "another thread"
            )
        answer: Answer[Any] = Answer()
        try:
            # Not `ask`, whose answer would wake this thread once more: a fetch took a fifth longer.
            self.post(partial(self._look_for, ready, answer))
            if not self._result(answer, timeout, look):
                # On the loop, where nothing is found at the same moment. It is looked at once, also
                # if the time is over by then.
                self.ask(partial(answer.set_result, None))
        except BaseException:  # an interrupt
            self.post(partial(_take_back, answer, undo))
            raise
        return cast("T | None", answer.result())

    def catch_up(self, timeout: float) -> None:
        """Wait until all that this thread has posted is carried out, but not for longer.

        For figures: the loop may wait for what this thread holds, as the lock of a log handler.
        """
        if self._commands and not self.here():
            answer: Answer[Any] = Answer()
            self.post(partial(answer.give, bool))
            self._result(answer, timeout)

    def when(self, ready: Callable[[], object], waiter: Waiter) -> bool:
        """Give a waiter what ``ready`` returns as soon as that is true; on the loop.

        Returns whether it waits no more.
        """
        if waiter.done():
            return True
        if found := ready():
            waiter.set_result(found)
        else:
            self._waiters.append((ready, waiter))
        return bool(found)

    def _look_for(self, ready: Callable[[], object], answer: Answer[Any]) -> None:
        try:
            self.when(ready, answer)
        except BaseException as error:  # `wait` raises it
            answer.set_exception(error)

    def look(self) -> bool:
        """See who has what it waits for; on the loop, at the end of each turn.

        Returns whether some waited, who may have changed the object.
        """
        if not self._waiters:
            return False
        changed = True
        while changed and self._waiters:
            changed = False  # what one gets may be what another one waits for
            waiters, self._waiters = self._waiters, []
            for ready, waiter in waiters:
                try:
                    changed |= self.when(ready, waiter)
                except Exception as error:  # the others wait all the same
                    waiter.set_exception(error)
        return True

    def run(self) -> None:
        """Carry out the commands; on the loop."""
        self._carry_out()
        if self._commands:
            self._woken = True
            self._loop.call_soon(self.run)

    def _carry_out(self) -> None:
        self._woken = False  # before: what is posted from here on wakes it again
        with self._turn():
            for _ in range(_MOST_COMMANDS):
                if not self._commands:
                    break
                try:
                    command = self._commands[0]
                    command() if callable(command) else self._take(command)
                except BaseException:  # a fault: the other commands must not wait for ever
                    with contextlib.suppress(Exception):  # of a user's handler or filter
                        logger.exception("psnb: a command failed")
                finally:
                    self._unseen += 1
                    self._commands.popleft()
        self._unseen = 0

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.run)
        except RuntimeError:  # the loop is closed: nothing else runs it
            self._run_here()

    def _result(
        self,
        answer: Answer[Any],
        timeout: float | None,
        look: Callable[[], object] | None = None,
    ) -> bool:
        """Wait for an answer, in whatever way the loop ends; return whether it is there."""
        end = None if timeout is None else time.monotonic() + timeout
        longest = _LOOP_MAY_END if look is None else _LOOK_AGAIN
        with uninterrupted:
            while not answer.done():
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                uninterrupted.sleep(answer.ended, longest if left is None else min(left, longest))
                if answer.done():
                    break
                if self._commands or self._loop.is_closed():
                    self._wake()  # it was closed, or a signal handler came between post and wake
                if look is not None:
                    look()
        return True

    def _run_here(self) -> None:
        if self._orphan == get_ident():
            return  # within a command: it comes next
        with self._orphaned:
            self._orphan = get_ident()
            try:
                self._carry_out()  # once at least: who waits is looked at
                while self._commands:
                    self._carry_out()
            finally:
                self._orphan = 0


def _take_back(answer: Answer[Any], undo: Callable[[Any], object]) -> None:
    answer.set_result(None)
    answer.pass_on(lambda found: found and undo(found))


def start_task(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]], name: str) -> None:
    """Begin a task that nobody waits for, unless no event loop runs any more in this thread."""
    try:
        task = asyncio.get_running_loop().create_task(work, name=name)
    except RuntimeError:
        work.close()
        return
    tasks.add(task)
    task.add_done_callback(tasks.discard)
