"""How far rows have moved since they were first pushed."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.server.optimizers import SGD
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.initializers import Constant, Initializer
from psnb._src.server.tables.moved_rows import MovedRows
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from tests.server.writes import merge, push

IDS = np.arange(80, dtype=np.uint64)
ENOUGH = 13
"""Times: five pushes each."""


def table(initializer: Initializer = Constant(2.0), rows: int | None = None) -> SparseTable:  # noqa: B008
    accessor = None if rows else CtrAccessor()
    return SparseTable("t", 3, rows, 0, 1, "float32", initializer, 0, SGD(1.0), accessor=accessor)


def pushed(to: SparseTable, length: float = 0.1, times: int = 1) -> SparseTable:
    """Push a gradient of that length to the ids, sixteen at a time."""
    gradients = np.full((16, 3), length / np.sqrt(3), np.float32)
    for _ in range(times):
        for part in np.split(IDS, 5):
            push(to, part, gradients)
    return to


def moves(of: SparseTable) -> np.ndarray:
    found: np.ndarray = of.run(ops.MeasureMoves())[1]
    return found


@pytest.mark.parametrize("rows", [None, 80])
def test_rows_have_moved_by_a_part_of_their_length(rows: int | None) -> None:
    found = moves(pushed(table(rows=rows), times=ENOUGH))
    assert found == pytest.approx(np.full(5 * 4, ENOUGH * 0.1 / np.sqrt(12)), rel=1e-5)


def test_a_few_pushes_are_not_enough() -> None:
    assert not moves(pushed(table())).size
    assert not moves(table()).size


def test_few_rows_are_enough_after_many_pushes() -> None:
    few = table()
    for _ in range(64):
        push(few, IDS[:2], np.ones((2, 3), np.float32))
    assert moves(few) == pytest.approx([32.0, 32.0])
    assert not few.moved.watches


def test_what_a_copy_has_learned_is_a_push() -> None:
    merged = table()
    for at in range(64):
        merge(merged, IDS[at : at + 1], np.ones((1, 3), np.float32), {}, at, 1.0)
    assert moves(merged) == pytest.approx(np.full(64, 0.5))


def test_rows_without_a_gradient_have_not_moved_and_zeros_have_moved_far() -> None:
    assert moves(pushed(table(), 0.0, ENOUGH)).max() == 0
    assert moves(pushed(table(Constant(0.0)), times=ENOUGH)).min() == np.inf
    assert moves(pushed(table(Constant(0.0)), 0.0, ENOUGH)).max() == 0
    assert moves(pushed(table(), np.inf, ENOUGH)).min() == np.inf


def test_rows_that_come_from_elsewhere_are_not_looked_at() -> None:
    restored = table()
    restored.load(pushed(table(), times=ENOUGH).state())
    assert not moves(pushed(restored, times=ENOUGH)).size


def test_rows_that_get_other_numbers_are_not_looked_at() -> None:
    shrunk = pushed(table(), times=ENOUGH)
    assert shrunk.shrink(threshold=-1.0, days=100.0, forget_waiting=False) == 0
    assert not moves(shrunk).size


def test_a_push_without_memory_to_look_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMemory(np.ndarray):
        def copy(self, order: object = "C") -> np.ndarray:
            raise MemoryError

    moved, values = MovedRows(), np.ones((4, 3), np.float32).view(NoMemory)
    moved.pushing(values, np.arange(4))
    assert not moved.watches
    assert not moved.moves(values).size
