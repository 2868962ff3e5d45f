"""Commits: once, from one attempt, whoever sends them and however often."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from psnb import errors
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import PROCESS, Commit, CommitLog, CommitState, Part
from psnb._src.server.operations import (
    ApplyCommit,
    CommitPart,
    CreateDense,
    DropTable,
    EndWriter,
    FenceCommits,
    GiveUpCommit,
    PreparePart,
)
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import (
    AddValues,
    ClearTable,
    LookUpRows,
    OnTables,
    PushGradient,
    PushRows,
    ReadValues,
    TuneOptimizer,
    on_table,
)
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.utils.range_set import Bounds
from tests.server.writes import push

ONES = np.ones(2, np.float32)
PUSH = on_table("v", PushGradient(-ONES))


def shard() -> ParameterShard:
    made = ParameterShard("test")
    made.run(CreateDense("v", 0 * ONES, SGD(1.0)))
    return made


def commit(number: int = 0, attempt: int = 1, settled: Bounds = (), **more: Any) -> Commit:
    return Commit("a", number, attempt, settled, **more)


def do(
    to: ParameterShard, step: str, which: Commit, *writes: OnTables, decided: bool = False
) -> Any:
    """Take one step with a commit that pushes, or has other writes."""
    match step:
        case "prepare":
            return to.run(PreparePart(which, Part(writes or [PUSH])))
        case "commit":
            return to.run(CommitPart(which, Part(writes or [PUSH])))
        case "apply":
            return to.run(ApplyCommit(which, decided))
    return to.run(GiveUpCommit(which, decided))


def fence(to: ParameterShard, **attempts: int) -> list[tuple[int, bool]]:
    """Ask for commits, ``n0=1`` for the first attempt of number 0; return what there is of them."""
    numbers = {int(name[1:]): attempt for name, attempt in attempts.items()}
    facts = to.run(FenceCommits({"a": numbers}))
    return [(fact.commit.number, fact.applied) for fact in facts]


def refused(to: ParameterShard, operation: str, which: Commit) -> bool:
    before = value(to)
    with pytest.raises(errors.ClosureCancelledError, match="was given up"):
        do(to, operation, which)
    return value(to) == before


def value(of: ParameterShard) -> float:
    return float(of.run(on_table("v", ReadValues()))[0])


def test_what_is_held_is_not_applied() -> None:
    made = shard()
    do(made, "prepare", commit())
    assert value(made) == 0
    do(made, "apply", commit())
    assert value(made) == 1


@pytest.mark.parametrize("steps", [["commit"], ["prepare", "apply"]])
def test_what_comes_twice_is_applied_once(steps: list[str]) -> None:
    made = shard()
    for _ in range(3):
        for step in steps:
            do(made, step, commit(7))
    assert value(made) == 1


def test_coordinators_do_not_share_numbers() -> None:
    made = shard()
    do(made, "commit", commit(3))
    do(made, "commit", commit(3)._replace(writer="b"))
    assert value(made) == 2


def test_what_was_given_up_is_never_applied() -> None:
    made = shard()
    do(made, "prepare", commit())
    do(made, "give_up", commit())
    for step in ("prepare", "apply", "commit"):
        assert refused(made, step, commit())


def test_it_may_be_given_up_before_it_comes() -> None:
    made = shard()
    do(made, "give_up", commit())
    assert refused(made, "prepare", commit())


def test_what_is_applied_cannot_be_given_up() -> None:
    made = shard()
    do(made, "commit", commit())
    do(made, "give_up", commit())
    assert fence(made, n0=1) == [(0, True)]


def test_another_attempt_may_follow_one_that_was_given_up() -> None:
    made = shard()
    do(made, "prepare", commit())
    do(made, "give_up", commit())
    do(made, "commit", commit(attempt=2))
    assert value(made) == 1
    assert refused(made, "apply", commit(number=1))


def test_what_an_earlier_attempt_sends_late_changes_nothing() -> None:
    made = shard()
    fence(made, n0=1)
    do(made, "prepare", commit(attempt=2))
    for late in ("prepare", "apply", "commit"):
        assert refused(made, late, commit(attempt=1))
    do(made, "give_up", commit(attempt=1))
    do(made, "apply", commit(attempt=2))
    assert value(made) == 1


def test_what_has_ended_for_good_is_forgotten_and_never_applied_again() -> None:
    made = shard()
    for number in range(100):
        do(made, "commit", commit(number, settled=(0, number - 5)[: 2 * (number > 5)]))
    assert len(made.log) == 6
    assert refused(made, "commit", commit(2))


def test_what_is_held_is_forgotten_when_it_has_ended() -> None:
    made = shard()
    do(made, "prepare", commit(1))
    do(made, "commit", commit(9, settled=(0, 5)))
    assert len(made.log) == 1


def test_a_late_comer_that_knows_less_takes_nothing_back() -> None:
    made = shard()
    do(made, "commit", commit(50, settled=(0, 40)))
    do(made, "commit", commit(41, settled=(0, 10)))
    assert refused(made, "commit", commit(39))


def test_what_ended_behind_one_that_has_not_is_forgotten_and_never_applied_again() -> None:
    made = shard()
    do(made, "prepare", commit(0))
    for number in range(1, 1000):
        do(made, "commit", commit(number))
        if number % 10 == 0:
            made.run(FenceCommits({}, (), {"a": (1, number)}))
        assert len(made.log) <= 11
    assert refused(made, "commit", commit(500))
    do(made, "apply", commit(0))
    assert value(made) == 1000


def test_a_closure_that_has_ended_is_not_noted_again_with_its_exchange() -> None:
    made = shard()
    made.run(FenceCommits({}, (), {"a": (4, 5)}))
    exchange = Commit("a/0", 0, closures=((4, b"four"), (6, b"six")), coordinator="a")
    do(made, "commit", exchange)
    assert [fact.commit.number for fact in made.run(FenceCommits({"a": {4: 1, 6: 1}}))] == [6]


def test_after_it_was_asked_for_only_the_notebook_decides() -> None:
    made = shard()
    do(made, "prepare", commit())
    assert fence(made, n0=1) == [(0, False)]
    assert refused(made, "apply", commit())
    do(made, "apply", commit(), decided=True)
    assert value(made) == 1


def test_after_it_was_asked_for_its_worker_cannot_give_it_up_either() -> None:
    made = shard()
    do(made, "prepare", commit())
    fence(made, n0=1)
    do(made, "give_up", commit())
    do(made, "apply", commit(), decided=True)
    assert value(made) == 1


def test_what_the_notebook_gives_up_is_given_up() -> None:
    made = shard()
    do(made, "prepare", commit())
    fence(made, n0=1)
    do(made, "give_up", commit(), decided=True)
    with pytest.raises(errors.ClosureCancelledError):
        do(made, "apply", commit(), decided=True)


def test_what_is_held_may_be_sent_again() -> None:
    made = shard()
    for _ in range(2):
        do(made, "prepare", commit())
    do(made, "apply", commit())
    assert value(made) == 1


def test_what_is_applied_is_answered_so_to_another_attempt() -> None:
    made = shard()
    do(made, "commit", commit())
    for operation in ("prepare", "apply", "commit"):
        do(made, operation, commit(attempt=2))
    assert value(made) == 1


def test_what_was_given_up_here_is_not_reported_as_prepared() -> None:
    made = shard()
    do(made, "prepare", commit())
    do(made, "give_up", commit())
    assert fence(made, n0=1) == []


def test_another_attempt_that_is_asked_for_is_given_up_though_one_before_it_was_prepared() -> None:
    made = shard()
    do(made, "prepare", commit())
    fence(made, n0=1)
    assert fence(made, n0=2) == []
    assert refused(made, "prepare", commit(attempt=2))


def test_nothing_is_kept_of_what_has_ended_before_it_is_given_up() -> None:
    made = shard()
    do(made, "commit", commit(9, settled=(0, 9)))
    do(made, "give_up", commit(3))
    assert fence(made, n4=1) == []
    assert len(made.log) == 1


def test_what_was_asked_for_and_is_not_here_will_not_come() -> None:
    made = shard()
    assert fence(made, n0=1, n1=2) == []
    assert refused(made, "prepare", commit())
    for attempt in (1, 2):
        assert refused(made, "commit", commit(1, attempt))
    do(made, "commit", commit(1, attempt=3))
    assert value(made) == 1


def test_a_question_that_comes_late_is_about_an_earlier_attempt() -> None:
    made = shard()
    do(made, "prepare", commit(attempt=2))
    assert fence(made, n0=1) == []
    do(made, "apply", commit(attempt=2))
    assert value(made) == 1


def test_a_commit_tells_who_takes_part_and_what_its_closures_return() -> None:
    made = shard()
    whole = commit(shards=(ShardId("s", 0), ShardId("s", 1)), closures=((0, b"result"),))
    do(made, "prepare", whole)
    (fact,) = made.run(FenceCommits({"a": {0: 1}}))
    assert fact.commit == whole


def test_an_exchange_is_the_effect_of_its_closures() -> None:
    made = shard()
    closures = ((4, b"four"), (5, None))
    exchange = Commit("a/0", 0, closures=closures, coordinator="a")
    do(made, "prepare", exchange)
    assert fence(made, n4=1) == []
    do(made, "apply", exchange)
    facts = made.run(FenceCommits({"a": {4: 1, 5: 1, 6: 1}}))
    assert [(fact.commit.closures, fact.applied) for fact in facts] == [
        (((4, b"four"),), True),
        (((5, None),), True),
    ]


def test_a_writer_that_is_closed_tells_what_there_is_of_it_and_commits_no_more() -> None:
    made = shard()
    held, applied = Commit("a/0", 1), Commit("a/0", 0)
    do(made, "commit", applied)
    do(made, "prepare", held)
    for _ in range(2):
        facts = made.run(FenceCommits({}, ["a/0"]))
        assert [(fact.commit.number, fact.applied) for fact in facts] == [(0, True), (1, False)]
    assert refused(made, "commit", Commit("a/0", 2))
    assert refused(made, "apply", held)
    do(made, "apply", held, decided=True)
    assert value(made) == 2


def test_a_writer_that_has_ended_is_forgotten_and_commits_no_more() -> None:
    made = shard()
    do(made, "commit", commit(0))
    do(made, "prepare", commit(1))
    made.run(EndWriter("a"))
    assert len(made.log) == 0
    for step in ("prepare", "apply", "commit"):
        assert refused(made, step, commit(1))


def test_new_shards_know_what_was_given_up_elsewhere() -> None:
    made = shard()
    assert made.run(FenceCommits({"a": {5: 1}}, ["a/0"], {"a": (0, 4, 6, 7)})) == []
    for late in (commit(3), commit(5), commit(6, attempt=1000), Commit("a/0", 9)):
        assert refused(made, "commit", late)
    do(made, "commit", commit(5, attempt=2))
    do(made, "commit", commit(7))
    assert value(made) == 2


def test_processes_that_have_long_written_nothing_are_forgotten() -> None:
    made = shard()
    do(made, "commit", Commit(f"{PROCESS}x", 0))
    do(made, "commit", commit(0))
    for _ in range(59):
        made.tick()
    do(made, "commit", Commit(f"{PROCESS}y", 0))
    made.tick()
    assert set(made.log._writers) == {f"{PROCESS}y", "a"}


def test_a_process_that_goes_on_writing_is_remembered() -> None:
    made = shard()
    for number in range(3):
        do(made, "commit", Commit(f"{PROCESS}x", number))
        for _ in range(59):
            made.tick()
    do(made, "commit", Commit(f"{PROCESS}x", 0))
    assert value(made) == 3


def test_a_commit_to_a_table_that_is_not_there_changes_nothing_and_may_come_again() -> None:
    made = shard()
    gone = on_table("gone", PushGradient(-ONES))
    for step in ("prepare", "commit"):
        with pytest.raises(errors.ConfigurationError, match="'gone'"):
            do(made, step, commit(1), PUSH, gone)
    assert value(made) == 0
    do(made, "commit", commit(1))
    assert value(made) == 1


def test_a_table_that_is_dropped_while_a_commit_is_held_takes_its_part_with_it() -> None:
    made = shard()
    made.run(CreateDense("w", 0 * ONES, None))
    do(made, "prepare", commit(), on_table("w", AddValues(ONES)), PUSH)
    made.run(DropTable("w"))
    do(made, "apply", commit())
    assert value(made) == 1


@pytest.mark.parametrize("step", ["prepare", "commit"])
def test_a_commit_makes_no_reads_nor_loads(step: str) -> None:
    made = shard()
    for operation in (ReadValues(), ClearTable(), TuneOptimizer({})):
        with pytest.raises(errors.InternalError, match=f"{operation}"):
            do(made, step, commit(1), on_table("v", operation))


def test_a_log_travels_with_what_it_holds() -> None:
    log = CommitLog()
    log.prepare(commit(), Part([PUSH]))
    entry = pickle.loads(pickle.dumps(log)).find(commit())
    assert entry.state is CommitState.PREPARED
    np.testing.assert_array_equal(entry.part.writes[0].operation.gradient, -ONES)


def test_a_preview_of_a_dense_table_shows_writes_and_makes_none() -> None:
    table = DenseTable("v", 0 * ONES, Adagrad(1.0))
    before = table.state()
    writes = [PushGradient(-ONES), AddValues(ONES)]
    expected = DenseTable("v", 0 * ONES, Adagrad(1.0))
    for write in writes:
        expected.run(write)
    np.testing.assert_array_equal(table.preview(writes, ReadValues()), expected.read())
    for key, array in table.state().items():
        np.testing.assert_array_equal(array, before[key])


def test_a_preview_of_an_embedding_shows_writes_and_makes_none() -> None:
    table = SparseTable("t", 2, None, 0, 1, "float32", Constant(5.0), 0, Adagrad(1.0))
    known, new = np.array([1, 2], np.uint64), np.array([2, 3], np.uint64)
    push(table, known, np.ones((2, 2), np.float32))
    before = table.lookup(known)
    writes = [PushRows(new, np.ones((2, 2), np.float32))]
    ids = np.array([1, 2, 3], np.uint64)
    shown = table.preview(writes, LookUpRows(ids))
    np.testing.assert_array_equal(table.lookup(known), before)
    np.testing.assert_array_equal(table.lookup(ids)[2], [5, 5])
    push(table, new, np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(table.lookup(ids), shown)


def test_a_preview_that_fails_leaves_the_table_as_it_was() -> None:
    table = DenseTable("v", 0 * ONES, None)
    writes = [AddValues(ONES), PushGradient(ONES)]
    with pytest.raises(errors.ConfigurationError, match="no optimizer"):
        table.preview(writes, ReadValues())
    np.testing.assert_array_equal(table.read(), [0, 0])
