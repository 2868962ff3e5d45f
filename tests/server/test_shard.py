"""Tests of a shard's operations."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import (
    ApplyCommit,
    CommitPart,
    CreateDense,
    CreateSparse,
    DropTable,
    EndRound,
    MeasureTables,
    PreparePart,
    ReadSegment,
    SquareNorms,
)
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import (
    AddValues,
    EndDay,
    FetchRows,
    LookUpRows,
    MergeRows,
    MergeValues,
    OnTables,
    PushGradient,
    PushRows,
    ReadState,
    ReadValues,
    ShardOperation,
    TableOperation,
    on_table,
)
from psnb._src.server.transfer import Transfer
from psnb.errors import ConfigurationError, InternalError

SPARSE = CreateSparse("e", 2, 10, 0, 1, "float32", Constant(1.0), 0, None)


def dense(name: str, size: int = 3, optimizer: Optimizer | None = None) -> CreateDense:
    return CreateDense(name, np.zeros(size, np.float32), optimizer)


@pytest.fixture
def shard() -> ParameterShard:
    """Return a server with a dense table ``v`` and a sparse one ``e``."""
    shard = ParameterShard("shard 0 at home")
    shard.run(dense("v", optimizer=SGD(1.0)))
    shard.run(SPARSE)
    return shard


def test_operations_reach_the_table_of_that_name(shard: ParameterShard) -> None:
    shard.run(dense("w"))
    shard.run(on_table("v", PushGradient(np.ones(3, np.float32))))
    assert shard.run(on_table("v", ReadValues())).tolist() == [-1, -1, -1]
    assert shard.run(on_table("w", ReadValues())).tolist() == [0, 0, 0]


def test_embedding_tables_answer_lookups(shard: ParameterShard) -> None:
    found = shard.run(on_table("e", LookUpRows(np.array([3, 4], np.uint64))))
    assert found.tolist() == [[1, 1], [1, 1]]


def test_unknown_table_is_named_with_the_server(shard: ParameterShard) -> None:
    with pytest.raises(ConfigurationError, match="shard 0 at home holds no 'x'"):
        shard.run(on_table("x", ReadValues()))


@pytest.mark.parametrize(("table", "operation"), [("v", EndDay()), ("e", ReadValues())])
def test_what_is_no_operation_of_a_table_is_refused(
    shard: ParameterShard, table: str, operation: TableOperation
) -> None:
    with pytest.raises(InternalError, match=f"'{table}' has no operation {operation}"):
        shard.run(on_table(table, operation))


@pytest.mark.parametrize(
    "operation",
    [
        OnTables((), ReadState()),
        OnTables(("v", "e"), ReadState()),
        OnTables((), LookUpRows(np.zeros(1, np.uint64))),
        CommitPart(Commit("w", 0), Part([OnTables((), PushGradient(np.ones(3, np.float32)))])),
    ],
)
def test_an_operation_of_no_table_or_too_many_is_refused(
    shard: ParameterShard, operation: ShardOperation
) -> None:
    with pytest.raises(InternalError, match="an operation of"):
        shard.run(shard.decided(operation))


def test_unknown_operation_of_the_shard_is_refused(shard: ParameterShard) -> None:
    with pytest.raises(InternalError, match="shard 0 at home has no operation ReadSegment"):
        shard.run(ReadSegment("of a server", 0, 1))


def test_creating_a_table_again_as_if_it_had_not_been_done_is_no_error(
    shard: ParameterShard,
) -> None:
    shard.run(dense("v"))
    assert shard.run(on_table("v", ReadValues())).tolist() == [0, 0, 0]


def test_dropped_table_is_gone_and_its_name_free(shard: ParameterShard) -> None:
    assert shard.run(DropTable("v")) is None
    with pytest.raises(ConfigurationError, match="holds no 'v'"):
        shard.run(on_table("v", ReadValues()))
    shard.run(dense("v", 5))
    assert shard.run(on_table("v", ReadValues())).shape == (5,)


def test_dropping_what_is_not_there_does_nothing(shard: ParameterShard) -> None:
    assert shard.run(DropTable("x")) is None
    assert set(shard.run(MeasureTables())) == {"v", "e"}


def test_statistics_count_parameters_and_optimizer_state() -> None:
    shard = ParameterShard("shard 0")
    shard.run(dense("plain", 100))
    shard.run(dense("slotted", 100, Adagrad()))
    assert shard.run(MeasureTables()) == {"plain": 400, "slotted": 800}


def test_statistics_of_an_embedding_grow_with_its_rows() -> None:
    shard = ParameterShard("shard 0")
    shard.run(replace(SPARSE, rows=None))
    before = shard.run(MeasureTables())["e"]
    shard.run(on_table("e", LookUpRows(np.arange(10_000, dtype=np.uint64))))
    assert shard.run(MeasureTables())["e"] - before >= 10_000 * 2 * 4


def pushed(
    shard: ParameterShard,
    number: int,
    gradient: float,
    *,
    turn: int = 0,
    ids: tuple[int, ...] = (),
    more: Sequence[Any] = (),
) -> None:
    """Commit what a closure has pushed in a round, and what else it has written."""
    writes: list[Any] = [on_table("v", PushGradient(np.full(3, gradient, np.float32))), *more]
    if ids:
        rows = np.full((len(ids), 2), gradient, np.float32)
        writes.append(on_table("e", PushRows(np.array(ids, np.uint64), rows)))
    part = Part(writes, seen=-1, round_number=turn)
    shard.run(CommitPart(Commit("a", number), part))


def end_round(shard: ParameterShard, turn: int, closures: list[int], **norms: float) -> None:
    shard.run(EndRound("a", turn, closures, norms))


def value(shard: ParameterShard) -> float:
    return float(shard.run(on_table("v", ReadValues()))[0])


def test_what_is_pushed_in_a_round_waits_for_its_end(shard: ParameterShard) -> None:
    pushed(shard, 0, -2.0)
    pushed(shard, 1, -4.0)
    assert value(shard) == 0
    end_round(shard, 0, [0, 1])
    assert value(shard) == 3


def test_a_round_is_applied_once_however_often_it_ends(shard: ParameterShard) -> None:
    pushed(shard, 0, -2.0)
    for _ in range(3):
        end_round(shard, 0, [0])
    assert value(shard) == 2
    assert shard.log.version == 1


def test_a_closure_counts_once_in_its_round_however_often_it_commits(shard: ParameterShard) -> None:
    for _ in range(3):
        pushed(shard, 0, -2.0)
    end_round(shard, 0, [0])
    pushed(shard, 0, -2.0)  # from a worker that was given up for dead
    end_round(shard, 1, [])
    assert value(shard) == 2


def test_what_is_held_of_a_round_counts_when_it_is_applied(shard: ParameterShard) -> None:
    shard.run(dense("count"))
    count: Any = on_table("count", AddValues(np.ones(3, np.float32)))
    push: Any = on_table("v", PushGradient(np.full(3, -2.0, np.float32)))
    commit = Commit("a", 0)
    shard.run(PreparePart(commit, Part([push, count], -1, 0)))
    assert shard.run(on_table("count", ReadValues())).tolist() == [0, 0, 0]
    shard.run(ApplyCommit(commit))
    assert shard.run(on_table("count", ReadValues())).tolist() == [
        1,
        1,
        1,
    ]  # what is not pushed is done
    assert value(shard) == 0
    end_round(shard, 0, [0])
    assert value(shard) == 2


def test_a_round_is_one_step_of_the_optimizer() -> None:
    shard, expected = ParameterShard("shard 0"), ParameterShard("shard 1")
    for each in (shard, expected):
        each.run(dense("v", optimizer=Adagrad(1.0)))
        each.run(replace(SPARSE, optimizer=Adagrad(1.0)))
    pushed(shard, 0, 1.0, ids=(3, 4, 3))
    pushed(shard, 1, 3.0, ids=(4,))
    end_round(shard, 0, [0, 1])
    expected.run(on_table("v", PushGradient(np.full(3, 2, np.float32))))
    rows = np.array([[1, 1], [2, 2]], np.float32)
    expected.run(on_table("e", PushRows(np.array([3, 4], np.uint64), rows)))
    for table in ("v", "e"):
        found, wanted = (each.run(on_table(table, ReadState())) for each in (shard, expected))
        for key, array in wanted.items():
            np.testing.assert_array_equal(found[key], array)


def test_the_norm_of_a_rounds_gradient_is_known_before_its_end() -> None:
    shard = ParameterShard("shard 0")
    shard.run(dense("v", optimizer=SGD(1.0, clipnorm=1.0)))
    pushed(shard, 0, 1.0)
    pushed(shard, 1, 3.0)
    asked = SquareNorms("a", 0, [0, 1], ["v", "w"])
    assert shard.run(asked) == {"v": 12}
    end_round(shard, 0, [0, 1], v=4.0)  # that of all shards
    assert value(shard) == -0.5
    assert shard.run(asked) == {}


def take(copy: ParameterShard, steps: Sequence[ShardOperation]) -> None:
    """Take steps as they arrive."""
    for step in pickle.loads(pickle.dumps(steps)):
        copy.run(step)


def test_a_copy_that_joins_in_the_middle_of_a_round_ends_it_likewise() -> None:
    shard, copy = ParameterShard("shard 0"), ParameterShard("its copy")
    shard.run(dense("v", optimizer=SGD(1.0)))
    shard.run(replace(SPARSE, optimizer=SGD(1.0)))
    pushed(shard, 0, -2.0, ids=(1,))
    transfer = Transfer(shard)
    while steps := transfer.next():
        take(copy, steps)
    for steps in transfer.last():
        take(copy, steps)
    for each in (shard, copy):
        pushed(each, 1, -4.0, ids=(2,))
        end_round(each, 0, [0, 1])
        pushed(each, 2, -1.0, turn=1, ids=(1, 2))
        end_round(each, 1, [2])
    rows = on_table("e", LookUpRows(np.array([1, 2, 3], np.uint64)))
    np.testing.assert_array_equal(copy.run(rows), shard.run(rows))
    assert value(copy) == value(shard) == 4
    assert copy.log.version == shard.log.version == 3


def test_what_copies_of_workers_have_learned_makes_rows_where_they_were_not_looked_up() -> None:
    shard, copy = ParameterShard("shard 0"), ParameterShard("its copy")
    for each in (shard, copy):
        each.run(replace(SPARSE, rows=None, optimizer=SGD(1.0)))
    ids = np.array([1, 2], np.uint64)
    assert not shard.changes(on_table("e", FetchRows(ids)))
    fetched = shard.run(on_table("e", FetchRows(ids)))  # which the copy does not hear of
    merge = MergeRows(ids, fetched["values"], {}, 1, 1.0)
    for each in (shard, copy):
        each.run(on_table("e", merge))
        np.testing.assert_array_equal(each.run(on_table("e", LookUpRows(ids))), np.full((2, 2), 2))


def test_state_of_an_optimizer_moves_a_share_of_the_way(shard: ParameterShard) -> None:
    shard.run(dense("w", optimizer=Adagrad(1.0)))
    slots = {"accumulator": np.full(3, 2.0, np.float32)}
    merge = MergeValues(np.ones(3, np.float32), slots, 7, 0.25)
    shard.run(on_table("w", merge))
    state = shard.run(on_table("w", ReadState()))
    assert state["values"].tolist() == [1, 1, 1]
    np.testing.assert_allclose(state["slot.accumulator"], np.full(3, 0.5), rtol=1e-6)
    assert state["step"] == 7
    shard.run(on_table("w", replace(merge, step=3)))
    assert shard.run(on_table("w", ReadState()))["step"] == 7
