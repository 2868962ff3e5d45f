"""A session's way to its coordinator, without one."""

from __future__ import annotations

from typing import Any

import pytest

from psnb._src.protocol.messages import AskLease, SignOfLife, TakeAnswer
from psnb._src.worker.link import NotebookLink
from psnb.errors import ClosureCancelledError


class _Comm:
    def abort(self) -> None:
        """Close it."""


@pytest.fixture
def link() -> NotebookLink:
    comm: Any = _Comm()
    return NotebookLink(comm)


def test_an_answer_goes_to_the_one_who_asked(link: NotebookLink) -> None:
    first, second = link.ask(AskLease(1, 7, None)), link.ask(AskLease(2, 7, None))
    link.take_answer(TakeAnswer(1, "second"))
    assert second.result(0) == "second"
    assert not first.done()


def test_a_wait_for_an_answer_raises_when_the_link_closes(link: NotebookLink) -> None:
    answer = link.ask(AskLease(1, 7, None))
    link.close()
    with pytest.raises(ClosureCancelledError, match="out of reach"):
        answer.result(0)


def test_asking_over_a_closed_link_raises(link: NotebookLink) -> None:
    link.close()
    with pytest.raises(ClosureCancelledError, match="out of reach"):
        link.ask(AskLease(1, 7, None)).result(0)


def test_an_answer_that_comes_after_all_was_given_up_is_dropped(link: NotebookLink) -> None:
    link.ask(AskLease(1, 7, None))
    link.close()
    link.take_answer(TakeAnswer(0, None))


def test_nothing_is_sent_before_the_link_is_open(link: NotebookLink) -> None:
    link.send(SignOfLife(1, None, 0.0, "", 0.0))
