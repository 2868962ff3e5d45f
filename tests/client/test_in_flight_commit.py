"""What comes of a commit that its thread does not wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.commit import InFlightCommit, UndecidedError, committing
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import APART, ApplyCommit, PreparePart
from psnb._src.server.table import AddValues, OnTable
from psnb.errors import ConfigurationError, ServerUnresponsiveError
from tests.conftest import DEADLINE

SHARDS = ShardId("s", 0), ShardId("s", 1)
PARTS = {each: Part([OnTable("v", AddValues(np.ones(1)))]) for each in SHARDS}


class Waited:
    """Takes the outcome, and makes the requests that a thread waits for."""

    def __init__(self, together: bool = True) -> None:
        self.outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.asked: list[tuple[type, str]] = []
        steps = committing(Commit("a", 7, shards=SHARDS), PARTS, lambda _: together)
        self.commit = InFlightCommit(steps, self.attempt, self.outcomes.put)

    def attempt(self, requests: Sequence[Request]) -> Sequence[Any]:
        self.asked.append((type(requests[0].operation), threading.current_thread().name))
        return [3] * len(requests)


def test_the_answer_is_the_outcome_and_no_thread_waits() -> None:
    waited = Waited()
    assert waited.commit.whole
    waited.commit.answered([5])
    assert waited.outcomes.get_nowait() == 5
    assert not waited.asked


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ConfigurationError("no"), ConfigurationError),
        (ServerUnresponsiveError("unresponsive"), UndecidedError),
    ],
)
def test_an_error_is_the_outcome(answer: Exception, outcome: type[Exception]) -> None:
    waited = Waited()
    waited.commit.answered([answer])
    assert isinstance(waited.outcomes.get_nowait(), outcome)


def test_what_is_not_on_one_server_any_more_is_committed_in_a_thread_of_its_own() -> None:
    waited = Waited()
    waited.commit.answered([APART])
    assert waited.outcomes.get(timeout=DEADLINE) == 3
    assert waited.asked == [(PreparePart, "psnb-commit"), (ApplyCommit, "psnb-commit")]


def test_what_is_on_several_servers_is_committed_by_the_thread_that_finishes_it() -> None:
    waited = Waited(together=False)
    assert not waited.commit.whole
    waited.commit.finish()
    assert waited.outcomes.get_nowait() == 3
    assert [name for _, name in waited.asked] == [threading.current_thread().name] * 2
