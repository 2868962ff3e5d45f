"""Answers that a thread waits for."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from psnb._src.utils.threads import Answer
from psnb.errors import ClosureCancelledError
from tests.interrupting import (
    Scene,
    assert_as_before,
    interrupt_when,
    interrupted_everywhere,
    sleeping,
    when_it_sleeps,
)


def fail() -> None:
    raise ValueError("no")


def test_the_answer_is_what_was_given_first() -> None:
    answer: Answer[int] = Answer()
    assert not answer.done()
    answer.set_result(1)
    answer.set_result(2)
    answer.set_exception(ValueError())
    assert answer.done()
    assert [answer.result(), answer.result(0)] == [1, 1]


def test_an_error_is_raised() -> None:
    answer: Answer[None] = Answer()
    answer.give(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            answer.result()


def test_a_function_gives_what_it_returns() -> None:
    answer: Answer[list[int]] = Answer()
    answer.give(sorted, [2, 1])
    assert answer.result() == [1, 2]


def test_what_is_cancelled_takes_no_answer_any_more() -> None:
    answer: Answer[int] = Answer()
    answer.cancel()
    answer.set_result(1)
    with pytest.raises(ClosureCancelledError):
        answer.result()


def test_an_answer_that_does_not_come_in_time_may_come_later() -> None:
    answer: Answer[int] = Answer()
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        answer.result(0.01)
    answer.set_result(1)
    assert answer.result(0) == 1


def test_an_answer_is_waited_for() -> None:
    answer: Answer[int] = Answer()
    thread = threading.Thread(target=lambda: answer.set_result(1))
    thread.start()
    assert answer.result() == 1
    thread.join()


def test_an_interrupt_ends_the_waiting_and_the_answer_can_be_given_all_the_same() -> None:
    answer: Answer[int] = Answer()
    with interrupt_when(sleeping), pytest.raises(KeyboardInterrupt):
        answer.result()
    answer.set_result(1)
    assert answer.result() == 1
    assert_as_before()


def test_an_interrupt_at_any_instruction_of_the_waiting_does_not_stop_who_gives_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Answer[int]] = []
    when_it_sleeps(monkeypatch, lambda: answers[-1].set_result(1))

    def make() -> Scene:
        answer: Answer[int] = Answer()
        answers.append(answer)

        def check(error: BaseException | None) -> None:
            answer.set_result(2)  # returns, in whatever thread
            assert answer.result(0) in (1, 2)

        return answer.result, check

    interrupted_everywhere(make)


def test_an_error_keeps_neither_itself_nor_who_waited_alive() -> None:
    class HeldError(Exception):
        pass

    def give() -> None:
        raise HeldError

    gc.disable()
    try:
        answer: Answer[None] = Answer()
        answer.give(give)
        with pytest.raises(HeldError) as raised:
            answer.result()
        seen = weakref.ref(raised.value)
        del answer, raised
        assert seen() is None
    finally:
        gc.enable()
