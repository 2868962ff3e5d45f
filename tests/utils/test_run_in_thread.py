"""Waiting for what runs on another thread, or on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from psnb._src.utils.threads import run_in_thread, run_on_loop
from tests.conftest import DEADLINE, wait_until
from tests.interrupting import (
    Scene,
    assert_as_before,
    interrupt_when,
    interrupted_everywhere,
    sleeping,
)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether an event loop still runs."""
    heard = threading.Event()
    loop.call_soon_threadsafe(heard.set)
    return heard.wait(DEADLINE)


class Long:
    """A coroutine that runs until it is told to end."""

    def __init__(self) -> None:
        self.begun = self.cancelled = self.ended = False
        self.end = threading.Event()

    async def __call__(self) -> int:
        self.begun = True
        try:
            while not self.end.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        self.ended = True
        return 1


def test_from_the_main_thread_a_function_runs_on_another_one() -> None:
    assert run_in_thread(threading.current_thread) is not threading.main_thread()
    assert run_in_thread(sorted, [1, 2], reverse=True) == [2, 1]


def test_from_other_threads_it_runs_there() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(run_in_thread(threading.current_thread)))
    thread.start()
    thread.join()
    assert found == [thread]


def test_what_a_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_in_thread(lambda: 1 / 0)


def test_a_function_runs_to_its_end_though_the_waiting_is_interrupted() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert go_on.wait(DEADLINE)
        ended.set()

    with interrupt_when(sleeping), pytest.raises(KeyboardInterrupt):
        run_in_thread(work)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(DEADLINE)
    assert_as_before()


def test_an_interrupt_at_any_instruction_has_a_function_run_once_or_not_at_all() -> None:
    def make() -> Scene:
        runs: list[int] = []

        def check(error: BaseException | None) -> None:
            wait_until(lambda: not _asides(), "the thread ends")
            assert len(runs) <= 1
            assert error is not None or runs

        return lambda: run_in_thread(runs.append, 1), check

    interrupted_everywhere(make)


def _asides() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "psnb-aside"]


def test_a_coroutine_runs_on_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run_on_loop(loop, where) is loop


def test_what_a_coroutine_raises_is_raised(loop: asyncio.AbstractEventLoop) -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_on_loop(loop, fail)
    assert answers(loop)


def test_a_coroutine_that_takes_too_long_is_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    long = Long()
    with pytest.raises(TimeoutError):
        run_on_loop(loop, long, 0.02)
    wait_until(lambda: long.cancelled, "it is cancelled")


def test_a_coroutine_whose_waiting_is_interrupted_is_cancelled(
    loop: asyncio.AbstractEventLoop,
) -> None:
    long = Long()
    with interrupt_when(lambda: long.begun and sleeping()), pytest.raises(KeyboardInterrupt):
        run_on_loop(loop, long)
    wait_until(lambda: long.cancelled, "it is cancelled")
    assert answers(loop)


def test_a_coroutine_goes_on_when_it_must(loop: asyncio.AbstractEventLoop) -> None:
    long = Long()
    with interrupt_when(lambda: long.begun and sleeping()), pytest.raises(KeyboardInterrupt):
        run_on_loop(loop, long, goes_on=True)
    long.end.set()
    wait_until(lambda: long.ended, "it ends")
    assert not long.cancelled


def test_a_coroutine_that_an_interrupt_leaves_alone_is_cancelled_whenever_that_comes(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def make() -> Scene:
        long = Long()

        def check(error: BaseException | None) -> None:
            for _ in range(3):  # it is told to end, hears of it, and ends
                assert answers(loop)
            assert long.cancelled is long.begun

        return lambda: run_on_loop(loop, long, 0.002), check

    interrupted_everywhere(make)


def test_an_interrupt_at_any_instruction_leaves_the_loop_running(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def make() -> Scene:
        runs: list[int] = []

        async def work() -> None:
            await asyncio.sleep(0)
            runs.append(1)

        def check(error: BaseException | None) -> None:
            assert answers(loop)
            assert len(runs) <= 1
            assert error is not None or runs

        return lambda: run_on_loop(loop, work), check

    interrupted_everywhere(make)


def test_a_loop_does_not_wait_for_itself(loop: asyncio.AbstractEventLoop) -> None:
    async def call() -> None:
        with pytest.raises(RuntimeError, match="cannot wait for itself"):
            run_on_loop(loop, call)

    run_on_loop(loop, call)


def test_a_closed_loop_is_distinguished_from_one_that_hangs() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        run_on_loop(loop, lambda: asyncio.sleep(0))
    assert_as_before()
