"""Tables refuse what they cannot take, before a compiled loop sees it, and stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psnb._src.server.operations import CreateDense, CreateSparse, FinishReplica, TableTail
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Always, CountFilter
from psnb._src.server.tables.changed_rows import Watcher
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import Segment
from psnb._src.server.tables.row_index import FixedRowIndex, GrowingRowIndex
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb.errors import ConfigurationError
from tests.server.writes import assign, merge, push

IDS = np.arange(4, dtype=np.uint64)
ROWS = np.ones((4, 2), np.float32)
COUNTS = np.ones(4, np.float32)


def fixed() -> SparseTable:
    """Shard 2 of 3 of ten rows: it has the ids 2, 5 and 8."""
    return SparseTable("e", 2, 10, 2, 3, "float32", Constant(1.0), 0, Adagrad(0.1))


def growing() -> SparseTable:
    """Of which 0 to 3 have rows, and 9 waits for one."""
    table = SparseTable(
        *("e", 2, None, 0, 1, "float32", Constant(1.0), 0, Adagrad(0.1)),
        admission=CountFilter(2),
        accessor=CtrAccessor(),
    )
    push(table, IDS, ROWS)
    push(table, IDS, ROWS)
    table.lookup(np.array([9], np.uint64))
    return table


def dense() -> DenseTable:
    return DenseTable("v", np.ones((3, 2), np.float32), Adagrad(0.1))


def state(**changes: Any) -> Segment:
    """Return what the growing table holds, but for some arrays; None leaves one out."""
    found = {**growing().state(), **changes}
    return {name: array for name, array in found.items() if array is not None}


REPEATED = {
    "ids": np.full(200_000, 7, np.uint64),
    **{name: np.ones((200_000, 2), np.float32) for name in ("values", "slot.accumulator")},
    **{name: np.ones(200_000, np.float32) for name in ("show", "click", "unseen_days")},
}
NINES = np.full(3, 9, np.uint64)
SIGHTED = np.ones(3, np.uint32)
WAITING = "waiting.ids", "waiting.frequencies"

STATES: dict[str, Callable[[], Segment]] = {
    "one id over and over": lambda: state(**REPEATED),
    "one that waits over and over": lambda: state(
        **dict(zip(WAITING, (NINES, SIGHTED), strict=False))
    ),
    "one that waits and has a row": lambda: state(**{WAITING[0]: IDS[:1]}),
    "a row of the file's choosing": lambda: state(**{WAITING[1]: SIGHTED[:1] * 2**31 + 10**8}),
    "no occurrences": lambda: state(**{WAITING[1]: SIGHTED[:1] * 0}),
    "more occurrences than ids": lambda: state(**{WAITING[1]: SIGHTED}),
    "occurrences that are missing": lambda: state(**{WAITING[1]: None}),
    "signed ids": lambda: state(ids=IDS.astype(np.int64)),
    "ids of two axes": lambda: state(ids=IDS.reshape(2, 2)),
    "ids in a list": lambda: state(ids=IDS.tolist()),
    "short values": lambda: state(values=ROWS[:3]),
    "a row for all": lambda: state(values=ROWS[:1]),
    "a column for all": lambda: state(**{"slot.accumulator": ROWS[:, :1]}),
    "doubles": lambda: state(values=ROWS.astype(np.float64)),
    "of the other byte order": lambda: state(values=ROWS.astype(">f4")),
    "short shows": lambda: state(show=COUNTS[:3]),
    "no slots": lambda: state(**{"slot.accumulator": None}),
    "no ids": lambda: state(ids=None),
    "steps below 0": lambda: state(step=np.array([-1])),
    "steps without end": lambda: state(step=np.array([2**63 - 1])),
    "a step of floats": lambda: state(step=np.array([1.0])),
}


def assert_unchanged(table: Table, before: Segment) -> None:
    after = table.state()
    assert after.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name], strict=True)


@pytest.mark.parametrize("case", STATES)
def test_state_that_is_none_is_refused_and_nothing_changed(case: str) -> None:
    table, hostile = growing(), STATES[case]()
    before = table.state()
    with pytest.raises(ConfigurationError, match="'e'"):
        table.load(hostile)
    assert_unchanged(table, before)


@pytest.mark.parametrize("case", STATES)
def test_segments_and_tails_are_refused_likewise(case: str) -> None:
    table, hostile = growing(), STATES[case]()
    before = table.state()
    table.watchers.append(Nobody())
    with pytest.raises(ConfigurationError, match="'e'"):
        (table.put if is_good_tail(hostile) else table.finish)(hostile)
    assert_unchanged(table, before)


def is_good_tail(hostile: Segment) -> bool:
    try:
        growing().finish(hostile)
    except ConfigurationError:
        return False
    return True


class Nobody(Watcher):
    """Hears of no change."""

    def changing(self, rows: np.ndarray | None) -> None:
        raise AssertionError("rows are about to change")

    def lapse(self) -> None:
        raise AssertionError("rows are about to be renumbered")


@pytest.mark.parametrize("ids", [[0, 3, 6], [2, 5, 11], [2, 5, 5], [2, 5, 2**64 - 1]])
def test_fixed_rows_take_their_own_ids_alone(ids: list[int]) -> None:
    table, segment = fixed(), fixed().state()
    segment["ids"], before = np.array(ids, np.uint64), table.state()
    with pytest.raises(ConfigurationError):
        table.load(segment)
    assert_unchanged(table, before)


BAD_IDS = [
    np.array([1.0]),
    np.array([1]),
    np.array([[1]], np.uint64),
    np.array(1, np.uint64),
    [1],
    None,
]
BEYOND = [np.array([number], np.uint64) for number in (9, 11, 2**62, 2**63, 2**64 - 1)]

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "lookup": lambda table, ids: table.lookup(ids),
    "look": lambda table, ids: table.lookup(ids, training=False),
    "fetch": lambda table, ids: table.fetch(ids),
    "push": lambda table, ids: push(table, ids, ROWS[: np.size(ids)]),
    "merge": lambda table, ids: merge(
        table, ids, ROWS[: np.size(ids)], {"accumulator": ROWS[: np.size(ids)]}, 1, 0.5
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("make", [fixed, growing])
@pytest.mark.parametrize("ids", BAD_IDS, ids=repr)
def test_what_is_no_id_reaches_no_loop(
    make: Callable[[], SparseTable], call: str, ids: Any
) -> None:
    table = make()
    before = table.state()
    with pytest.raises(ConfigurationError):
        CALLS[call](table, ids)
    assert_unchanged(table, before)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("ids", BEYOND, ids=repr)
def test_ids_beyond_the_rows_of_a_shard_reach_no_loop(call: str, ids: np.ndarray) -> None:
    table = fixed()
    before = table.state()
    with pytest.raises(ConfigurationError):
        CALLS[call](table, ids)
    assert_unchanged(table, before)


GRADIENTS = [ROWS[:3], ROWS[:, :1], ROWS.astype(np.float64), ROWS.ravel(), ROWS.tolist()]


@pytest.mark.parametrize("gradients", GRADIENTS, ids=["short", "thin", "double", "flat", "list"])
def test_gradients_of_another_form_reach_no_loop(gradients: Any) -> None:
    table = growing()
    before = table.state()
    with pytest.raises(ConfigurationError, match="gradients for 'e'"):
        push(table, IDS, gradients)
    assert_unchanged(table, before)


@pytest.mark.parametrize("slots", [{}, {"accumulator": ROWS[:3]}, {"other": ROWS}])
def test_what_a_copy_has_learned_must_be_of_the_tables_form(slots: dict[str, np.ndarray]) -> None:
    table = growing()
    before = table.state()
    with pytest.raises(ConfigurationError, match="'e'"):
        merge(table, IDS, ROWS, slots, 1, 0.5)
    assert_unchanged(table, before)


def test_counts_of_another_length_are_refused() -> None:
    table = growing()
    before = table.state()
    with pytest.raises(ConfigurationError, match="clicks for 'e'"):
        table.run(ops.RecordUse(IDS, COUNTS, COUNTS[:1]))
    assert_unchanged(table, before)


THREE = np.ones((3, 2), np.float32)
FLAT = {"values": np.ones(4, np.float32), "slot.accumulator": np.ones(4, np.float32)}

DENSE: dict[str, Callable[[DenseTable], object]] = {
    "a number for all": lambda v: assign(v, np.float32(1) * np.ones((), np.float32)),
    "a row for all": lambda v: v.run(ops.AddValues(THREE[:1])),
    "doubles": lambda v: assign(v, THREE.astype(np.float64)),
    "a short gradient": lambda v: push(v, THREE[:1]),
    "a gradient of integers": lambda v: push(v, THREE.astype(np.int32)),
    "a row below 0": lambda v: v.run(ops.AssignRows(np.array([-1]), THREE[:1])),
    "a row beyond": lambda v: v.run(ops.AddRows(np.array([3]), THREE[:1])),
    "a read beyond": lambda v: v.gather(np.array([3])),
    "rows of floats": lambda v: v.gather(np.array([1.0])),
    "one row for two": lambda v: v.run(ops.AssignRows(np.array([0, 1]), THREE[:1])),
    "a segment that starts below 0": lambda v: v.put({**FLAT, "start": np.array([-1])}),
    "a segment that ends beyond": lambda v: v.put({**FLAT, "start": np.array([3])}),
    "a start of floats": lambda v: v.put({**FLAT, "start": np.array([1.0])}),
    "a segment without slots": lambda v: v.put({"values": FLAT["values"]}),
    "slots of another length": lambda v: v.put(
        {**FLAT, "slot.accumulator": np.ones(1, np.float32)}
    ),
    "a state that is a part": lambda v: v.load({**v.state(), **FLAT}),
    "a state that would broadcast": lambda v: v.load({**v.state(), "values": THREE[:1]}),
    "a bad step": lambda v: v.load({**v.state(), "step": np.array([-1])}),
    "what was learned elsewhere": lambda v: merge(v, THREE[:1], {"accumulator": THREE}, 1, 0.5),
    "slots that would broadcast": lambda v: merge(v, THREE, {"accumulator": THREE[:1]}, 1, 0.5),
}


@pytest.mark.parametrize("case", DENSE)
def test_dense_tables_convert_and_broadcast_nothing(case: str) -> None:
    table = dense()
    before = table.state()
    with pytest.raises(ConfigurationError, match="'v'"):
        DENSE[case](table)
    assert_unchanged(table, before)


@pytest.mark.parametrize("rows", [GrowingRowIndex(Always()), GrowingRowIndex(CountFilter(2))])
def test_rows_see_ids_of_one_axis_alone(rows: GrowingRowIndex) -> None:
    for call in (rows.locate, rows.find):
        with pytest.raises(ConfigurationError):
            call(IDS.reshape(2, 2))
    assert (rows.count, rows.waiting) == (0, 0)


def test_an_id_of_another_shard_gives_no_row_behind_the_last() -> None:
    with pytest.raises(ConfigurationError):
        FixedRowIndex(10, 2, 3).find(np.array([9], np.uint64))


SKIPPED = {"skipped": np.array([0])}
BESIDE = {**SKIPPED, "queue": IDS, "counts": np.zeros(4, np.int64)}


def test_a_copy_that_is_sent_a_bad_tail_keeps_what_it_had() -> None:
    """Also of the tables whose tails are good."""
    shard = ParameterShard("copy")
    for name in ("v", "w"):
        shard.run(CreateDense(name, THREE, Adagrad(0.1)))
    good = TableTail({"step": np.array([5])}, Adagrad(0.1), SKIPPED)
    bad = TableTail({"step": np.array([-5])}, Adagrad(0.1), SKIPPED)
    with pytest.raises(ConfigurationError):
        shard.run(FinishReplica({"v": good, "w": bad}, shard.log, None))
    assert shard.table("v").state()["step"] == 0


@pytest.mark.parametrize(
    ("optimizer", "beside"),
    [
        (SGD(1.0), BESIDE),
        (None, BESIDE),
        (Adagrad(0.1), {**SKIPPED, "queue": IDS}),
        (Adagrad(0.1), {**BESIDE, "queue": IDS.reshape(2, 2)}),
        (Adagrad(0.1), {**BESIDE, "counts": np.zeros(3, np.int64)}),
        (Adagrad(0.1), {**BESIDE, "skipped": np.zeros(2, np.int64)}),
    ],
)
def test_a_copy_that_is_sent_another_state_keeps_what_it_had(
    optimizer: Optimizer | None, beside: dict[str, np.ndarray]
) -> None:
    shard = ParameterShard("copy")
    shard.run(CreateDense("v", THREE, Adagrad(0.1)))
    how = "e", 2, None, 0, 1, "float32", Constant(0.0), 0, Adagrad(0.1)
    shard.run(CreateSparse(*how, eviction=Eviction(6)))
    tail = {"step": np.array([5]), "minutes": np.array([0])}
    good = TableTail({"step": np.array([5])}, Adagrad(0.1), SKIPPED)
    bad = TableTail(tail, optimizer, beside)
    with pytest.raises(ConfigurationError):
        shard.run(FinishReplica({"v": good, "e": bad}, shard.log, None))
    assert [shard.table(name).state()["step"] for name in ("v", "e")] == [0, 0]


def test_a_scalar_of_numpys_is_an_array_without_axes() -> None:
    table = DenseTable("v", np.zeros(()), Adagrad(0.1))
    table.run(ops.AddValues(np.float64(2)))
    assign(table, table.read() * 3)  # numpy makes a scalar of it
    push(table, np.float64(1))
    with pytest.raises(ConfigurationError, match="expected an array, found float"):
        table.run(ops.AddValues(2.0))  # type: ignore[arg-type]
    assert table.read() < 6
