"""Writes of tables of which rows leave that are prepared, and find their rows gone when made."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import ApplyCommit, CreateSparse, PreparePart
from psnb._src.server.optimizers import SGD
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.eviction import leaving
from psnb._src.server.tables.eviction.policy import Eviction, RowUsage
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import on_table
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ConfigurationError
from tests.server.tables.test_leaving_rows import array, ids_of, push, table


def put(ids: range) -> ops.PutRows:
    return ops.PutRows(array(*ids), np.full((len(ids), 2), 7, np.float32))


def test_ids_that_had_rows_wait_in_slots_that_were_kept_for_them() -> None:
    of = table(Eviction(1700), admission=CountFilter(2))
    of.run(put(range(1600)))
    made = of.reserve(push(*range(1600)))
    for start in range(10_000, 12_000, 100):
        of.updater.step += 1  # what comes now is used later
        of.run(put(range(start, start + 100)))
    made()
    assert of.index.waiting > 800
    assert of.index.spare >= 0  # else the hash map may be full, and a search in it never ends


def test_values_of_an_id_that_repeats_are_for_one_row() -> None:
    of = table(Eviction(4))
    of.lookup(array(1, 2, 3, 4))
    made = of.reserve(ops.PutRows(array(1, 1), np.array([[7, 7], [8, 8]], np.float32)))
    for ids in ((5, 6), (7, 8), (9, 10)):
        of.lookup(array(*ids))
    assert 1 not in ids_of(of)
    made()
    assert of.index.ids().tolist().count(1) == 1
    assert of.lookup(array(1))[0].tolist() == [8, 8]


COMMIT, FINISH = Commit("w", 0), on_table("e", ops.FinishTable({"step": np.array([200])}))


def loading(eviction: Eviction) -> ParameterShard:
    """Return a shard with a prepared push to 1 and 2, into which twelve rows were loaded since."""
    shard = ParameterShard("shard 0")
    how = "e", 2, None, 0, 1, "float32", Constant(1.0), 0, SGD(1.0)
    shard.run(CreateSparse(*how, eviction=eviction))
    shard.run(on_table("e", ops.LookUpRows(array(1, 2, 3, 4))))
    shard.run(PreparePart(COMMIT, Part([on_table("e", push(1, 2))])))
    shard.run(on_table("e", ops.ClearTable()))
    shard.run(on_table("e", ops.MakeRoom(12)))
    for start in range(100, 112, 4):
        shard.run(on_table("e", ops.PutSegment(saved(range(start, start + 4)))))
    return shard


def run_all(shard: ParameterShard, operations: Iterable[ops.OnTables]) -> None:
    for each in operations:
        shard.run(each)


def test_more_rows_than_may_stay_are_loaded_while_a_push_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "_LEAST", 0)
    shard = loading(Eviction(6))
    shard.run(FINISH)
    run_all(shard, shard.after(FINISH))
    shard.run(ApplyCommit(COMMIT))
    of = shard.table("e")
    assert isinstance(of, SparseTable)
    assert ids_of(of) == {1, 2, 108, 109, 110, 111}


def saved(ids: range) -> ops.Segment:
    """Return rows that were used the later, the greater their ids are."""
    values = np.ones((len(ids), 2), np.float32)
    return {"ids": array(*ids), "values": values, "last_update": np.array([*ids])}


def test_a_push_that_is_prepared_finds_rows_after_a_mark_of_which_none_was_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "_LEAST", 0)
    shard = ParameterShard("shard 0")
    how = "e", 2, None, 0, 1, "float32", Constant(1.0), 0, SGD(1.0)
    shard.run(CreateSparse(*how, eviction=Eviction(6)))
    shard.run(on_table("e", ops.LookUpRows(array(1, 2, 3, 4, 5, 6))))
    of = shard.table("e")
    beside = of.beside()
    assert beside["queue"].size == 0
    run_all(shard, shard.before(prepare := PreparePart(COMMIT, Part([on_table("e", push(7, 8))]))))
    shard.run(prepare)
    for each in (
        ops.ClearTable(),
        ops.PutSegment(saved(range(1, 4))),
        ops.PutSegment(saved(range(4, 7))),
        ops.FinishTable({"step": np.array([200])}, beside),
    ):
        shard.run(on_table("e", each))
    shard.run(ApplyCommit(COMMIT))
    assert isinstance(of, SparseTable)
    assert ids_of(of) == {3, 4, 5, 6, 7, 8}


def test_a_function_that_fails_when_too_many_rows_were_loaded_leaves_no_more_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "_LEAST", 0)
    fails = False

    def score(usage: RowUsage) -> np.ndarray:
        if fails:
            raise ValueError("no score today")
        return -usage.age.astype(np.float64)

    shard = loading(Eviction(6, score))
    fails = True
    shard.run(FINISH)
    with pytest.raises(ConfigurationError, match=r"no score today\. More rows were loaded than"):
        run_all(shard, shard.after(FINISH))
    of = shard.table("e")
    assert isinstance(of, SparseTable)
    assert ids_of(of) == {*range(106, 112)}
    shard.run(ApplyCommit(COMMIT))
    assert ids_of(of) == {1, 2, 108, 109, 110, 111}
