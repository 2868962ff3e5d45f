"""Threads that are there before there is work for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from psnb._src.utils.standby import StandbyThreads
from tests.conftest import DEADLINE, wait_until


@pytest.fixture
def threads() -> Iterator[StandbyThreads]:
    made = StandbyThreads("psnb-test", 2)
    yield made
    made.end()


def no_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_none_is_started_later(threads: StandbyThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_start)
    names = {
        threads.submit(lambda: threading.current_thread().name).result(DEADLINE) for _ in range(20)
    }
    assert names <= {"psnb-test-0", "psnb-test-1"}


def test_what_work_raises_is_its_submitters_and_the_thread_goes_on() -> None:
    threads = StandbyThreads("psnb-test", 1)
    for error in (MemoryError("none"), SystemExit()):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            threads.submit(fail).result(DEADLINE)
    assert threads.submit(int).result(DEADLINE) == 0
    threads.end()


def test_they_end_when_all_is_done_that_was_submitted_before() -> None:
    threads = StandbyThreads("psnb-ending", 2)
    last = [threads.submit(int) for _ in range(10)]
    threads.end()
    assert [each.result(DEADLINE) for each in last] == [0] * 10
    wait_until(
        lambda: not any(each.name.startswith("psnb-ending") for each in threading.enumerate()),
        "they end",
    )


def test_work_is_shared_with_the_caller_in_its_order(threads: StandbyThreads) -> None:
    at_once = threading.Barrier(3, timeout=DEADLINE)

    def who(number: int) -> tuple[int, str]:
        at_once.wait()
        return number, threading.current_thread().name

    found = threads.share(who, range(3))
    assert [number for number, _ in found] == [0, 1, 2]
    assert {name for _, name in found} == {
        "psnb-test-0",
        "psnb-test-1",
        threading.current_thread().name,
    }


def test_the_caller_does_all_of_it_while_the_threads_are_busy(threads: StandbyThreads) -> None:
    go_on = threading.Event()
    busy = [threads.submit(go_on.wait, DEADLINE) for _ in range(2)]
    try:
        assert threads.share(abs, range(-3, 0)) == [3, 2, 1]
    finally:
        go_on.set()
    assert all(each.result(DEADLINE) for each in busy)


def test_what_shared_work_raises_is_raised_and_the_rest_is_not_begun() -> None:
    none = StandbyThreads("psnb-none", 0)
    done = []

    def fail(number: int) -> None:
        done.append(number)
        raise MemoryError

    with pytest.raises(MemoryError):
        none.share(fail, range(3))
    assert done == [2]
