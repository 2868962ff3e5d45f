"""A shard on its way to a copy, while it is in use. See also `tests/server/test_host.py`."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import numpy as np
import pytest

from psnb._src.placement.layout import ShardId
from psnb._src.server import transfer
from psnb._src.server.commit_log import (
    PROCESS,
    Commit,
    CommitLog,
    CommitState,
    LogEntry,
    Part,
    _CommitWriter,
)
from psnb._src.server.operations import (
    BeginLoading,
    CloseLog,
    CommitPart,
    CreateDense,
    CreateSparse,
    EndLoading,
    EndRound,
    FenceCommits,
    PreparePart,
)
from psnb._src.server.optimizers import SGD
from psnb._src.server.rounds import Rounds, _RoundWriter
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables import operations
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import (
    ClearTable,
    LookUpRows,
    OnTables,
    PushGradient,
    PushRows,
    PutSegment,
    ShardOperation,
    on_table,
)
from psnb._src.server.tables.table import ReservedWrite
from psnb._src.server.transfer import Transfer
from psnb._src.utils.range_set import RangeSet

ROWS = 1000


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> ParameterShard:
    """A shard with an embedding of a thousand rows, of which a hundred fit into a segment."""
    made = ParameterShard("test")
    made.run(CreateSparse("e", 2, None, 0, 1, "float32", Constant(1.0), 0, SGD(1.0)))
    push(made, np.arange(ROWS))
    monkeypatch.setattr(operations, "SEGMENT", 1600)
    monkeypatch.setattr(transfer, "LAST", 160)
    return made


def push(shard: ParameterShard, ids: np.ndarray) -> None:
    gradients = np.ones((ids.size, 2), np.float32)
    shard.run(on_table("e", PushRows(ids.astype(np.uint64), gradients)))


def rows(steps: list[ShardOperation]) -> np.ndarray:
    """Return the ids of the rows that steps bring."""
    puts = [step.operation for step in steps if isinstance(step, OnTables)]
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
    rows = on_table("e", LookUpRows(np.arange(2 * ROWS, dtype=np.uint64), training=False))
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
    shard.run(on_table("other", LookUpRows(np.arange(ROWS, dtype=np.uint64))))
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
    shard.run(on_table("e", ClearTable()))
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


CARRIED = {
    "ParameterShard": {"_tables", "_creations", "log", "ended"},
    "CommitLog": {"version", "rounds", "_writers", "closed", "loading", "_loaded"},
    "_CommitWriter": {"settled", "entries", "closed", "ticks"},
    "LogEntry": {"commit", "state", "part", "reserved", "staleness", "fenced"},
    "Rounds": {"_writers"},
    "_RoundWriter": {"round", "held"},
}
NOT_NEEDED = {
    # The copy has its own; which tables rows leave is known when these are made. Marks that were
    # made before are gone where a copy takes over: going back there is refused.
    "ParameterShard": {"name", "_make", "_leaving", "_marks"},
    "Rounds": {"_rooms", "_averaged"},  # memory, which the copy gets with `reserved` and `held`
}


def test_a_copy_has_all_that_a_shard_knows_of_commits() -> None:
    """What is new in a shard must go with it, or be named as what a copy does not need."""
    ones = np.ones(2, np.float32)
    push = on_table("v", PushGradient(-ones))
    made, copy = ParameterShard("test"), ParameterShard("copy")
    made.run(CreateDense("v", 0 * ones, SGD(1.0)))
    for number in range(2):
        made.run(CommitPart(Commit("a", number), Part([push], 0, number)))
        if not number:
            made.run(EndRound("a", 0, (0,), {"v": 1.0}))
    made.run(CommitPart(Commit("b", 3, coordinator="c", closures=((9, b"x"),)), Part([push], 0)))
    made.run(PreparePart(Commit("b", 4, 2, shards=(ShardId("s", 0),)), Part([push], 0)))
    made.run(PreparePart(Commit(f"{PROCESS}d", 0), Part([push])))
    made.run(FenceCommits({"b": {4: 2, 5: 1}}, ["e"], {"b": (0, 2, 7, 8)}))
    for key in ("f", "g"):
        made.run(BeginLoading(key))
    made.run(EndLoading("f"))
    made.run(CloseLog())
    made.tick()
    for steps in Transfer(made).last():
        take(copy, steps)
    found = known(made)
    assert known(copy) == found
    fresh = ParameterShard("new"), CommitLog(), _CommitWriter(), Rounds(), _RoundWriter()
    for one in (*fresh, LogEntry(Commit("", 0), CommitState.GIVEN_UP)):
        kind = type(one).__name__
        for name in CARRIED[kind] - {"log", "rounds"}:
            values = [value for (*place, _), value in found.items() if place == [kind, name]]
            assert {*values} - {plain(getattr(one, name))}, f"{kind}.{name} is as it was at first"


def known(of: ParameterShard) -> dict[tuple[str, str, str], str]:
    """Return what a shard knows, by kind, name and path, and see that all of it has been named."""
    found: dict[tuple[str, str, str], str] = {}

    def look(at: Any, path: str) -> None:
        kind = type(at).__name__
        if isinstance(at, dict):
            for key, value in at.items():
                look(value, f"{path}[{key!r}]")
        elif kind in CARRIED:
            names = set(at.__slots__ if hasattr(at, "__slots__") else vars(at))
            assert names == CARRIED[kind] | NOT_NEEDED.get(kind, set()), kind
            for name in CARRIED[kind]:
                found[kind, name, path] = plain(getattr(at, name))
                look(getattr(at, name), f"{path}.{name}")

    look(of, "")
    return found


def plain(value: Any) -> str:
    """Return a text that is the same for what is equal."""
    match value:
        case RangeSet():
            return str(value.bounds())
        case dict():
            return str(list(value))
        case list() | tuple() | set() | deque():
            return str([plain(each) for each in value])
        case Part():
            return plain([*value])
        case ReservedWrite():
            return str(value.write)
        case None | bool() | int() | str() | Commit() | EndRound() | OnTables():
            return repr(value)
    return type(value).__name__
