"""How a commit comes about: on all shards or on none, whatever comes of the requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.commit import UndecidedError, ask, drive
from psnb._src.client.commit import commit as commit_on
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import APART, ApplyCommit, CommitParts, GiveUpCommit, PreparePart
from psnb._src.server.tables.operations import AddValues, on_table
from psnb.errors import (
    ClosureCancelledError,
    ConfigurationError,
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

A, B = ShardId("s", 0), ShardId("s", 1)
PARTS = {each: Part([on_table("v", AddValues(np.ones(1)))]) for each in (A, B)}
LOST, UNRESPONSIVE, WRONG = (
    ServerLostError("gone"),
    ServerUnresponsiveError("unresponsive"),
    ConfigurationError("no"),
)
CLOSED = CoordinatorClosedError("closed")


class Servers:
    """Answers each lot of requests as it was told to."""

    def __init__(self, *lots: Sequence[Any]) -> None:
        self._lots = iter(lots)
        self.asked: list[tuple[type, list[ShardId]]] = []

    def attempt(self, requests: Sequence[Request]) -> Sequence[Any]:
        (operation,) = {type(request.operation) for request in requests}
        self.asked.append((operation, [request.to for request in requests]))  # type: ignore[misc]
        lot = next(self._lots)
        if isinstance(lot, Exception):
            raise lot
        return lot

    def commit(self, *shards: ShardId, together: bool = False) -> int | None:
        of = Commit("a", 7, shards=shards)
        parts = {shard: PARTS[shard] for shard in shards}
        return drive(commit_on(of, parts, lambda _: together, ask), self.attempt)


def test_what_goes_to_one_server_goes_at_once() -> None:
    servers = Servers([3])
    assert servers.commit(A, B, together=True) == 3
    assert servers.asked == [(CommitParts, [A])]


def test_what_goes_to_several_is_held_by_all_and_then_applied() -> None:
    servers = Servers([None, None], [2, 5])
    assert servers.commit(A, B) == 5
    assert servers.asked == [(PreparePart, [A, B]), (ApplyCommit, [A, B])]


def test_servers_may_know_better_that_it_goes_to_several() -> None:
    servers = Servers([APART], [None, None], [None, None])
    assert servers.commit(A, B, together=True) is None
    assert [operation for operation, _ in servers.asked] == [CommitParts, PreparePart, ApplyCommit]


@pytest.mark.parametrize("error", [LOST, UNRESPONSIVE, WRONG])
def test_what_not_all_hold_is_given_up_by_those_that_do(error: Exception) -> None:
    servers = Servers([None, error], [None])
    with pytest.raises(type(error)):
        servers.commit(A, B)
    assert servers.asked[1:] == [(GiveUpCommit, [A])]


def test_a_commit_that_is_prepared_nowhere_fails() -> None:
    servers = Servers([LOST, LOST])
    with pytest.raises(ServerLostError):
        servers.commit(A, B)


def test_it_has_happened_although_a_server_is_lost_that_held_it() -> None:
    assert Servers([None, None], [4, LOST]).commit(A, B) == 4


@pytest.mark.parametrize("error", [LOST, WRONG])
def test_one_server_that_refuses_or_is_gone_has_applied_nothing(error: Exception) -> None:
    with pytest.raises(type(error)):
        Servers([error]).commit(A, together=True)


@pytest.mark.parametrize("error", [UNRESPONSIVE, CLOSED])
@pytest.mark.parametrize("all_requests", [False, True])
def test_one_server_that_says_nothing_may_have_applied_it(
    error: PsnbError, all_requests: bool
) -> None:
    with pytest.raises(UndecidedError) as raised:
        Servers(error if all_requests else [error]).commit(A, together=True)
    assert raised.value.commit == Commit("a", 7, shards=(A,))
    assert raised.value.reason is error


def test_a_server_that_does_not_know_of_it_any_more_cannot_undo_what_others_have_applied() -> None:
    with pytest.raises(UndecidedError):
        Servers([None, None], [4, ClosureCancelledError("given up")]).commit(A, B)


@pytest.mark.parametrize("error", [UNRESPONSIVE, CLOSED])
def test_a_server_that_held_it_and_says_nothing_has_applied_it_or_will(error: PsnbError) -> None:
    with pytest.raises(UndecidedError):
        Servers([None, None], [4, error]).commit(A, B)


def test_what_is_given_up_by_the_notebook_is_an_error() -> None:
    with pytest.raises(ConfigurationError):
        Servers([None, None], [WRONG, WRONG]).commit(A, B)
