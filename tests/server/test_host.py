"""Shards and their replicas on several servers."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from psnb._src.placement.layout import ShardPlacement
from psnb._src.placement.status import ReplicaState, Role
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import (
    APART,
    ApplyCommit,
    CommitParts,
    CreateDense,
    FenceCommits,
    FollowPlacements,
    GiveUpCommit,
    HostShards,
    OnShard,
    PreparePart,
    ReadSegment,
    ReleaseSnapshot,
    StopServer,
    TakeSnapshot,
)
from psnb._src.server.optimizers import SGD
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.operations import PushGradient, PutSegment, on_table
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ConfigurationError, InternalError
from tests.server.pair import (
    ONES,
    READ,
    SYNCED,
    SYNCING,
    A,
    B,
    Pair,
    moved,
    nowhere,
    push,
    push_rows,
    results,
    same,
)


def test_a_copy_holds_what_the_shard_holds() -> None:
    pair = Pair()
    for _ in range(3):
        pair.commit(push(), push_rows(1, 2, 3))
    pair.fill()
    assert same(pair.shard("a"), pair.shard("b"))


def test_a_change_is_answered_when_the_copy_has_it() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    assert answers == []
    pair.wires[0].deliver()
    assert results(answers) == [None]
    assert same(pair.shard("a"), pair.shard("b"))


def test_a_step_of_a_commit_is_a_change_as_well() -> None:
    pair = Pair()
    pair.fill()
    commit = Commit("w", 0)
    for step in (PreparePart(commit, Part([push()])), ApplyCommit(commit), GiveUpCommit(commit)):
        answers = pair.send("a", step)
        assert answers == []
        pair.flow()
        assert results(answers) == [None]
    fenced = pair.send("a", FenceCommits({"w": {1: 1}}))
    assert fenced == []
    pair.flow()
    assert results(fenced) == [[]]
    assert same(pair.shard("a"), pair.shard("b"))


def test_reads_wait_for_no_copy() -> None:
    pair = Pair()
    pair.fill()
    pair.commit(push())
    assert pair.do(READ).tolist() == [1, 1]


def test_what_waits_for_a_copy_is_answered_as_it_was() -> None:
    pair = Pair()
    pair.fill()
    both = pair.send("a", CommitParts(Commit("w", 100), {0: Part([push()])}), READ)
    pair.commit(push())
    pair.flow()
    assert results(both)[1].tolist() == [1, 1]


def test_a_replica_that_is_being_synced_blocks_no_request() -> None:
    pair = Pair()
    pair.tell("a", syncing=B)
    pair.wires[0].deliver()
    assert results(pair.commit(push())) == [None]
    assert pair.copied() is SYNCING
    pair.flow()
    assert pair.copied() is SYNCED
    assert same(pair.shard("a"), pair.shard("b"))


def test_a_complete_replica_is_waited_for_before_its_state_is_known() -> None:
    pair = Pair()
    pair.tell("a", syncing=B)
    pair.flow()
    answers = pair.commit(push())
    assert answers == []
    pair.flow()
    assert results(answers) == [None]


def test_a_replica_answers_no_request_until_it_is_the_primary() -> None:
    pair = Pair()
    pair.fill()
    pair.commit(push())
    pair.flow()
    assert moved(pair.send("b", READ))
    pair.promote()
    assert pair.do(READ, "b").tolist() == [1, 1]


def test_a_commit_that_the_dead_primary_answered_is_not_applied_again_by_its_copy() -> None:
    pair = Pair()
    pair.commit(push(), number=5)  # before there is a replica
    pair.fill()
    pair.commit(push(), number=6)
    pair.flow()
    pair.promote()
    for number in (5, 6, 7):
        pair.commit(push(), number=number, host="b")
    assert pair.read("b") == [3, 3]


def test_what_the_dead_primary_held_its_copy_holds() -> None:
    pair = Pair()
    commit = Commit("w", 0)
    pair.send("a", PreparePart(commit, Part([push()])))
    pair.fill()
    pair.promote()
    pair.send("b", ApplyCommit(commit))
    assert pair.read("b") == [1, 1]


def test_a_primary_that_was_given_up_by_mistake_acknowledges_nothing_any_more() -> None:
    pair = Pair()
    pair.fill()
    pair.promote()
    answers = pair.commit(push())
    pair.flow()
    assert moved(answers)
    assert pair.holding("a").role is Role.RETIRED
    assert moved(pair.send("a", READ))
    assert pair.read("b") == [0, 0]


def test_nor_when_it_hears_of_it() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    pair.tell("b", "a", primary=B, synced=(), leaving=(A,))
    assert moved(answers)
    assert moved(pair.send("a", READ))


def test_what_waits_for_a_broken_copy_is_answered_when_it_is_let_go() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    pair.wires[0].opening.broken(ConnectionResetError("gone"))
    later = pair.commit(push())
    assert answers == later == []
    assert pair.copied() is ReplicaState.BROKEN
    pair.tell("a", synced=(), leaving=(B,))
    assert results(answers) == results(later) == [None]
    assert pair.wires[0].closed


def test_a_change_that_there_is_no_memory_to_forward_is_made_and_breaks_the_copy() -> None:
    pair = Pair()
    pair.fill()
    pair.wires[0].has_memory = False
    answers = pair.commit(push())
    assert answers == []
    assert pair.copied() is ReplicaState.BROKEN
    pair.tell("a", synced=(), leaving=(B,))
    assert results(answers) == [None]
    assert pair.read("a") == [1, 1]


@pytest.mark.parametrize("delivered", [0, 1])
def test_a_copy_that_there_is_no_memory_to_fill_is_filled_later(
    delivered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    pair.commit(push_rows(1, 1, 2, 2))
    pair.tell("a", syncing=B)
    for _ in range(delivered):
        pair.wires[0].deliver()
    with monkeypatch.context() as without:
        without.setattr(SparseTable, "pick", _no_memory)
        without.setattr(DenseTable, "segment", _no_memory)
        pair.flow()
    assert pair.copied() is ReplicaState.BROKEN
    pair.tell("a", syncing=None)
    pair.tell("a", syncing=B)
    pair.flow()
    assert pair.copied() is SYNCED
    assert same(pair.shard("a"), pair.shard("b"))


def _no_memory(*arguments: object) -> None:
    raise MemoryError


def test_a_missing_server_makes_a_broken_replica_that_is_not_waited_for() -> None:
    pair = Pair()
    pair.connect = nowhere  # type: ignore[method-assign]
    pair.tell("a", syncing=B)
    assert pair.copied() is ReplicaState.BROKEN
    assert results(pair.commit(push())) == [None]


def test_a_replica_that_broke_while_it_was_synced_is_synced_again() -> None:
    pair = Pair()
    pair.tell("a", syncing=B)
    pair.wires[0].opening.broken(ConnectionResetError("gone"))
    pair.commit(push())
    pair.tell("a", syncing=None)
    pair.tell("a", syncing=B)
    pair.flow()
    assert pair.copied() is SYNCED
    assert same(pair.shard("a"), pair.shard("b"))


def test_so_it_is_if_the_primary_has_not_heard_in_between_that_it_is_given_up() -> None:
    pair = Pair()
    pair.tell("a", syncing=B)
    pair.wires[0].opening.broken(ConnectionResetError("gone"))
    pair.tell(syncing=None)
    pair.tell("a", syncing=B)
    pair.flow()
    assert pair.copied() is SYNCED


def test_a_shard_is_handed_over_with_everything_and_the_old_primary_goes_on_as_a_copy() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    pair.tell("a", successor=B)
    assert moved(pair.commit(push()))
    assert (pair.holding("a").role, pair.holding("a").idle) == (Role.RETIRED, False)
    pair.flow()
    assert results(answers) == [None]
    assert pair.holding("a").idle
    pair.tell("b", primary=B, synced=(A,), successor=None)
    answers = pair.commit(push(), number=50, host="b")
    assert answers == []  # it is on both, as before
    pair.flow()
    assert results(answers) == [None]
    assert pair.holding("a").role is Role.REPLICA
    assert pair.read("a") == pair.read("b") == [2, 2]


def test_a_primary_that_keeps_its_shard_after_all_goes_on() -> None:
    pair = Pair()
    pair.fill()
    pair.tell("a", successor=B)
    pair.tell("a", successor=None)
    answers = pair.commit(push())
    pair.flow()
    assert results(answers) == [None]


def test_an_old_place_that_comes_late_changes_nothing() -> None:
    pair = Pair()
    pair.fill()
    before = pair.place
    pair.tell("a", successor=B)
    pair.beat("a", before)
    assert pair.holding("a").role is Role.RETIRED


def test_only_one_that_holds_the_very_same_is_taken_for_a_copy_without_being_filled() -> None:
    pair = Pair()
    pair.fill()
    pair.tell("b", primary=B, synced=(A,), successor=None)  # it did not wait for the last change
    pair.commit(push(), number=9)  # of which nothing is on the way yet
    pair.hosts["a"]._hosted[0].replicas.clear()
    pair.flow()
    assert pair.holding("b").replicas["a"] is ReplicaState.BROKEN


def test_changes_that_come_out_of_turn_break_a_copy() -> None:
    pair = Pair()
    pair.fill()
    pair.commit(push())
    pair.commit(push("w"))
    pair.wires[0].waiting.popleft()  # as no connection does
    pair.flow()
    assert pair.copied() is ReplicaState.BROKEN
    assert pair.read("b") == [0, 0]


def test_a_shard_that_is_not_here_is_elsewhere() -> None:
    pair = Pair()
    assert moved(pair.send("b", READ))
    pair.tell("a", primary=B)
    assert moved(pair.send("a", READ))
    assert pair.beat("a", pair.place) == {}  # and so it was dropped


def test_a_shard_that_a_newer_place_has_brought_is_not_dropped_for_an_older_one() -> None:
    pair = Pair()
    placement = ShardPlacement(B, version=7)
    pair.manage("b", HostShards({0: placement}, []))
    assert set(pair.beat("b", ShardPlacement(A, version=6))) == {0}
    assert set(pair.beat("b", ShardPlacement(A, version=7))) == set()


def test_a_change_that_failed_half_way_through_a_bug_breaks_the_copies() -> None:
    pair = Pair()
    pair.fill()
    with pytest.raises(InternalError):
        pair.do(on_table("e", PutSegment(None)))  # type: ignore[arg-type]
    assert pair.copied() is ReplicaState.BROKEN


def test_a_change_that_is_refused_does_not() -> None:
    pair = Pair()
    pair.fill()
    with pytest.raises(ConfigurationError):
        pair.do(push("gone"))
    assert pair.copied() is SYNCED


def test_what_was_refused_is_not_kept() -> None:
    pair, gradient = Pair(), ONES.copy()
    kept = weakref.ref(gradient)
    pair.send("a", on_table("gone", PushGradient(gradient)))
    del gradient
    gc.collect()
    assert kept() is None


def test_unknown_operations_are_refused() -> None:
    pair = Pair()
    with pytest.raises(InternalError, match="no operation StopServer"):
        pair.manage("a", StopServer())  # which is for its process


class Two:
    """A host with two shards."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.pair.manage("a", HostShards({1: ShardPlacement(A)}, []))
        self.pair.send("a", OnShard(1, CreateDense("v", np.zeros(2, np.float32), SGD(1.0))))

    def commit(self, *writes: Any, number: int = 0) -> Any:
        parts = {0: Part([push()]), 1: Part(writes or [push()])}
        return self.pair.do(CommitParts(Commit("w", number), parts))

    def values(self) -> list[float]:
        reads = results(self.pair.send("a", READ, OnShard(1, READ)))
        return [float(values[0]) for values in reads]


