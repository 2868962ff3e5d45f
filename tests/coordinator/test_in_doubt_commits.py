"""What is decided about commits, from what shards say of them. See `tests/model` for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from psnb._src.client.commit import ask, drive, resolve_in_doubt
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, CommitRecord
from psnb._src.server.operations import ApplyCommit, FenceCommits, GiveUpCommit
from psnb.errors import (
    ClosureCancelledError,
    InternalError,
    ServerLostError,
    ServerUnresponsiveError,
)

A, B, C, FOREIGN = (*(ShardId("s", number) for number in range(3)), ShardId("t", 0))
LOST, UNRESPONSIVE = ServerLostError("gone"), ServerUnresponsiveError("unresponsive")
COMMIT = Commit("w", 7, shards=(A, B), closures=((7, b"result"),), coordinator="w")
HELD, APPLIED = [CommitRecord(COMMIT, applied=False)], [CommitRecord(COMMIT, applied=True)]


class Shards:
    """Answers fences as it was told to, each time with the next answer; the last one stays."""

    def __init__(self, **says: Any) -> None:
        names = {"a": A, "b": B, "c": C, "foreign": FOREIGN}
        self._says = {names[name]: list(answers) for name, answers in says.items()}
        self.refuses: set[ShardId] = set()
        self.deaf: list[ShardId] = []  # each time that one does not hear what was decided
        self.concluded: list[tuple[type, ShardId]] = []
        self.asked: list[ShardId] = []
        self.blocked_by = 0

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Any:
        shard = request.to
        assert isinstance(shard, ShardId)
        if isinstance(request.operation, FenceCommits):
            self.asked.append(shard)
            answers = self._says[shard]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        assert isinstance(request.operation, ApplyCommit | GiveUpCommit)
        assert request.operation.decided
        self.concluded.append((type(request.operation), shard))
        if shard in self.deaf:
            self.deaf.remove(shard)
            return UNRESPONSIVE
        return ClosureCancelledError("no") if shard in self.refuses else None

    def found(self) -> bool:
        """Find out what became of the commit, and return whether it is applied."""

        def blocked_by(error: ServerUnresponsiveError) -> None:
            self.blocked_by += 1

        shards = [shard for shard in self._says if shard != FOREIGN]
        found = drive(resolve_in_doubt(shards, {"w": {7: 1}}, (), ask, blocked_by), self.attempt)
        assert found in ({}, {("w", 7): COMMIT})
        return bool(found)


def test_an_unknown_commit_is_not_applied() -> None:
    shards = Shards(a=[[]], b=[[]])
    assert not shards.found()
    assert not shards.concluded


def test_what_is_applied_somewhere_is_applied_by_all_that_hold_it() -> None:
    shards = Shards(a=[APPLIED], b=[HELD], c=[[]])
    assert shards.found()
    assert shards.concluded == [(ApplyCommit, B)]


def test_what_all_hold_is_applied_by_all() -> None:
    shards = Shards(a=[HELD], b=[HELD], c=[[]])
    assert shards.found()
    assert shards.concluded == [(ApplyCommit, A), (ApplyCommit, B)]


def test_what_only_some_hold_is_given_up() -> None:
    shards = Shards(a=[HELD], b=[[]])
    assert not shards.found()
    assert shards.concluded == [(GiveUpCommit, A)]


@pytest.mark.parametrize("error", [LOST, ClosureCancelledError("it is new")])
def test_a_shard_that_is_lost_does_not_stand_in_the_way(error: Exception) -> None:
    shards = Shards(a=[HELD], b=[error])
    assert shards.found()
    assert shards.concluded == [(ApplyCommit, A)]


def test_what_was_known_to_lost_shards_alone_is_lost_with_them() -> None:
    assert not Shards(a=[LOST], b=[LOST]).found()


def test_a_shard_that_says_nothing_is_asked_until_it_does() -> None:
    shards = Shards(a=[HELD], b=[UNRESPONSIVE, UNRESPONSIVE, HELD])
    assert shards.found()
    assert shards.asked == [A, B, B, B]
    assert shards.blocked_by == 2


def test_one_that_says_nothing_may_have_applied_it_alone() -> None:
    shards = Shards(a=[[]], b=[UNRESPONSIVE, APPLIED])
    assert shards.found()
    assert not shards.concluded


def test_shards_of_other_strategies_that_take_part_are_asked_too() -> None:
    commit = COMMIT._replace(shards=(A, FOREIGN))
    shards = Shards(a=[[CommitRecord(commit, applied=False)]], foreign=[[]])
    assert not drive(
        resolve_in_doubt([A], {"w": {7: 1}}, (), ask, lambda error: None), shards.attempt
    )
    assert shards.asked == [A, FOREIGN]
    assert shards.concluded == [(GiveUpCommit, A)]


def test_a_shard_that_is_lost_before_it_applies_it_is_not_waited_for() -> None:
    shards = Shards(a=[HELD], b=[HELD])
    shards.refuses = {B}
    assert shards.found()
    assert shards.concluded == [(ApplyCommit, A), (ApplyCommit, B)]


def test_a_shard_that_does_not_answer_is_sent_the_decision_until_it_does() -> None:
    shards = Shards(a=[HELD], b=[HELD])
    shards.deaf = [B, B]
    assert shards.found()
    assert shards.concluded == [(ApplyCommit, A), *[(ApplyCommit, B)] * 3]


def test_a_bug_on_a_server_is_reported() -> None:
    with pytest.raises(InternalError, match="a bug"):
        Shards(a=[InternalError("a bug")], b=[[]]).found()
