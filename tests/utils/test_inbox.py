"""Commands of threads to what belongs to an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from psnb._src.utils.inbox import Inbox
from psnb._src.utils.threads import Answer, start_task
from tests.conftest import DEADLINE, wait_until
from tests.coordinator.queues import LoopThread, in_thread


def ignore(*events: object) -> None:
    """Handle nothing: these tests post commands."""


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    if not made.is_closed():
        close(made)


def close(loop: LoopThread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    wait_until(lambda: not loop.is_running(), "it has stopped")
    loop.close()


def test_commands_are_carried_out_in_order_on_the_loop(loop: LoopThread) -> None:
    inbox, done = Inbox(loop, ignore), list[tuple[int, str]]()
    for number in range(3000):  # more than one turn carries out
        inbox.post(lambda number=number: done.append((number, threading.current_thread().name)))
    assert inbox.ask(lambda: len(done)) == 3000
    assert done == [(number, "test-loop") for number in range(3000)]
    assert not inbox


def test_what_a_command_raises_is_raised_by_who_asks(loop: LoopThread) -> None:
    with pytest.raises(ZeroDivisionError):
        Inbox(loop, ignore).ask(lambda: 1 // 0)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_those_behind_a_command_that_fails_are_carried_out(
    loop: LoopThread, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox(loop, ignore)

    def fail() -> None:
        raise error

    inbox.post(fail)
    assert inbox.ask(lambda: 7) == 7
    assert "a command failed" in caplog.text


class Refusing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is down")


def test_a_command_that_fails_is_not_repeated_if_that_cannot_be_logged(loop: LoopThread) -> None:
    inbox, tried, handler = Inbox(loop, ignore), list[int](), Refusing()

    def fail() -> None:
        tried.append(1)
        raise ValueError

    logger = logging.getLogger("psnb")
    logger.addHandler(handler)
    try:
        inbox.post(fail)
        assert inbox.ask(lambda: 7) == 7
    finally:
        logger.removeHandler(handler)
    assert tried == [1]


def test_figures_wait_for_a_loop_that_waits_for_who_asks_only_for_a_moment(
    loop: LoopThread,
) -> None:
    inbox, held, done = Inbox(loop, ignore), threading.Lock(), list[str]()

    def blocked() -> None:
        with held:
            done.append("it")

    with held:
        inbox.post(blocked)
        inbox.catch_up(0.01)
        assert not done
    inbox.catch_up(DEADLINE)
    assert done == ["it"]


def test_commands_go_on_after_an_exception_in_the_moment_of_waking(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, done = Inbox(loop, ignore), list[int]()

    def alarm(*args: object) -> None:
        monkeypatch.undo()
        raise TimeoutError("of a signal handler")

    monkeypatch.setattr(inbox, "_wake", alarm)
    with pytest.raises(TimeoutError):
        inbox.post(lambda: done.append(1))
    inbox.post(lambda: done.append(2))
    wait_until(lambda: done == [1, 2], "both are carried out")


def test_the_loop_does_not_wait_for_itself(loop: LoopThread) -> None:
    inbox = Inbox(loop, ignore)
    assert inbox.ask(lambda: inbox.wait(lambda: "there")) == "there"
    assert inbox.ask(lambda: inbox.wait(lambda: "", 0)) is None
    with pytest.raises(RuntimeError, match="await the remote value"):
        inbox.ask(lambda: inbox.wait(lambda: ""))


def test_who_waits_gets_what_it_waits_for_or_nothing_in_time(loop: LoopThread) -> None:
    inbox, there = Inbox(loop, ignore), list[str]()
    assert inbox.wait(lambda: there, 0) is None
    waiting = in_thread(lambda: inbox.wait(lambda: there))
    wait_until(lambda: bool(inbox._waiters), "it waits")
    inbox.post(lambda: (there.append("it"), inbox.look()))
    assert waiting.result(DEADLINE) == ["it"]
    assert not inbox._waiters


def test_what_one_gets_may_be_what_another_waits_for(loop: LoopThread) -> None:
    inbox, given = Inbox(loop, ignore), list[int]()
    first, second = Answer[object](), Answer[object]()
    allowed: list[bool] = []

    def look() -> None:
        inbox.when(lambda: len(given) == 1, first)  # looked at before the second
        inbox.when(lambda: allowed and not given.append(1), second)
        allowed.append(True)
        inbox.look()

    inbox.ask(look)
    assert second.result(DEADLINE)
    assert first.result(DEADLINE)


def test_one_whose_condition_fails_gets_the_error_and_the_others_wait_on(loop: LoopThread) -> None:
    inbox, fails = Inbox(loop, ignore), list[bool]()
    failing, other = Answer[object](), Answer[object]()

    def condition() -> bool:
        if fails:
            raise ValueError("no")
        return False

    inbox.ask(lambda: (inbox.when(condition, failing), inbox.when(lambda: fails, other)))
    inbox.ask(lambda: (fails.append(True), inbox.look()))
    with pytest.raises(ValueError, match="no"):
        failing.result(DEADLINE)
    assert other.result(DEADLINE)


def test_commands_are_carried_out_by_who_posts_them_when_the_loop_is_closed(
    loop: LoopThread,
) -> None:
    inbox, done = Inbox(loop, ignore), list[str]()
    close(loop)
    inbox.post(lambda: inbox.post(lambda: done.append("within")))
    assert done == ["within"]
    assert inbox.ask(lambda: 7) == 7
    assert inbox.wait(lambda: done) == ["within"]


def test_who_waits_is_looked_at_when_the_loop_is_closed(loop: LoopThread) -> None:
    there: list[str] = []
    inbox = Inbox(loop, ignore)
    inbox._handle = lambda *events: inbox.look()
    waiting = in_thread(lambda: inbox.wait(lambda: there))
    wait_until(lambda: bool(inbox._waiters), "it waits")
    there.append("it")
    close(loop)
    assert waiting.result(DEADLINE) == ["it"]


def test_no_task_begins_without_a_loop() -> None:
    async def never() -> None:
        pytest.fail("it began")

    tasks: set[asyncio.Task[None]] = set()
    start_task(never(), tasks, "never")
    assert not tasks
