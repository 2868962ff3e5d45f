"""Commits: once for each closure, whoever sends them and however often."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb import errors
from psnb.server import SGD, Adagrad
from psnb.server.commits import CommitLog
from psnb.server.initializers import Constant
from psnb.server.shard import Shard
from psnb.server.tables import DenseTable, SparseTable

ONES = np.ones(2, np.float32)


def shard() -> Shard:
    made = Shard("test")
    made.call("", "create_dense", {"name": "v", "values": 0 * ONES, "optimizer": SGD(1.0)})
    return made


def commit(to: Shard, number: int, *, settled_below: int = 0, **more: Any) -> None:
    arguments = {
        "writer": "a",
        "number": number,
        "settled_below": settled_below,
        "writes": [("v", "push", {"gradient": -ONES})],
    }
    to.call("", "commit", {**arguments, **more})


def value(of: Shard) -> float:
    return float(of.call("v", "read", {})[0])


def test_an_id_is_entered_once() -> None:
    log = CommitLog()
    assert [log.enter("a", 3, 0) for _ in range(3)] == [True, False, False]


def test_coordinators_do_not_share_ids() -> None:
    log = CommitLog()
    assert log.enter("a", 3, 0)
    assert log.enter("b", 3, 0)


def test_what_ended_for_good_is_forgotten_and_never_entered_again() -> None:
    log = CommitLog()
    for closure in range(100):
        assert log.enter("a", closure, max(0, closure - 5))
    assert len(log) == 6
    assert not log.enter("a", 2, 0)


def test_a_late_comer_with_an_old_mark_does_not_lower_it() -> None:
    log = CommitLog()
    assert log.enter("a", 50, 40)
    assert not log.enter("a", 39, 0)


def test_a_commit_that_comes_twice_is_applied_once() -> None:
    made = shard()
    for _ in range(3):
        commit(made, 7)
    assert value(made) == 1


def test_a_commit_of_a_closure_that_ended_is_dropped() -> None:
    made = shard()
    commit(made, 9, settled_below=8)
    commit(made, 5)
    assert value(made) == 1


def test_a_commit_to_a_table_that_is_not_there_changes_nothing_and_may_come_again() -> None:
    made = shard()
    both = [("v", "push", {"gradient": -ONES}), ("gone", "push", {"gradient": -ONES})]
    with pytest.raises(errors.ConfigurationError, match="'gone'"):
        commit(made, 1, writes=both)
    assert value(made) == 0
    commit(made, 1)
    assert value(made) == 1


def test_a_commit_makes_no_reads_nor_loads() -> None:
    made = shard()
    with pytest.raises(errors.InternalError, match="'load'"):
        commit(made, 1, writes=[("v", "load", {"state": {}})])


def test_a_preview_of_a_dense_table_shows_writes_and_makes_none() -> None:
    table = DenseTable("v", 0 * ONES, Adagrad(1.0))
    before = table.state()
    writes = [("push", {"gradient": -ONES}), ("add", {"values": ONES})]
    expected = DenseTable("v", 0 * ONES, Adagrad(1.0))
    for operation, arguments in writes:
        expected.write(operation, arguments)
    np.testing.assert_array_equal(table.preview(writes, "read", {}), expected.read())
    for key, array in table.state().items():
        np.testing.assert_array_equal(array, before[key])


def test_a_preview_of_an_embedding_shows_writes_and_makes_none() -> None:
    table = SparseTable("t", 2, None, 0, 1, "float32", Constant(5.0), 0, Adagrad(1.0))
    known, new = np.array([1, 2], np.uint64), np.array([2, 2, 3], np.uint64)
    table.push(known, np.ones((2, 2), np.float32))
    before = table.lookup(known)
    writes = [("push", {"ids": new, "gradients": np.ones((3, 2), np.float32)})]
    ids = np.array([1, 2, 3], np.uint64)
    shown = table.preview(writes, "lookup", {"ids": ids})
    np.testing.assert_array_equal(table.lookup(known), before)
    np.testing.assert_array_equal(table.lookup(ids)[2], [5, 5])
    table.push(new, np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(table.lookup(ids), shown)


def test_a_preview_that_fails_leaves_the_table_as_it_was() -> None:
    table = DenseTable("v", 0 * ONES, None)
    writes = [("add", {"values": ONES}), ("push", {"gradient": ONES})]
    with pytest.raises(errors.ConfigurationError, match="no optimizer"):
        table.preview(writes, "read", {})
    np.testing.assert_array_equal(table.read(), [0, 0])
