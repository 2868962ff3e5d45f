"""What an owner that has died has left halfway, on shards that are real but in this process."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.commit import ask, drive, recover_orphans
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import PROCESS, Commit, Part
from psnb._src.server.operations import (
    ApplyCommit,
    BeginLoading,
    CloseLog,
    CommitPart,
    CreateDense,
    EndRound,
    FenceCommits,
    OpenLog,
    PreparePart,
)
from psnb._src.server.optimizers import SGD
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.operations import (
    PushGradient,
    ReadValues,
    ShardOperation,
    on_table,
)
from psnb._src.server.transfer import Transfer
from psnb.errors import (
    ClosureCancelledError,
    OwnershipLostError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

SHARDS = A, B, C = tuple(ShardId("s", number) for number in range(3))
COMMIT = Commit("w", 7, shards=(A, B))
ONES = np.ones(2, np.float32)
PUSH = on_table("v", PushGradient(-ONES))
WRITES = Part([PUSH])


class World:
    """Three shards, each with a variable of zeros."""

    def __init__(self) -> None:
        self.shards = {each: ParameterShard(str(each)) for each in SHARDS}
        self.lost: tuple[ShardId, ...] = ()
        self.silent_to: type[ShardOperation] | None = None
        for shard in self.shards.values():
            shard.run(CreateDense("v", 0 * ONES, SGD(1.0)))

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        return [self._outcome(request) for request in requests]

    def _outcome(self, request: Request) -> Any:
        assert isinstance(request.to, ShardId)
        if request.to in self.lost:
            return ServerLostError("gone")
        if request.to == B and type(request.operation) is self.silent_to:
            return ServerUnresponsiveError("unresponsive")
        try:
            return self.shards[request.to].run(request.operation)  # type: ignore[arg-type]
        except PsnbError as error:
            return error

    def run(self, *operations: tuple[ShardId, Any]) -> None:
        """Run operations on shards."""
        for to, operation in operations:
            self.shards[to].run(operation)

    def move(self, shard: ShardId) -> None:
        """Move a shard to another server."""
        moved = ParameterShard("elsewhere")
        for steps in Transfer(self.shards[shard]).last():
            for step in pickle.loads(pickle.dumps(steps)):
                moved.run(step)
        self.shards[shard] = moved

    def finish(self) -> list[float]:
        """Finish what is halfway; return what the variables of the first two have by then."""
        drive(recover_orphans(SHARDS, ask), self.attempt)
        return [self.value(each) for each in (A, B)]

    def value(self, shard: ShardId) -> float:
        """Return the one number that a variable has in all its places."""
        (value,) = set(self.shards[shard].run(on_table("v", ReadValues())).tolist())
        return float(value)


@pytest.fixture
def world() -> World:
    return World()


def prepare(commit: Commit = COMMIT) -> PreparePart:
    return PreparePart(commit, WRITES)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([(A, prepare())], 0.0),
        ([(A, prepare()), (B, prepare())], 1.0),
        ([(A, prepare()), (B, prepare()), (A, ApplyCommit(COMMIT))], 1.0),
        ([(A, prepare()), (B, prepare()), (A, ApplyCommit(COMMIT)), (B, ApplyCommit(COMMIT))], 1.0),
    ],
    ids=["prepared by one", "prepared by all", "applied by one", "applied by all"],
)
@pytest.mark.parametrize("writer", ["w", f"{PROCESS}w"])
def test_a_commit_is_applied_by_all_shards_or_none(
    world: World, before: list[tuple[ShardId, Any]], after: float, writer: str
) -> None:
    named = COMMIT._replace(writer=writer)
    steps = {PreparePart: lambda: prepare(named), ApplyCommit: lambda: ApplyCommit(named)}
    world.run(*((to, steps[type(each)]()) for to, each in before))
    assert world.finish() == [after, after]
    assert world.finish() == [after, after]  # and again: the first try may have been interrupted


def test_a_later_attempt_counts_not_the_one_before(world: World) -> None:
    # It wrote to other shards than the one before, of which one shard has not heard the end.
    before, later = COMMIT._replace(shards=(A, C)), COMMIT._replace(attempt=2)
    world.run((C, prepare(before)), (A, prepare(later)), (B, prepare(later)))
    world.run((A, ApplyCommit(later)))
    assert world.finish() == [1.0, 1.0]
    assert world.value(C) == 0.0


def test_no_commit_is_taken_from_then_on_until_the_new_owner_says_so(world: World) -> None:
    world.finish()
    alone = Commit("w", 8, shards=(A,))
    with pytest.raises(ClosureCancelledError):
        world.run((A, CommitPart(alone, WRITES)))
    world.run((A, OpenLog()), (A, CommitPart(alone, WRITES)))
    assert world.value(A) == 1.0


def test_the_number_of_updates_goes_on_from_where_it_was(world: World) -> None:
    counted = Part([PUSH], seen=-1)
    world.run((A, CommitPart(Commit("w", 8, shards=(A,)), counted)))
    world.finish()
    world.run((A, OpenLog()))
    assert world.shards[A].log.version == 1


def pushed_in_a_round(world: World) -> EndRound:
    part = Part([PUSH], seen=-1, round_number=3)
    for number in (7, 8):
        commit = COMMIT._replace(number=number)
        steps: tuple[Any, ...] = (PreparePart(commit, part), ApplyCommit(commit))
        world.run(*((to, step) for step in steps for to in (A, B)))
    return EndRound("w", 3, [7, 8], {})


@pytest.mark.parametrize(("ended", "after"), [([], 0.0), ([A], 1.0), ([A, B], 1.0)])
def test_a_round_is_ended_by_all_shards_or_none(
    world: World, ended: list[ShardId], after: float
) -> None:
    end = pushed_in_a_round(world)
    world.run(*((each, end) for each in ended))
    assert world.finish() == [after, after]


def test_a_lost_shard_agrees_with_the_others(world: World) -> None:
    world.run((A, prepare()), (B, prepare()))
    world.lost = (B,)
    drive(recover_orphans(SHARDS, ask), world.attempt)
    assert world.value(A) == 1.0


@pytest.mark.parametrize("to", [CloseLog, FenceCommits, EndRound])
def test_an_unresponsive_shard_is_an_error_after_which_it_can_be_done_again(
    world: World, to: type[ShardOperation]
) -> None:
    end = pushed_in_a_round(world)
    world.run((A, prepare(COMMIT._replace(number=9))), (A, end))
    world.run((B, prepare(COMMIT._replace(number=9))))
    world.silent_to = to
    with pytest.raises(ServerUnresponsiveError):
        drive(recover_orphans(SHARDS, ask), world.attempt)
    world.silent_to = None
    assert world.finish() == [2.0, 2.0]


@pytest.mark.parametrize("ended", [[], [A]])
def test_a_shard_that_has_moved_tells_how_a_round_has_ended(
    world: World, ended: list[ShardId]
) -> None:
    end = pushed_in_a_round(world)
    world.run(*((each, end) for each in ended))
    world.move(A)
    assert world.finish() == [float(len(ended))] * 2


def test_the_end_of_a_round_that_comes_late_changes_no_shard(world: World) -> None:
    end = pushed_in_a_round(world)
    assert world.finish() == [0.0, 0.0]
    with pytest.raises(OwnershipLostError, match="round 3 of w was not ended"):
        world.run((A, end))
    assert world.finish() == [0.0, 0.0]


def test_the_end_of_a_round_that_all_have_ended_may_come_again(world: World) -> None:
    end = pushed_in_a_round(world)
    world.run((A, end))
    assert world.finish() == [1.0, 1.0]
    world.run((A, end), (B, end))
    assert world.finish() == [1.0, 1.0]


def test_tables_that_were_being_loaded_are_reported() -> None:
    world = World()
    assert not drive(recover_orphans(SHARDS, ask), world.attempt)
    world.run((B, BeginLoading("restore")))
    assert drive(recover_orphans(SHARDS, ask), world.attempt)
    assert not world.shards[B].waits(ApplyCommit(COMMIT, decided=True))
    world.run((B, OpenLog()))
    assert not world.shards[B].log.loading
