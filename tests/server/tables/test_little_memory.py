"""Tables of a process that is near the limit of its memory: they refuse, and nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.server import memory
from psnb._src.server.optimizers import Adagrad
from psnb._src.server.snapshots import OpenSnapshots, PreallocatedPages
from psnb._src.server.tables import leaving_rows
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.growing_array import STEP, promised
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.utils.process_memory.room import MemoryRoom
from psnb.errors import ServerMemoryError
from tests.server.standby import NO_THREADS
from tests.server.writes import push
from tests.utils.process_memory.little import Little

DIM = 256
ROWS = 4 * STEP // (4 * DIM)
"""Of which the values take four steps, and as much the optimizer's state."""


def ids(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64)


def ones(count: int) -> np.ndarray:
    return np.ones((count, DIM), np.float32)


@pytest.fixture
def table() -> SparseTable:
    """Return a table with some rows."""
    made = SparseTable(
        *("e", DIM, None, 0, 1, "float32", Constant(), 0, Adagrad(0.1)), accessor=CtrAccessor()
    )
    push(made, ids(ROWS), ones(ROWS))
    return made


@pytest.mark.parametrize("steps", [0, 3, 6, 7])
def test_a_push_that_may_not_have_all_memory_leaves_it_to_others(
    table: SparseTable, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    before, there = promised(), table.state()
    monkeypatch.setattr(memory, "room", Little(steps * STEP))
    with pytest.raises(MemoryError, match="are kept for messages"):
        table.reserve(ops.PushRows(ids(2 * ROWS), ones(2 * ROWS)))
    assert promised() == before
    assert all(np.array_equal(each, there[name]) for name, each in table.state().items())
    monkeypatch.setattr(memory, "room", MemoryRoom())
    push(table, ids(2 * ROWS), ones(2 * ROWS))
    assert table.describe_rows()["rows"] == 2 * ROWS


def test_memory_for_rows_that_do_not_come_is_given_back_in_a_minute(table: SparseTable) -> None:
    before = promised()
    make = table.reserve(ops.PushRows(ids(ROWS, ROWS), ones(ROWS)))
    held = promised()
    assert held > before + ROWS * DIM * 4
    table.tick()
    assert promised() > before + ROWS * DIM * 4
    del make
    table.tick()
    assert promised() <= before + 2 * STEP  # of ids
    push(table, ids(ROWS, ROWS), ones(ROWS))
    assert table.describe_rows()["rows"] == 2 * ROWS


def test_memory_for_rows_that_a_restore_brings_stays(table: SparseTable) -> None:
    state = table.state()
    table.make_room(2 * ROWS)
    held = promised()
    for load in (
        table.clear,
        lambda: table.put({name: state[name] for name in table.pick(slice(0, 0))}),
    ):
        load()
        table.tick(loading=True)
        assert promised() >= held
    table.finish({"step": state["step"]})
    table.tick()
    assert promised() < held - ROWS * DIM * 4


def test_a_full_table_can_shrink_and_then_takes_other_rows(
    table: SparseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Little(0)

    class Room(MemoryRoom):
        def lacks(self, nbytes: int, *, lasts: bool) -> object:
            return None if self._passing else full.lacks(nbytes, lasts=lasts)

    room = Room()
    monkeypatch.setattr(memory, "room", room)
    monkeypatch.setattr(leaving_rows, "memory_room", room)
    use = np.ones(ROWS // 2, np.float32)
    table.run(ops.RecordUse(ids(ROWS // 2), use, use))
    with pytest.raises(MemoryError):
        push(table, ids(ROWS, ROWS), ones(ROWS))
    index = table.index.nbytes()
    assert table.run(ops.ShrinkTable(0.5, 9, True)) == ROWS - ROWS // 2
    full.most = index  # the former one has gone
    push(table, ids(ROWS // 2, ROWS), ones(ROWS // 2))
    assert table.describe_rows()["rows"] == ROWS
    with pytest.raises(MemoryError):
        push(table, ids(ROWS, 2 * ROWS), ones(ROWS))


def test_a_snapshot_keeps_rows_only_while_there_is_memory(
    table: SparseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenSnapshots(PreallocatedPages(NO_THREADS))
    name = opened.begin("s", table, None).snapshot
    monkeypatch.setattr(memory, "room", Little(3 * STEP))
    push(table, ids(100), ones(100))
    assert opened.read(name, 0, 1) is not None
    push(table, ids(ROWS), ones(ROWS))
    with pytest.raises(ServerMemoryError, match="no memory to keep rows as they were"):
        opened.read(name, 1, 2)


def test_an_answer_that_is_too_large_is_refused(
    table: SparseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "room", Little(STEP))
    with pytest.raises(MemoryError, match="are kept for messages"):
        table.lookup(ids(ROWS))
    assert table.lookup(ids(ROWS // 8)).any()