def test_a_commit_to_several_shards_here_is_made_at_once_and_once() -> None:
    two = Two()
    for _ in range(2):
        assert two.commit() is None
    assert two.values() == [1, 1]


def test_it_is_made_nowhere_if_it_cannot_be_made_everywhere() -> None:
    two = Two()
    with pytest.raises(ConfigurationError, match="'gone'"):
        two.commit(push("gone"))
    assert two.values() == [0, 0]


def test_it_must_be_made_in_two_steps_if_a_shard_is_elsewhere_or_has_copies() -> None:
    two = Two()
    two.pair.manage("a", FollowPlacements({0: ShardPlacement(A, syncing=B, version=2)}, [2, 0]))
    assert two.commit() == APART
    two = Two()
    two.pair.manage("a", FollowPlacements({1: ShardPlacement(A)}, [9, 1]))
    assert moved(two.pair.send("a", READ))
    parts = {1: Part([push()]), 0: Part([push()])}
    answers = two.pair.send("a", OnShard(1, CommitParts(Commit("w", 0), parts)))
    assert results(answers) == [APART]


def test_a_snapshot_is_read_in_segments_and_ends_when_it_is_forgotten() -> None:
    pair = Pair()
    pair.commit(push_rows(1, 2, 3))
    pair.commit(push_rows(1, 2, 3))
    header = pair.do(TakeSnapshot("e"))
    assert header.rows == 3
    assert pair.do(ReadSegment(header.snapshot, 0, 2))["ids"].tolist() == [1, 2]
    for _ in range(2):
        pair.hosts["a"].tick()
    assert pair.do(ReadSegment(header.snapshot, 2, 3)) is None
    assert not pair.shard("a").table("e").watchers
    pair.do(ReleaseSnapshot(header.snapshot))
