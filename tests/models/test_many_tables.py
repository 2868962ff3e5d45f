"""Tests of steps with many tables: one operation for each shard and kind of rows."""

from __future__ import annotations

import cProfile
import itertools
import pstats
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.updates import Updates, buffered
from psnb._src.models.batch_rows import BatchRows
from psnb._src.server.commit_log import Commit
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables.operations import LookUpRows, OnTables, PushRows
from psnb.errors import InvalidArrayError
from tests.models.placing import InProcessStrategy

COUNT = 26
_commits = itertools.count(1)


def tables(strategy: InProcessStrategy) -> list[Embedding]:
    """Return tables of two kinds, one of each for every feature."""
    return [
        strategy.embedding(f"{kind}{number}", dim, optimizer=Adagrad(0.1))
        for kind, dim in (("deep", 16), ("wide", 1))
        for number in range(COUNT)
    ]


def batch(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 300, (512, COUNT))


def step(strategy: InProcessStrategy, of: list[Embedding], number: int) -> dict[Embedding, Any]:
    """Do what a step of a closure does, but for its gradients, which are ones."""
    updates, ids = Updates(counted=True, server_client=strategy.transport), batch(number)
    with buffered(updates):
        rows = BatchRows()
        rows.locate({table: [ids[:, at % COUNT]] for at, table in enumerate(of)})
        _, found = rows.fetch()
        rows.push({table: np.ones_like(each) for table, each in found.items()})
    commit = next(_commits)
    updates.commit(strategy.transport, Commit("w", commit, settled=(0, commit)))
    return found


@pytest.mark.parametrize("shards", [1, 2])
def test_the_tables_of_a_step_are_asked_and_pushed_in_one_operation_of_each_kind(
    shards: int,
) -> None:
    strategy = InProcessStrategy(shards)
    of = tables(strategy)
    strategy.transport.carried.clear()
    step(strategy, of, 1)
    asked = [each.operation for each in strategy.transport.carried]
    reads = [each for each in asked if isinstance(each, OnTables)]
    assert [type(each.operation) for each in reads] == [LookUpRows] * 2 * shards
    assert [len(each.tables) for each in reads] == [COUNT] * 2 * shards
    parts = [part for each in asked for part in _parts(each)]
    writes = [write for part in parts for write in part.writes]
    assert {type(each.operation) for each in writes} == {PushRows}
    assert len(writes) == 2 * shards


def _parts(operation: Any) -> list[Any]:
    if hasattr(operation, "parts") and not isinstance(operation, OnTables):
        return [*operation.parts.values()]
    return [operation.part] if hasattr(operation, "part") else []


@pytest.mark.parametrize("shards", [1, 3])
def test_a_step_of_all_tables_does_what_steps_of_each_do(shards: int) -> None:
    together, apart = (InProcessStrategy(shards) for _ in range(2))
    all_of, each_of = tables(together), tables(apart)
    for number in range(1, 4):
        found = step(together, all_of, number)
        for at, table in enumerate(each_of):
            ids = np.unique(batch(number)[:, at % COUNT])
            rows = table.lookup(ids)
            order = np.unique(batch(number)[:, at % COUNT], return_index=True)[1].argsort()
            np.testing.assert_array_equal(found[all_of[at]], rows[order])
            table.push(ids, np.ones_like(rows))
    for one, other in zip(all_of, each_of, strict=True):
        every = np.arange(300)
        np.testing.assert_array_equal(
            one.lookup(every, training=False), other.lookup(every, training=False)
        )


def test_calls_of_python_hardly_grow_with_the_tables() -> None:
    """A call takes longer than a table's rows: 20,982 calls a step took 7 of 9 ms."""
    strategy = InProcessStrategy(1)
    of = tables(strategy)
    for _ in range(2):  # all rows are there, all loops compiled
        for number in range(1, 4):
            step(strategy, of, number)
    profile = cProfile.Profile()
    profile.enable()
    step(strategy, of, 1)
    profile.disable()
    calls = sum(each[1] for each in pstats.Stats(profile).stats.values())  # type: ignore[attr-defined]
    assert calls <= 2500


def test_a_closure_sees_its_pushes_to_some_of_the_tables_it_reads() -> None:
    strategy = InProcessStrategy(2)
    of = [strategy.embedding(name, 2, optimizer=SGD(1.0)) for name in "abc"]
    ids = [3, 4, 5, 6]
    before = {table: table.lookup(ids) for table in of}
    with buffered(Updates(server_client=strategy.transport)):
        psnb.push({of[1]: (ids[:2], np.ones((2, 2), np.float32))})
        found = psnb.pull(dict.fromkeys(of, ids))
    before[of[1]][:2] -= 1
    for table in of:
        np.testing.assert_array_equal(found[table], before[table])


def test_what_is_not_finite_is_left_out_of_its_table_alone() -> None:
    strategy = InProcessStrategy(2)
    of = [strategy.embedding(n, 2, optimizer=SGD(1.0), nonfinite="skip") for n in "abc"]
    gradients = {table: np.ones((3, 2), np.float32) for table in of}
    gradients[of[1]][1, 0] = np.nan
    before = {table: table.lookup([7, 8, 9]) for table in of}
    psnb.push({table: ([7, 8, 9], each) for table, each in gradients.items()})
    assert [table.skipped() for table in of] == [0, 1, 0]
    for table in of:
        moved = before[table] - table.lookup([7, 8, 9])
        assert (moved[1] == 0).all() == (table is of[1])
        np.testing.assert_allclose(moved[[0, 2]], 1, rtol=1e-6)


def test_a_gradient_that_is_refused_changes_no_table_and_names_its_own() -> None:
    strategy = InProcessStrategy(1)
    of = [strategy.embedding(name, 2, optimizer=SGD(1.0)) for name in "abc"]
    before = [table.lookup([7]) for table in of]
    given = {
        table: ([7], np.full((1, 2), value))
        for table, value in zip(of, (1, np.inf, 1), strict=True)
    }
    given = {table: (ids, each.astype("f4")) for table, (ids, each) in given.items()}
    with pytest.raises(InvalidArrayError, match="'b'"):
        psnb.push(given)
    assert [table.lookup([7]).tolist() for table in of] == [each.tolist() for each in before]


def test_a_table_that_is_there_by_two_handles_is_pushed_twice() -> None:
    strategy = InProcessStrategy(1)
    e = strategy.embedding("e", 2, optimizer=Adagrad(0.1))
    other = Embedding(
        shards_of(e).elsewhere(strategy.transport.shards[0].strategy, strategy.transport)
    )  # type: ignore[arg-type]
    psnb.push({handle: ([1], np.ones((1, 2), np.float32)) for handle in (e, other)})
    assert e.optimizer is not None
    assert e.optimizer.iterations == 2
