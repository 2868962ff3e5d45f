"""Sections: where interrupts are held off, and where they strike instead."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from _thread import allocate_lock, interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from psnb._src.utils import interrupts
from psnb._src.utils.interrupts import uninterrupted
from tests.interrupting import (
    Scene,
    assert_as_before,
    interrupt_when,
    interrupted_everywhere,
    sleeping,
)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def handled_by(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def halves() -> Scene:
    """Two halves of an update, of which there must be none or both."""
    done = []

    @uninterrupted
    def second() -> None:
        done.append(2)

    def both() -> None:
        with uninterrupted:
            done.append(1)
            second()

    def check(error: BaseException | None) -> None:
        assert done in ([], [1, 2])
        assert error is not None or done

    return both, check


def test_an_interrupt_strikes_at_the_end_of_the_outermost_section() -> None:
    reached = []

    def section() -> None:
        with uninterrupted:
            with uninterrupted:
                interrupt()
                reached.append("inner")
            reached.append("outer")

    with pytest.raises(KeyboardInterrupt):
        section()
    assert reached == ["inner", "outer"]
    assert_as_before()


def test_two_interrupts_in_one_section_strike_once() -> None:
    @uninterrupted
    def section() -> None:
        interrupt()
        interrupt()

    with pytest.raises(KeyboardInterrupt) as raised:
        section()
    assert raised.value.__context__ is None
    assert_as_before()


def test_a_section_that_raises_is_the_context_of_its_interrupt() -> None:
    error = ValueError("of the section")

    @uninterrupted
    def section() -> None:
        interrupt()
        raise error

    with pytest.raises(KeyboardInterrupt) as raised:
        section()
    assert raised.value.__context__ is error
    assert_as_before()


def test_an_interrupt_at_any_instruction_comes_before_or_after_the_section() -> None:
    interrupted_everywhere(halves)


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8, 13])
def test_two_interrupts_in_quick_succession_leave_nothing_behind(after: int) -> None:
    interrupted_everywhere(halves, after)


def test_a_function_that_is_a_section_is_the_same_otherwise() -> None:
    @uninterrupted
    def add(left: int, *, right: int) -> int:
        """Add."""
        return left + right

    assert add(1, right=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Add.")


def test_other_threads_have_no_sections() -> None:
    handlers = []

    def look() -> None:
        with uninterrupted:
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_the_handler_that_there_was_is_called_with_signal_and_frame_and_may_return() -> None:
    calls: list[Any] = []
    with handled_by(lambda *arguments: calls.append(arguments)):
        with uninterrupted:
            interrupt()
            assert calls == []
        ((number, frame),) = calls
        assert number == signal.SIGINT
        assert frame.f_code is not None


def test_where_interrupts_are_ignored_they_are_in_sections() -> None:
    with handled_by(signal.SIG_IGN):
        with uninterrupted:
            interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_where_an_interrupt_ends_the_process_it_does_after_the_section() -> None:
    code = (
        "import signal\n"
        "from psnb._src.utils.interrupts import uninterrupted\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "with uninterrupted:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    print('whole', flush=True)\n"
        "print('not reached')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (-signal.SIGINT, "whole\n")


def test_a_handler_that_is_none_of_pythons_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "getsignal", lambda number: None)
    with uninterrupted, uninterrupted:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_signals_are_handled_in_sections() -> None:
    handled = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(number))
    try:
        with uninterrupted:
            signal.raise_signal(signal.SIGUSR1)
            assert handled == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_asyncio_cancels_its_task_after_the_section() -> None:
    reached = []

    async def work() -> None:
        with uninterrupted:
            interrupt()
            reached.append("whole")
        await asyncio.sleep(0)
        reached.append("cancelled first")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert reached == ["whole"]
    assert_as_before()


def taken() -> Any:
    lock = allocate_lock()
    lock.acquire()
    return lock


@pytest.mark.timeout(30)
def test_an_interrupt_ends_a_sleep_and_strikes_there() -> None:
    reached = []
    with uninterrupted:
        with interrupt_when(sleeping), pytest.raises(KeyboardInterrupt):
            # Nothing but the interrupt itself ends it.
            uninterrupted.sleep(taken(), None, look_again=3600.0)
        reached.append("still in the section")
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert reached
    assert_as_before()


def test_an_interrupt_before_a_sleep_strikes_when_it_begins() -> None:
    with uninterrupted:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            uninterrupted.sleep(taken(), None)
    assert_as_before()


def test_an_interrupt_at_any_instruction_before_a_sleep_ends_it() -> None:
    class Lock:
        """Tells whether it would be waited for though an interrupt was noted."""

        released = overslept = False

        def acquire(self, *arguments: object) -> None:
            noted = uninterrupted._noted != uninterrupted._struck
            self.overslept = noted and not self.released

        def release(self) -> None:
            self.released = True

    def make() -> Scene:
        lock: Any = Lock()

        def check(error: BaseException | None) -> None:
            assert not lock.overslept

        return uninterrupted(lambda: uninterrupted.sleep(lock, None)), check

    interrupted_everywhere(make)


def test_a_sleep_goes_on_after_a_handler_that_returns() -> None:
    calls = []
    lock = taken()

    def handler(*arguments: object) -> None:
        calls.append(arguments)

    with handled_by(handler):
        with interrupt_when(sleeping), uninterrupted:
            while not calls:
                uninterrupted.sleep(lock, None)
        assert len(calls) == 1


def test_what_a_handler_sets_in_its_place_during_a_sleep_counts_from_then_on() -> None:
    def once(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with handled_by(once):
        with uninterrupted:
            interrupt()
            uninterrupted.sleep(taken(), 1)
            assert signal.getsignal(signal.SIGINT) is interrupts._note
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_interrupt_of_another_thread_ends_a_sleep_too() -> None:
    lock = taken()
    thread = threading.Thread(target=interrupt_main)

    @uninterrupted
    def section() -> None:
        thread.start()
        while True:
            uninterrupted.sleep(lock, None, look_again=0.01)

    with pytest.raises(KeyboardInterrupt):
        section()
    thread.join()
    assert_as_before()


def test_other_threads_sleep_without_being_interrupted() -> None:
    lock = taken()
    woken = threading.Event()

    def sleep() -> None:
        uninterrupted.sleep(lock, None)
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert not woken.is_set()
    interrupts.wake(lock)
    thread.join()


def test_what_is_woken_twice_wakes_once() -> None:
    lock = taken()
    interrupts.wake(lock)
    interrupts.wake(lock)
    assert lock.acquire(False)
    assert not lock.acquire(False)


FORKS = """
import os, signal, threading
from _thread import allocate_lock
from psnb._src.utils.interrupts import uninterrupted, wake

lock = allocate_lock()
lock.acquire()

def fork():
    while uninterrupted._sleeps_on is None:
        pass
    if os.fork() == 0:
        try:
            with uninterrupted:
                signal.raise_signal(signal.SIGINT)
                print("held off", flush=True)
        except KeyboardInterrupt:
            print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
        os._exit(0)
    os.wait()
    wake(lock)

threading.Thread(target=fork).start()
with uninterrupted:
    uninterrupted.sleep(lock, None)
"""


def test_a_forked_process_begins_outside_of_all_sections() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["held off", "True"]
