"""What comes of a commit that its thread does not wait for."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.commit import UndecidedError
from psnb._src.client.requests import RequestBatch
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import Done, Failed
from psnb._src.server.operations import APART, ApplyCommit, CommitParts, PreparePart
from psnb._src.server.tables.operations import AddValues, on_table
from psnb.errors import ConfigurationError, CoordinatorClosedError, ServerUnresponsiveError

SHARDS = ShardId("s", 0), ShardId("s", 1)
PARTS = {each: Part([on_table("v", AddValues(np.ones(1)))]) for each in SHARDS}


class InFlight(CommServerClient):
    """A client that is connected; answers come when the test gives them."""

    def __init__(self, together: bool = True) -> None:
        self.outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sent: list[RequestBatch] = []
        self._open, self._batches = {"here": self}, {}  # type: ignore[dict-item]
        self._all_together = together

    def begin(self) -> None:
        self.commit_soon(Commit("a", 7, shards=SHARDS), PARTS, self.outcomes.put)

    def answer(self, *answers: Any) -> None:
        self.sent.pop().answered(range(len(answers)), list(map(Done, answers)))

    def _together(self, shards: Sequence[ShardId]) -> bool:
        return self._all_together

    def server_of(self, to: Any) -> Any:
        class Server:
            address = "here"

        return Server

    def _begin(self, batch: RequestBatch) -> None:
        self.sent.append(batch)
        self._batches[batch] = 0.0

    def attempt(self, requests: Any) -> list[Any]:
        return [3] * len(requests)


def kinds(batch: RequestBatch) -> list[type]:
    return [type(each.operation) for each in batch.requests]


def test_the_answer_is_the_outcome() -> None:
    client = InFlight()
    client.begin()
    assert kinds(client.sent[0]) == [CommitParts]
    assert client.outcomes.empty()
    client.answer(5)
    assert client.outcomes.get_nowait() == 5
    assert not client._batches


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ConfigurationError("no"), ConfigurationError),
        (ServerUnresponsiveError("unresponsive"), UndecidedError),
    ],
)
def test_an_error_is_the_outcome(answer: Exception, outcome: type[Exception]) -> None:
    client = InFlight()
    client.begin()
    client.sent.pop().answered([0], [Failed(answer)])
    assert isinstance(client.outcomes.get_nowait(), outcome)


def test_what_is_not_on_one_server_any_more_is_committed_in_two_phases() -> None:
    client = InFlight()
    client.begin()
    client.answer(APART)
    assert kinds(client.sent[0]) == [PreparePart, PreparePart]
    client.answer(None, None)
    assert kinds(client.sent[0]) == [ApplyCommit, ApplyCommit]
    client.answer(3, 4)
    assert client.outcomes.get_nowait() == 4


def test_what_is_on_several_servers_is_committed_by_the_thread_itself() -> None:
    client = InFlight(together=False)
    client.begin()
    assert client.outcomes.get_nowait() == 3
    assert not client.sent


def test_a_client_that_is_closed_is_the_outcome() -> None:
    class Closed(InFlight):
        def _begin(self, batch: RequestBatch) -> None:
            raise CoordinatorClosedError("closed")

    client = Closed()
    client.begin()
    assert isinstance(client.outcomes.get_nowait(), UndecidedError)
