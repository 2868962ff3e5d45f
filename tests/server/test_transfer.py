"""A shard on its way to a copy, while it is in use. See also `tests/server/test_host.py`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from psnb._src.server import replication, table
from psnb._src.server.operations import CreateSparse
from psnb._src.server.optimizers import SGD
from psnb._src.server.replication import Transfer
from psnb._src.server.shard import ParameterShard
from psnb._src.server.states import Constant
from psnb._src.server.table import (
    ClearTable,
    LookUpRows,
    OnTable,
    PushRows,
    PutSegment,
    ShardOperation,
)

ROWS = 1000


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> ParameterShard:
    """A shard with an embedding of a thousand rows, of which a hundred fit into a segment."""
    made = ParameterShard("test")
    made.run(CreateSparse("e", 2, None, 0, 1, "float32", Constant(1.0), 0, SGD(1.0)))
    push(made, np.arange(ROWS))
    monkeypatch.setattr(table, "SEGMENT", 1600)
    monkeypatch.setattr(replication, "LAST", 160)
    return made


def push(shard: ParameterShard, ids: np.ndarray) -> None:
    gradients = np.ones((ids.size, 2), np.float32)
    shard.run(OnTable("e", PushRows(ids.astype(np.uint64), gradients)))


def rows(steps: list[ShardOperation]) -> np.ndarray:
    """Return the ids of the rows that steps bring."""
    puts = [step.operation for step in steps if isinstance(step, OnTable)]
    return np.concatenate([put.segment["ids"] for put in puts if isinstance(put, PutSegment)])


def take(copy: ParameterShard, steps: list[ShardOperation]) -> None:
    """Take steps as they arrive."""
    for step in pickle.loads(pickle.dumps(steps)):
        copy.run(step)


def finish(under_way: Transfer, copy: ParameterShard) -> list[int]:
    """Install all that is left; return how many rows came with each of the last steps."""
    while steps := under_way.next():
        take(copy, steps)
    last = under_way.last()
    for steps in last:
        take(copy, steps)
    return [rows(steps).size for steps in last[:-1]]


def same(one: ParameterShard, other: ParameterShard) -> bool:
    rows = OnTable("e", LookUpRows(np.arange(2 * ROWS, dtype=np.uint64), training=False))
    return np.array_equal(one.run(rows), other.run(rows))


def test_rows_go_a_segment_at_a_time_and_few_at_last(shard: ParameterShard) -> None:
    under_way, copy = Transfer(shard), ParameterShard("copy")
    kinds = []
    while steps := under_way.next():
        kinds += [str(step) for step in steps]
        take(copy, steps)
    assert kinds == ["CreateSparse 'e'", *["PutSegment of 'e'"] * 10]
    assert [str(step) for steps in under_way.last() for step in steps] == ["FinishReplica"]


def test_rows_that_change_after_they_were_sent_are_sent_again(shard: ParameterShard) -> None:
    under_way, copy = Transfer(shard), ParameterShard("copy")
    for _ in range(5):
        take(copy, under_way.next())
    push(shard, np.arange(ROWS))
    push(shard, np.arange(ROWS, ROWS + 5))
    push(shard, np.arange(5))
    assert sum(finish(under_way, copy)) <= 10
    assert same(shard, copy)


def test_what_changes_all_the_time_is_sent_at_last(shard: ParameterShard) -> None:
    under_way, copy = Transfer(shard), ParameterShard("copy")
    sent = 0
    while steps := under_way.next():
        take(copy, steps)
        sent += len(steps)
        push(shard, np.arange(ROWS))
    assert sent <= 40  # three times all rows, and not for ever
    last = finish(under_way, copy)
    assert sum(last) == ROWS
    assert max(last) <= 100
    assert same(shard, copy)


def test_what_changes_while_another_table_is_sent_is_sent_again(shard: ParameterShard) -> None:
    other = CreateSparse("other", 2, None, 0, 1, "float32", Constant(1.0), 0, SGD(1.0))
    shard.run(other)
    shard.run(OnTable("other", LookUpRows(np.arange(ROWS, dtype=np.uint64))))
    under_way, copy = Transfer(shard), ParameterShard("copy")
    for _ in range(15):
        take(copy, under_way.next())
    push(shard, np.arange(50))
    assert sum(finish(under_way, copy)) == 0
    assert same(shard, copy)


@pytest.mark.parametrize("steps_before", [5, 11])
def test_rows_that_are_renumbered_are_all_sent_again(
    shard: ParameterShard, steps_before: int
) -> None:
    under_way, copy = Transfer(shard), ParameterShard("copy")
    for _ in range(steps_before):
        take(copy, under_way.next())
    shard.run(OnTable("e", ClearTable()))
    push(shard, np.arange(ROWS, ROWS + 300))
    kinds = []
    while steps := under_way.next():
        kinds += [str(step) for step in steps]
        take(copy, steps)
    assert kinds == ["ClearTable of 'e'", *["PutSegment of 'e'"] * 3]
    assert sum(finish(under_way, copy)) == 0
    assert same(shard, copy)


def test_a_row_that_changes_all_the_time_holds_no_others_up(shard: ParameterShard) -> None:
    under_way, copy = Transfer(shard), ParameterShard("copy")
    for _ in range(1 + ROWS // 100):
        take(copy, under_way.next())
    push(shard, np.arange(0, ROWS, 2))
    seen: set[int] = set()
    for _ in range(5):
        push(shard, np.arange(0, 20, 2))
        steps = under_way.next()
        take(copy, steps)
        seen |= set(rows(steps).tolist())
    assert seen == set(range(0, ROWS, 2))


def test_no_watcher_follows_the_tables_when_it_is_over(shard: ParameterShard) -> None:
    under_way = Transfer(shard)
    finish(under_way, ParameterShard("copy"))
    for _ in range(2):
        under_way.close()
    assert not shard.table("e").watchers
