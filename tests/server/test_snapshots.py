"""A table as it was at one moment, read in segments while it goes on changing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.server import snapshots
from psnb._src.server.optimizers import Adagrad, Adam
from psnb._src.server.snapshots import Snapshot, snapshot
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import LookUpRows, PushRows, row_nbytes
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb.errors import InternalError
from tests.server.writes import assign, merge, push


def sparse(rows: int | None = None, **more: Any) -> SparseTable:
    return SparseTable("e", 2, rows, 0, 1, "float32", Constant(1.0), 0, Adam(0.1), **more)


def dense() -> DenseTable:
    return DenseTable("v", np.arange(6.0).reshape(3, 2), Adagrad(0.1))


def push_ids(table: SparseTable, *ids: int) -> None:
    gradients = np.arange(2.0 * len(ids), dtype=np.float32).reshape(-1, 2) + 1
    push(table, np.array(ids, np.uint64), gradients)


def rest(taken: Snapshot, start: int = 0, step: int = 2) -> dict[str, np.ndarray]:
    """Return what is left of a snapshot, put together."""
    segments = []
    for at in range(start, taken.rows, step):
        segment = taken.read(at, min(at + step, taken.rows))
        assert segment is not None
        segments.append(segment)
    return {
        name: np.concatenate([taken.form[name], *(p[name] for p in segments)])
        for name in taken.form
    }


def same(found: dict[str, np.ndarray], state: dict[str, np.ndarray]) -> bool:
    return all(
        np.array_equal(array, state[name].reshape(array.shape)) for name, array in found.items()
    )


@pytest.mark.parametrize("make", [sparse, lambda: sparse(9), dense])
def test_all_segments_are_the_table(make: Any) -> None:
    table: Table = make()
    if isinstance(table, SparseTable):
        push_ids(table, 1, 2, 3)
    taken = snapshot(table)
    assert taken.rows == table.extent
    assert same({**rest(taken), **taken.tail}, table.state())


def test_a_row_bytes_are_those_of_its_segment() -> None:
    table = sparse(accessor=CtrAccessor())
    push_ids(table, 1, 2)
    taken = snapshot(table)
    segment = taken.read(0, 2)
    assert segment is not None
    assert row_nbytes(taken.form) * 2 == sum(array.nbytes for array in segment.values())


ST_HOW = st.sampled_from(["columns", "segments"])
IDS = st.lists(st.integers(0, 8), min_size=1, max_size=5)
STEP = st.one_of(
    st.tuples(st.just("push"), IDS),
    st.tuples(st.just("lookup"), IDS),
    st.tuples(st.just("record"), IDS),
    st.tuples(st.just("merge"), IDS),
    st.tuples(st.just("put"), IDS),
    st.tuples(st.just("assign"), IDS),
    st.tuples(st.just("preview"), IDS),
    st.tuples(st.just("day"), st.none()),
    st.tuples(st.just("read"), st.integers(1, 3)),
)


@given(st.sampled_from([None, 9]), IDS, st.lists(STEP, max_size=20))
def test_it_stays_as_it_was_whatever_is_done(
    rows: int | None, first: list[int], steps: list[tuple[str, Any]]
) -> None:
    use = {"accessor": CtrAccessor(), "admission": CountFilter(1), "storage": "disk"}
    more = {} if rows else use
    table = sparse(rows, **more)
    push_ids(table, *first)
    before = table.state()
    taken = snapshot(table)
    at, segments = 0, []
    for what, value in steps:
        if what == "read" and at < taken.rows:
            stop = min(at + value, taken.rows)
            segments.append(taken.read(at, stop))
            at = stop
        else:
            take(table, what, value, bool(more))
    found = rest(taken, at)
    for name, array in found.items():
        whole = np.concatenate([*(segment[name] for segment in segments if segment), array])
        np.testing.assert_array_equal(whole, before[name])


def take(table: SparseTable, what: str, value: Any, has_use: bool) -> None:
    ids = None if value is None or isinstance(value, int) else np.array(value, np.uint64)
    match what:
        case "push":
            push_ids(table, *value)
        case "lookup":
            table.lookup(ids)
        case "record" if has_use:
            ones = np.ones(len(value), np.float32)
            table.run(ops.RecordUse(ids, ones, ones))
        case "merge":
            distinct = np.unique(ids)
            rows = np.ones((distinct.size, 2), np.float32)
            slots = {"first_moment": rows, "second_moment": rows}
            merge(table, distinct, rows, slots, 3, 0.5)
        case "put":
            other = sparse(accessor=CtrAccessor()) if has_use else sparse(9)
            push_ids(other, *value)
            table.put(other.segment(0, other.extent))
        case "assign":
            distinct = np.unique(ids)
            assign(table, distinct, np.full((distinct.size, 2), 7, np.float32))
        case "preview":
            distinct = np.unique(ids)
            gradients = np.ones((distinct.size, 2), np.float32)
            table.preview([PushRows(distinct, gradients)], LookUpRows(ids))
        case "day" if has_use:
            table.run(ops.EndDay())


def test_a_dense_table_stays_as_it_was() -> None:
    table = dense()
    before, taken = table.state(), snapshot(table)
    push(table, np.ones((3, 2)))
    assert same(rest(taken), before)


def test_the_last_segment_may_be_asked_for_once_more() -> None:
    table = sparse()
    push_ids(table, 1, 2, 3)
    taken = snapshot(table)
    first = taken.read(0, 2)
    push_ids(table, 1, 2)
    assert taken.read(0, 2) is first
    taken.read(2, 3)
    with pytest.raises(InternalError, match="rows 0 to 2 of a snapshot read to 3"):
        taken.read(0, 2)


@pytest.mark.parametrize("how", ["shrink", "clear"])
def test_rows_that_are_removed_are_copied_first(how: str) -> None:
    table = sparse(accessor=CtrAccessor())
    push_ids(table, 1, 2, 3)
    before, taken, others = table.state(), snapshot(table), [snapshot(table) for _ in range(3)]
    taken.read(0, 2)
    table.clear() if how == "clear" else table.shrink(1.0, 1.0, forget_waiting=False)
    push_ids(table, 3, 5)
    assert same(rest(taken, 2), {name: array[2:] for name, array in before.items()})
    assert all(same(rest(each), before) for each in others)


@pytest.mark.parametrize("rows", [None, 9])
def test_columns_are_as_they_were_though_rows_change_between_two_of_them(rows: int | None) -> None:
    table = sparse(rows)
    push_ids(table, 1, 2, 3)
    before, taken = table.state(), snapshot(table)
    for number, name in enumerate(taken.form):
        array = np.concatenate([taken.column(name, 0, 2), taken.column(name, 2, taken.rows)])
        np.testing.assert_array_equal(array, before[name], strict=True)
        assert array.shape == taken.shapes[name]
        push_ids(table, 1 + number % 3)


def small_pieces(numbers: int) -> ExitStack:
    """Let snapshots of variables be copied in chunks of so many numbers."""
    stack = ExitStack()
    stack.enter_context(patch.object(snapshots, "CHUNK", 8 * numbers))
    return stack


@given(
    st.integers(0, 13), st.integers(1, 5), st.lists(st.integers(1, 4)), st.integers(0, 13), ST_HOW
)
def test_a_variable_stays_as_it_was_wherever_it_was_read_to_when_it_changed(
    size: int, numbers: int, steps: list[int], change_at: int, how: str
) -> None:
    with small_pieces(numbers):
        table = DenseTable("v", np.arange(float(size)), Adagrad(0.1))
        before, taken = table.state(), snapshot(table)
        found: dict[str, list[np.ndarray]] = {name: [array] for name, array in taken.form.items()}

        def read(name: str, start: int, stop: int) -> np.ndarray:
            return taken.column(name, start, stop) if how == "columns" else last[name]

        ranges, at = [], 0
        for step in [*steps, size]:
            ranges.append((at, min(at + step, size)))
            at = ranges[-1][1]
        changed = False
        for start, stop in ranges:
            if not changed and start >= change_at:
                push(table, np.ones(size))
                changed = True
            last = taken.read(start, stop) if how == "segments" and start < stop else taken.form
            for name, parts in found.items():
                parts.append(read(name, start, stop))
        for name, parts in found.items():
            np.testing.assert_array_equal(np.concatenate(parts), before[name], strict=True)


ROWS_OF_FIVE = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4)


@given(st.integers(1, 4), st.integers(1, 7), ROWS_OF_FIVE, ST_HOW)
def test_a_variable_stays_as_it_was_whichever_rows_change(
    width: int, numbers: int, changes: list[list[int]], how: str
) -> None:
    with small_pieces(numbers):
        table = DenseTable("v", np.arange(5.0 * width).reshape(5, width), Adagrad(0.1))
        before, taken = table.state(), snapshot(table)
        found: dict[str, list[np.ndarray]] = {name: [] for name in taken.form}
        at = 0
        for number, change in enumerate([*changes, []]):
            rows = np.array(change, np.int64)
            kind = ops.AddRows if number % 2 else ops.AssignRows
            table.run(kind(rows, np.full((rows.size, width), 7.0)))
            stop = taken.rows if number == len(changes) else min(at + 3, taken.rows)
            part = taken.read(at, stop) if how == "segments" and at < stop else {}
            for name, parts in found.items():
                parts.append(part[name] if part else taken.column(name, at, stop))
            at = stop
        for name, parts in found.items():
            np.testing.assert_array_equal(np.concatenate(parts), before[name].reshape(-1))


def test_of_a_variable_only_the_parts_are_copied_in_which_rows_change() -> None:
    with (
        small_pieces(4),
        patch.object(snapshots.PreallocatedPages, "copies", autospec=True) as copies,
    ):
        copies.side_effect = lambda room, arrays: [array.copy() for array in arrays]
        table = DenseTable("v", np.zeros((10, 2)), None)
        taken = snapshot(table)
        for _ in range(2):
            table.run(ops.AddRows(np.array([1, 5, 4]), np.ones((3, 2))))
        assert [len(call.args[1]) for call in copies.call_args_list] == [2, 0]
        assert taken.column("values", 0, 20).tolist() == [0] * 20


def test_of_a_variable_only_what_was_not_read_is_copied() -> None:
    with (
        small_pieces(2),
        patch.object(snapshots.PreallocatedPages, "copies", autospec=True) as copies,
    ):
        copies.side_effect = lambda room, arrays: [array.copy() for array in arrays]
        table = DenseTable("v", np.arange(10.0), None)
        taken = snapshot(table)
        taken.column("values", 0, 7)
        table.run(ops.AddValues(np.ones(10)))
        (_, arrays), _ = copies.call_args
        assert [array.tolist() for array in arrays] == [[7, 8], [9, 10]]
        assert taken.column("values", 7, 10).tolist() == [7, 8, 9]


DENSE_WRITES = {
    "push": lambda table: push(table, np.ones((3, 2))),
    "assign": lambda table: assign(table, np.ones((3, 2))),
    "add": lambda table: table.run(ops.AddValues(np.ones((3, 2)))),
    "assign rows": lambda table: table.run(ops.AssignRows(np.array([1]), np.ones((1, 2)))),
    "add rows": lambda table: table.run(ops.AddRows(np.array([1]), np.ones((1, 2)))),
    "merge": lambda table: merge(table, np.ones((3, 2)), {"accumulator": np.ones((3, 2))}, 3, 0.5),
    "put": lambda table: table.put(dense().segment(0, 6)),
}


@pytest.mark.parametrize("write", DENSE_WRITES.values(), ids=DENSE_WRITES)
def test_a_dense_table_is_copied_before_it_changes_in_any_way(
    write: Callable[[DenseTable], None],
) -> None:
    table = dense()
    push(table, np.ones((3, 2)))
    before, taken = table.state(), snapshot(table)
    for _ in range(2):
        write(table)
    assert same(rest(taken), before)
    assert taken.column("values", 1, 3).tolist() == before["values"].reshape(-1)[1:3].tolist()


def test_a_snapshot_that_is_closed_keeps_nothing() -> None:
    table = sparse()
    push_ids(table, 1, 2, 3)
    taken = snapshot(table)
    for _ in range(2):
        taken.close()
    assert not table.watchers
    push_ids(table, 1)


def test_only_rows_that_change_before_they_are_read_are_copied() -> None:
    table = sparse()
    push_ids(table, *range(100))
    taken = snapshot(table)
    taken.read(0, 50)
    push_ids(table, *range(40, 60))
    for _ in range(2):
        push_ids(table, *range(55, 200))
    assert taken._count == 50  # type: ignore[attr-defined]


def test_the_end_of_a_day_copies_the_use_of_rows_alone() -> None:
    table = sparse(accessor=CtrAccessor())
    push_ids(table, *range(100))
    ones = np.ones(100, np.float32)
    table.run(ops.RecordUse(np.arange(100, dtype=np.uint64), ones, ones))
    before, taken = table.state(), snapshot(table)
    table.run(ops.RecordUse(np.arange(10, dtype=np.uint64), ones[:10], ones[:10]))
    for _ in range(2):
        table.run(ops.EndDay())
    assert taken._count == 10  # type: ignore[attr-defined]
    assert same(rest(taken), before)


@given(st.sampled_from([None, 9]), IDS, st.lists(STEP, max_size=20), st.sets(st.integers(0, 8)))
def test_chosen_rows_stay_as_they_were_whatever_is_done(
    rows: int | None, first: list[int], steps: list[tuple[str, Any]], chosen: set[int]
) -> None:
    table = sparse(rows)
    push_ids(table, *first)
    only = np.array(sorted(each for each in chosen if each < table.extent), np.int64)
    before = table.pick(only)
    taken = snapshot(table, only)
    assert (taken.rows, taken.tail.keys()) == (only.size, table.tail().keys())
    at, segments = 0, [taken.form]
    for what, value in steps:
        if what == "read" and at < taken.rows:
            segments.append(taken.read(at, min(at + value, taken.rows)))
            at = min(at + value, taken.rows)
        else:
            take(table, what, value, False)
    if steps and steps[0][0] == "day":
        table.clear()
    segments.append(taken.read(at, taken.rows))
    for name, array in before.items():
        whole = np.concatenate([segment[name] for segment in segments])
        np.testing.assert_array_equal(whole, array, strict=True)
