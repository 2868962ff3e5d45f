"""Interrupts wherever they may strike: what tests of `psnb._src.utils.interrupts` share."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from numba.extending import intrinsic

from psnb._src.utils.interrupts import DeferInterrupts, uninterrupted

Scene = tuple[Callable[[], object], Callable[[BaseException | None], None]]
"""What is interrupted, and what checks how that left things: given what it raised, if it did."""


_SIGINT = int(signal.SIGINT)
_set_profile = ctypes.pythonapi.PyEval_SetProfile
_set_profile.argtypes, _set_profile.restype = (ctypes.c_void_p, ctypes.py_object), None
_pend = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(
    ctypes.cast(ctypes.pythonapi.PyErr_SetInterruptEx, ctypes.c_void_p).value or 0
)
_state = np.zeros(4, np.int64)
"""Places passed, interrupts sent, and the places at which they are."""

_STATE = _state.ctypes.data

_traced = [False]
"""Whether places are passed: what counts them must not outlive its memory."""


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """Return an address as a pointer to integers, in compiled code."""
    pointer = numba.types.CPointer(numba.types.int64)

    def make(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(pointer))

    return pointer(numba.types.intp), make


@cache
def _passed() -> Any:
    """Return what the interpreter calls at each place; compiled once it is needed."""

    @numba.cfunc(numba.types.int32(*[numba.types.intp] * 2, numba.types.int32, numba.types.intp))
    def passed(owner, frame, what, argument):  # type: ignore[no-untyped-def]
        state = numba.carray(_pointer(_STATE), 4)
        state[0] += 1
        if state[0] == state[2] or state[0] == state[3]:
            state[1] += 1
            _pend(_SIGINT)
        return 0

    return passed


class Interrupter:
    """Has SIGINT come at the k-th place of what is called between `begin` and `end`.

    A place is where a function begins or ends, the interpreter's own in C as well. The handler runs
    when Python looks for signals next, as ever. This is compiled: a tracer in Python would have to
    raise the interrupt itself, which crashes the interpreter sooner or later.

    Parameters
    ----------
    at : int
        At which place; 0 for none.
    after : int
        How many later a second interrupt follows; 0 for none.

    Attributes
    ----------
    ignored : list
        The exceptions that Python ignored, as it does in finalizers.
    """

    def __init__(self, at: int, after: int = 0) -> None:
        self._times = at or -1, at + after or -1
        self.ignored: list[object] = []
        self._hook = sys.unraisablehook

    @property
    def sent(self) -> int:
        """How many interrupts came."""
        return int(_state[1])

    def begin(self) -> None:
        # Nothing in Python, or an interrupt might come in it.
        sys.unraisablehook = self.ignored.append
        _state[:] = 0, 0, *self._times
        _traced[0] = True
        _set_profile(_passed().address, None)

    def end(self) -> None:
        """End it; an interrupt that is left may strike here. Idempotent."""
        _set_profile(None, None)
        _traced[0] = False
        sys.unraisablehook = self._hook


def raised_by(operation: Callable[[], object], at: int, after: int = 0) -> tuple[Any, Interrupter]:
    """Interrupt something; return what it raised, if it did, and how it was interrupted."""
    interrupter, error = Interrupter(at, after), None
    try:
        interrupter.begin()
        operation()
        interrupter.end()
    except BaseException as raised:
        error = raised
    try:
        interrupter.end()
    except KeyboardInterrupt as raised:  # it came with the end of what raised another error
        raised.__context__, error = error, raised
        interrupter.end()
    return error, interrupter


def interrupted_everywhere(make: Callable[[], Scene], after: int = 0, every: int = 1) -> None:
    """Interrupt something at each place in turn at which it can be, each time in a new scene.

    An interrupt is raised once, unless it comes when all is over; and nothing is left of it.

    Parameters
    ----------
    make : callable
        Makes a scene.
    after : int
        How many places later a second interrupt follows; 0 for none.
    every : int
        Only at one in so many places.
    """
    # First without, for what happens once only.
    for at in itertools.chain([0], itertools.count(1, every)):
        operation, check = make()
        error, interrupter = raised_by(operation, at, after)
        struck = isinstance(error, KeyboardInterrupt) or interrupter.ignored
        assert struck or not interrupter.sent, (at, error)
        assert_as_before()
        check(error)
        if at and not interrupter.sent:
            break
    assert at > 2, "it is not interrupted"


def assert_as_before() -> None:
    """Check that there is no section, and that no interrupt is left over for the next one."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (uninterrupted._depth, uninterrupted.locks, uninterrupted._sleeps_on) == (0, 0, None)
    with uninterrupted:
        pass


def when_it_sleeps(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have another thread do something whenever the main thread is about to sleep."""
    sleep = DeferInterrupts.sleep

    def then_sleep(section: DeferInterrupts, lock: Any, timeout: float | None) -> None:
        if threading.current_thread() is threading.main_thread():
            with untraced():
                doing = threading.Thread(target=action)
                doing.start()
                doing.join()
        sleep(section, lock, timeout)

    monkeypatch.setattr(DeferInterrupts, "sleep", then_sleep)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Pass no places in this block."""
    traced = _traced[0]
    _set_profile(None, None)
    try:
        yield
    finally:
        if traced:
            _set_profile(_passed().address, None)


@contextlib.contextmanager
def interrupt_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the main thread, by a signal to it, as soon as something holds; once.

    In this block only: a test that fails as nothing was interrupted does not have the run ended by
    an interrupt that comes later.
    """
    main = threading.main_thread().ident
    assert main is not None
    over, sending = threading.Event(), threading.Lock()

    def interrupt() -> None:
        while not condition():
            if over.wait(0.001):
                return
        over.wait(0.01)  # if it holds just before a wait, let that begin
        with sending:
            if not over.is_set():
                signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    with uninterrupted:  # or it might strike in the middle of starting it
        thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(KeyboardInterrupt):  # it may come in this very moment
            with sending:
                over.set()
            thread.join()


def interrupt_its_sleep(
    monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool] = lambda: True
) -> None:
    """Interrupt the main thread when it sleeps next, and ``when`` holds; once."""
    sleep = DeferInterrupts.sleep

    def interrupted(section: DeferInterrupts, lock: Any, timeout: float | None) -> None:
        if threading.current_thread() is threading.main_thread() and when():
            monkeypatch.setattr(DeferInterrupts, "sleep", sleep)
            signal.raise_signal(signal.SIGINT)
        sleep(section, lock, timeout)

    monkeypatch.setattr(DeferInterrupts, "sleep", interrupted)


def sleeping() -> bool:
    """Return whether the main thread sleeps in a section, or is just about to."""
    return uninterrupted._sleeps_on is not None
