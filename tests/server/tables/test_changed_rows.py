"""What of a table has changed since a mark, for consumers that do not know of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.server.optimizers import Adagrad
from psnb._src.server.tables import changed_rows
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.changed_rows import TICKS, ChangedRows, Changes
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from tests.server.writes import push

COUNT = 100


@pytest.fixture
def changed() -> ChangedRows:
    return ChangedRows()


def change(changed: ChangedRows, *rows: int) -> None:
    changed.changing(np.array(rows, np.int64))


def rows(changes: Changes) -> list[int] | None:
    return None if changes.rows is None else changes.rows.tolist()


@pytest.mark.parametrize("mark", ["", "x", "x-1", f"{'0' * 32}-3"])
def test_since_what_is_no_mark_of_its_own_all_has_changed(changed: ChangedRows, mark: str) -> None:
    first = changed.take("", COUNT)
    assert rows(changed.take(first.mark, COUNT)) == []
    assert rows(changed.take(mark, COUNT)) is None
    assert rows(changed.take(ChangedRows().take("", COUNT).mark, COUNT)) is None


def test_rows_are_returned_once_ascending(changed: ChangedRows) -> None:
    mark = changed.take("", COUNT).mark
    change(changed, 7, 3)
    change(changed, 3, 64)
    found = changed.take(mark, COUNT)
    assert rows(found) == [3, 7, 64]
    assert not found.nothing
    assert changed.take(found.mark, COUNT)[1:3] == (pytest.approx([]), True)


def test_who_could_not_use_an_answer_asks_again_and_misses_nothing(changed: ChangedRows) -> None:
    mark = changed.take("", COUNT).mark
    change(changed, 3)
    lost = changed.take(mark, COUNT)
    change(changed, 5)
    assert rows(changed.take(mark, COUNT)) == [3, 5]
    assert rows(changed.take(lost.mark, COUNT)) == [5]


def test_two_consumers_each_hear_of_all(changed: ChangedRows) -> None:
    one, two = changed.take("", COUNT).mark, changed.take("", COUNT).mark
    change(changed, 1)
    first = changed.take(one, COUNT)
    change(changed, 2)
    assert (rows(first), rows(changed.take(two, COUNT))) == ([1], [1, 2])
    assert rows(changed.take(first.mark, COUNT)) == [2]


def test_rows_that_were_added_have_changed(changed: ChangedRows) -> None:
    mark = changed.take("", 10).mark
    change(changed, 3, 12, 100_000)
    found = changed.take(mark, 14)
    assert rows(found) == [3, 10, 11, 12, 13]
    change(changed, 12)
    assert rows(changed.take(found.mark, 14)) == [12]


@pytest.mark.parametrize("what", ["all", "most", "renumbered"])
def test_all_rows_are_returned_if_most_have_changed_or_changes_are_unknown(
    changed: ChangedRows, what: str
) -> None:
    mark = changed.take("", COUNT).mark
    if what == "renumbered":
        change(changed, 3)
        changed.renumbering()
    else:
        changed.changing(None if what == "all" else np.arange(51))
    found = changed.take(mark, COUNT)
    assert rows(found) is None
    change(changed, 4)
    assert rows(changed.take(found.mark, COUNT)) == [4]


def test_a_change_beside_the_rows_is_not_nothing(changed: ChangedRows) -> None:
    mark = changed.take("", COUNT).mark
    change(changed)
    assert changed.take(mark, COUNT)[1:3] == (pytest.approx([]), False)


def remove(changed: ChangedRows, *ids: int) -> None:
    changed.removing(np.array(ids, np.uint64))


def test_removed_ids_are_returned_since_a_mark(changed: ChangedRows) -> None:
    first = changed.take("", COUNT).mark
    remove(changed, 2**64 - 1, 7)
    change(changed, 3)
    second = changed.take(first, COUNT).mark
    remove(changed, 8)
    found = [changed.take(mark, COUNT) for mark in (first, second)]
    assert [each.removed.tolist() for each in found] == [[2**64 - 1, 7, 8], [8]]
    assert [rows(each) for each in found] == [[3], []]
    assert not found[1].nothing
    assert changed.take(found[1].mark, COUNT).nothing


def test_more_removed_ids_than_rows_are_not_kept(
    changed: ChangedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_rows, "_FEW", 8)
    marks = [changed.take("", 10).mark]
    for start in range(0, 18, 6):
        remove(changed, *range(start, start + 6))
        marks.append(changed.take("", 10).mark)
    assert [rows(changed.take(mark, 10)) for mark in marks] == [None, None, [], []]
    remove(changed, *range(11))
    remove(changed, 30)
    assert rows(changed.take(marks[-1], 10)) is None
    mark = changed.take("", 10).mark
    remove(changed, 31)
    assert changed.take(mark, 10).removed.tolist() == [31]


def test_rows_that_are_fewer_are_not_among_the_changed(changed: ChangedRows) -> None:
    mark = changed.take("", 10).mark
    change(changed, 3, 9)
    assert rows(changed.take(mark, 5)) == [3]
    assert changed.take(mark, 0).rows is not None
    assert rows(changed.take(mark, 6)) is None  # all are new


def test_when_periods_are_used_up_all_has_changed(
    changed: ChangedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_rows, "_LAST", 3)
    marks = [changed.take("", COUNT).mark for _ in range(4)]
    change(changed, 3)
    found = [rows(changed.take(mark, COUNT)) for mark in reversed(marks)]
    assert found == [[3], None, None, None]


@given(st.lists(st.one_of(st.lists(st.integers(0, 30)), st.integers(0, 4), st.none())))
def test_it_is_what_a_list_of_all_changes_tells(steps: list[Any]) -> None:
    changed, marks, log, count = ChangedRows(), [("", 0)], list[set[int]](), 10
    for step in steps:
        if step is None:
            log.append(set(range(count, count + 1)))
            count += 1
        elif isinstance(step, list):
            there = {each for each in step if each < count}
            log.append(there)
            change(changed, *there)
        else:
            mark, begin = marks[-1 - step % len(marks)]
            found = rows(changed.take(mark, count))
            expected = set[int]().union(*log[begin:])
            assert found is None or set(found) == expected
            assert found is not None or not mark or 2 * len(expected) > count
            marks.append((changed.take("", count).mark, len(log)))


# How tables tell of changes.


def sparse(**more: Any) -> SparseTable:
    return SparseTable("e", 2, None, 0, 1, "float32", Constant(1.0), 0, Adagrad(0.1), **more)


IDS = np.arange(20, dtype=np.uint64)
ONES = np.ones((20, 2), np.float32)


def test_a_table_notes_changes_from_the_first_question_on() -> None:
    table = sparse()
    push(table, IDS, ONES)
    assert not table.watchers
    mark = table.changed_since("").mark
    push(table, IDS[3:5], ONES[:2])
    table.lookup(np.array([50], np.uint64))
    assert rows(table.changed_since(mark)) == [3, 4, 20]


def test_changes_that_are_not_asked_for_are_forgotten() -> None:
    table = sparse()
    mark = table.changed_since("").mark
    for _ in range(2):
        for _ in range(TICKS - 1):
            table.tick()
        assert rows(table.changed_since(mark)) == []
    for _ in range(TICKS + 1):
        table.tick()
    assert not table.watchers
    assert rows(table.changed_since(mark)) is None


def test_a_sighting_of_an_id_without_a_row_is_a_change() -> None:
    table = sparse(admission=CountFilter(3))
    mark = table.changed_since("").mark
    found = table.changed_since(mark)
    assert found.nothing
    table.lookup(IDS)
    assert not table.changed_since(found.mark).nothing


def test_a_day_that_ends_changes_all_rows_and_a_removal_renumbers_them() -> None:
    table = sparse(accessor=CtrAccessor())
    push(table, IDS, ONES)
    mark = table.changed_since("").mark
    table.run(ops.EndDay())
    found = table.changed_since(mark)
    assert rows(found) is None
    table.shrink(0.0, 9.0, forget_waiting=False)
    assert rows(table.changed_since(found.mark)) is None


def test_a_variable_changes_as_a_whole_or_not_at_all() -> None:
    table = DenseTable("v", np.ones((3, 2), np.float32), Adagrad(0.1))
    mark = table.changed_since("").mark
    first = table.changed_since(mark)
    push(table, np.ones((3, 2), np.float32))
    second = table.changed_since(first.mark)
    assert (first.nothing, second.nothing, second.rows) == (True, False, None)
    table.finish({"step": np.array([7])})
    assert not table.changed_since(second.mark).nothing
