"""Inbox: how any thread reaches an object that belongs to an event loop.

The object has no locks: only the loop's thread changes it. Other threads append commands to a
deque, which is atomic, for signal handlers as well (trio's entry queue does the same), and wait
on an `Answer` of their own. So no thread ever holds what the loop needs. A queue.Queue would not
do: an interrupt of the main thread may leave its lock locked, and the loop waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.threads import Answer, runs_here

logger = logging.getLogger("psnb")


T = TypeVar("T")

_MOST_COMMANDS = 1024
"""Commands that are carried out one after the other: the loop has other work, too."""

_LOOP_MAY_END = 1.0
"""Seconds after which a waiting thread sees whether the loop runs."""

_LOOK_AGAIN = 0.1
"""Seconds between two calls of ``look`` while a thread waits."""


class Waiter(Protocol):
    """A waiter: an `Answer`, for example."""

    def done(self) -> bool:
        """Return whether it waits no more."""

    def set_result(self, value: Any) -> None:
        """Wake it."""

    def set_exception(self, error: BaseException) -> None:
        """Wake it: its condition cannot be evaluated."""


class Inbox:
    """Commands for what belongs to an event loop, in the order in which they were posted.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        It runs in a thread of its own.
    handle : callable
        Called with what was posted and is no command, in its order, and also without arguments
        after commands; it calls `look`. A closure is posted as it is: a command for each, of
        objects that the garbage collector tracks, made scheduling take twice the time.

    Attributes
    ----------
    trouble : callable
        Returns what holds something up that is waited for, or an empty text; on the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[..., object],
    ) -> None:
        self._loop, self._handle = loop, handle
        self.trouble: Callable[[Any], str] = lambda waited: ""
        self._commands: deque[Any] = deque()
        self._unseen = 0  # carried out, with effects that may not be visible yet
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
        """Have a command carried out, or an event handled; that must not raise."""
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

        If an interrupt ends the waiting, ``undo`` is called on the loop with its result.
        """
        if self.here():
            try:
                return command()
            finally:
                self._handle()
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

        It is called on the loop, immediately and when something was handled, until it is true. Its
        exceptions are raised here. If an interrupt ends the waiting, ``undo`` is called on the loop
        with its result. ``look`` is called here meanwhile, ten times a second.

        Raises
        ------
        RuntimeError
            If this is the loop's thread, which would wait for itself.
        """
        if self.here():
            try:
                found = ready()
            finally:
                self._handle()
            if found or timeout == 0:
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
                # On the loop, where nothing happens at the same moment. The condition is evaluated
                # once, even if the time is over by then.
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

        Returns whether it has stopped waiting.
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
        """Evaluate the conditions of waiters; on the loop, when something was handled.

        Returns whether there were waiters; they may have changed the object.
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
        self._woken = False  # before: later posts wake it again
        events: list[Any] = []  # that were posted one after the other
        for _ in range(_MOST_COMMANDS):
            if not self._commands:
                break
            command = self._commands[0]
            try:
                if callable(command):
                    if events:
                        self._try(self._handle, *events)
                        events = []
                    self._try(command)
                else:
                    events.append(command)
            finally:
                self._unseen += 1
                self._commands.popleft()
        self._try(self._handle, *events)
        self._unseen = 0

    def _try(self, command: Callable[..., object], *events: Any) -> None:
        try:
            command(*events)
        except BaseException:  # a fault: the other commands must not wait for ever
            with contextlib.suppress(Exception):  # of a user's handler or filter
                logger.exception("psnb: a command failed")

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
                self._carry_out()  # once at least: waiters are evaluated
                while self._commands:
                    self._carry_out()
            finally:
                self._orphan = 0


def _take_back(answer: Answer[Any], undo: Callable[[Any], object]) -> None:
    answer.set_result(None)
    answer.pass_on(lambda found: found and undo(found))
