"""Locks and conditions that no interrupt leaves with nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from psnb._src.utils.interrupts import Condition, Lock, uninterrupted
from tests.conftest import DEADLINE, wait_until
from tests.interrupting import (
    Scene,
    assert_as_before,
    interrupt_when,
    interrupted_everywhere,
    raised_by,
    sleeping,
    when_it_sleeps,
)


def assert_free(lock: Lock) -> None:
    assert lock._mutex.acquire(False)
    lock._mutex.release()


def begun(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_one_thread_at_a_time_is_in_a_block() -> None:
    lock, inside, most = Lock(), 0, 0

    def enter(_: int) -> None:
        nonlocal inside, most
        for _ in range(200):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(4)))
    assert most == 1


def test_a_condition_of_threading_is_left_locked_by_some_interrupts() -> None:
    # What all of this is for; and these tests would notice.
    lost = False
    for at in range(1, 60):
        condition = threading.Condition(threading.Lock())

        def operation(condition: threading.Condition = condition) -> None:
            with condition:
                pass

        raised_by(operation, at)
        lost = lost or not condition.acquire(blocking=False)
    assert lost


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("kind", [Lock, Condition])
def test_interrupts_at_any_instruction_leave_a_lock_free_and_a_block_whole(
    kind: type[Lock], after: int
) -> None:
    def make() -> Scene:
        lock, done = kind(), []

        def operation() -> None:
            with lock:
                done.append(1)
                done.append(2)

        def check(error: BaseException | None) -> None:
            assert_free(lock)
            assert done in ([], [1, 2])
            assert error is not None or done

        return operation, check

    interrupted_everywhere(make, after)


def test_a_block_that_raises_gives_the_lock_back() -> None:
    lock = Lock()
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    assert_free(lock)
    assert_as_before()


def test_an_interrupt_at_any_instruction_of_a_wait_leaves_the_lock_free_and_no_waiter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready: list[bool] = []
    condition = Condition()

    def change() -> None:
        with condition:
            ready.append(True)
            condition.notify_all()

    when_it_sleeps(monkeypatch, change)

    def make() -> Scene:
        ready.clear()

        def operation() -> None:
            with condition:
                assert condition.wait_for(lambda: ready)

        def check(error: BaseException | None) -> None:
            assert_free(condition)
            assert not condition._waiters
            assert error is not None or ready

        return operation, check

    interrupted_everywhere(make)


def test_an_interrupt_ends_a_wait_and_the_lock_is_held_while_that_is_handled() -> None:
    condition = Condition()
    with condition:
        with interrupt_when(sleeping), pytest.raises(KeyboardInterrupt):
            condition.wait_for(lambda: False)
        assert condition._mutex.locked()
        assert not condition._waiters
    assert_free(condition)
    assert_as_before()


def test_a_wait_ends_when_its_time_is_over() -> None:
    condition = Condition()
    before = time.monotonic()
    with condition:
        assert not condition.wait_for(lambda: False, 0.02)
        assert not condition.wait_for(lambda: False, 0)
        assert condition.wait_for(lambda: True, 0)
    assert 0.02 <= time.monotonic() - before < DEADLINE
    assert not condition._waiters


def test_a_wait_while_another_lock_is_held_is_not_interrupted() -> None:
    # As a finalizer may that the garbage collector runs in somebody's block.
    outer, inner, done = Lock(), Condition(), []

    def end() -> None:
        wait_until(lambda: bool(inner._waiters), "it waits")
        with inner:
            done.append(True)
            inner.notify_all()

    def finalizer() -> None:
        with inner:
            assert inner.wait_for(lambda: done)

    def block() -> None:
        with outer:
            uninterrupted.note()
            finalizer()
            assert outer._mutex.locked()

    thread = begun(end)
    with pytest.raises(KeyboardInterrupt):
        block()
    thread.join()
    assert_free(outer)
    assert_as_before()
