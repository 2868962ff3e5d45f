"""Tests of lookups and pushes in several tables at once: they do what one after the other does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.placement.layout import ShardId
from psnb._src.server import kernels
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import (
    ApplyCommit,
    CreateDense,
    CreateSparse,
    DropTable,
    PreparePart,
)
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad, Adam
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.admission import Admission, Always, CountFilter, Probability
from psnb._src.server.tables.fused import look_up, reserve_push
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import (
    LookUpRows,
    OnTables,
    PushRows,
    ReadState,
    on_table,
)
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import InvalidArrayError, PsnbError

DIM = 3
FORMS: dict[str, tuple[int | None, Optimizer, Admission]] = {
    "fixed": (40, Adam(0.1), Always()),
    "fixed and clipped": (37, Adagrad(0.1, clipnorm=0.5), Always()),
    "fixed alike": (40, Adam(0.1), Always()),
    "any": (None, Adam(0.1), Always()),
    "alike": (None, Adam(0.1), Always()),
    "other rate": (None, Adam(0.2), Always()),
    "clipped": (None, Adagrad(0.1, clipnorm=0.5), Always()),
    "by chance": (None, Adam(0.1), Probability(0.5)),
    "counted": (None, Adam(0.1), CountFilter(2)),
    "by users": (None, SGD(lambda step: 0.1 / (step + 1)), Always()),
}

ON_DISK = "fixed alike", "alike", "counted"


def table(name: str) -> SparseTable:
    rows, optimizer, admission = FORMS[name]
    accessor = CtrAccessor() if rows is None else None
    creation = name, DIM, rows, 0, 1, "float32", Uniform(), len(name), optimizer
    return SparseTable(*creation, admission, accessor, "disk" if name in ON_DISK else "memory")


def flat(parts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids of several tables, and where those of each begin and end."""
    sizes = [len(each) for each in parts]
    return np.array([i for each in parts for i in each], np.uint64), np.cumsum([0, *sizes])


def gradients(ids: np.ndarray) -> np.ndarray:
    return (np.sin(ids.astype("f4") + 1)[:, None] * np.arange(1, DIM + 1)).astype("f4")


IDS = st.lists(st.lists(st.integers(0, 36), unique=True, max_size=6), min_size=10, max_size=10)
STEPS = st.lists(st.tuples(st.sampled_from(["lookup", "look", "push", "shrink"]), IDS), max_size=8)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, names=st.permutations(list(FORMS)))
def test_several_tables_at_once_are_as_one_after_the_other(
    steps: list[tuple[str, list[list[int]]]], names: list[str]
) -> None:
    together, apart = ({name: table(name) for name in names} for _ in range(2))
    for step, parts in steps:
        ids, offsets = flat(parts)
        if step == "push":
            reserve_push([*together.values()], PushRows(ids, gradients(ids), offsets))()
        elif step == "shrink":
            together["any"].shrink(1.0, 30.0, False)
            apart["any"].shrink(1.0, 30.0, False)
            continue
        else:
            found = look_up([*together.values()], LookUpRows(ids, offsets, step == "lookup"))
        for at, each in enumerate(apart.values()):
            own = slice(offsets[at], offsets[at + 1])
            if step == "push":
                reserve_push([each], PushRows(ids[own], gradients(ids[own])))()
            else:
                alone = each.lookup(ids[own], training=step == "lookup")
                np.testing.assert_array_equal(found[own], alone)
    for one, other in zip(together.values(), apart.values(), strict=True):
        for key, array in one.state().items():
            np.testing.assert_array_equal(array, other.state()[key], err_msg=f"{one.name} {key}")


def bad(kind: str) -> tuple[list[SparseTable], np.ndarray, Any]:
    tables = [table("any"), table("alike")]
    ids = np.arange(4, dtype=np.uint64)
    offsets: Any = np.array([0, 2, 4])
    match kind:
        case "twice":
            tables[1] = tables[0]
        case "other dim":
            tables[1] = SparseTable("e", DIM + 1, None, 0, 1, "float32", Uniform(), 1, SGD(1.0))
        case "other dtype":
            tables[1] = SparseTable("e", DIM, None, 0, 1, "float64", Uniform(), 1, SGD(1.0))
        case "beyond":
            tables = [table("fixed"), table("fixed alike")]
            ids = np.array([1, 2, 3, 40], np.uint64)
        case "beyond, after any":
            tables, ids = [table("any"), table("fixed")], np.array([1, 2, 3, 40], np.uint64)
        case "too far":
            offsets = np.array([0, 2, 5])
        case "falls":
            offsets = np.array([0, 5, 4])
        case "short":
            offsets = np.array([0, 4])
        case "floats":
            offsets = np.array([0.0, 2, 4])
        case "late":
            offsets = np.array([1, 2, 4])
    return tables, ids, offsets


KINDS = [
    "twice",
    "other dim",
    "other dtype",
    "beyond",
    "beyond, after any",
    "too far",
    "falls",
    "short",
    "floats",
    "late",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("push", [True, False])
def test_what_does_not_fit_reaches_no_loop(kind: str, push: bool) -> None:
    tables, ids, offsets = bad(kind)
    run: Any = reserve_push if push else look_up
    of = PushRows(ids, gradients(ids), offsets) if push else LookUpRows(ids, offsets)
    with pytest.raises(PsnbError):
        run(tables, of)
    assert tables[0].describe_rows()["rows"] == (40 if kind == "beyond" else 0)


@pytest.mark.parametrize("others", [{"norms": [1.0]}, {"rates": [0.1]}], ids=str)
def test_norms_and_rates_that_are_not_by_table_are_refused(others: dict[str, Any]) -> None:
    tables, ids, offsets = bad("")
    with pytest.raises(InvalidArrayError, match="1 norms or rates for 2 tables"):
        reserve_push(tables, PushRows(ids, gradients(ids), offsets, **others))


@dataclass(frozen=True)
class _ManySlots(Optimizer):
    """As those of optax, it has no kernel."""

    slots = tuple("abcdefg")

    def _update(
        self, values: Any, slots: Any, rows: Any, ids: Any, given: Any, rate: Any, *_: Any
    ) -> None:
        for slot in slots.values():
            slot[rows] += given
        values[rows] -= rate * given


def test_an_optimizer_may_have_more_slots_than_compiled_loops_look_for() -> None:
    creation = DIM, None, 0, 1, "float32", Uniform(), 1, _ManySlots(1.0)
    tables = [SparseTable(name, *creation) for name in "ab"]
    ids, offsets = flat([[1, 2], [3]])
    reserve_push(tables, PushRows(ids, gradients(ids), offsets))()
    for each, own in zip(tables, (ids[:2], ids[2:]), strict=True):
        np.testing.assert_array_equal(each.state()["slot.g"], gradients(own))


def test_loops_find_arrays_where_they_are_whatever_has_moved_them() -> None:
    made = table("any")

    def check() -> None:
        arrays = [made.index.place, *(each.whole for each in made.row_arrays()[:-1])]
        place = made._place[: len(arrays)].tolist()
        assert place == [kernels.address(each) for each in arrays]
        index: Any = made.index
        assert index.place[:2].tolist() == [
            kernels.address(index._keys),
            kernels.address(index._rows),
        ]
        assert index.place[2] == index._keys.size

    changes: list[Callable[[], object]] = [
        lambda: made.lookup(np.arange(10, dtype=np.uint64)),
        lambda: made.lookup(np.arange(5000, dtype=np.uint64)),
        lambda: made.shrink(1.0, 30.0, False),
        lambda: made.lookup(np.arange(100_000, dtype=np.uint64)),
        made.clear,
        lambda: made.put(made.segment(0, 0)),
    ]
    check()
    for change in changes:
        change()
        check()


def shard() -> ParameterShard:
    made = ParameterShard("0")
    for name in "abc":
        made.run(CreateSparse(name, DIM, None, 0, 1, "float32", Uniform(), 1, SGD(1.0)))
    made.run(CreateDense("v", np.zeros(3, np.float32), SGD(1.0)))
    return made


ALL = ("a", "b", "c")
COMMIT = Commit("w", 1, shards=(ShardId("s", 0),))


def push_of_all() -> OnTables:
    ids, offsets = flat([[1, 2], [3], [4, 5]])
    return OnTables(ALL, PushRows(ids, gradients(ids), offsets))


def rows(of: ParameterShard, name: str, ids: list[int]) -> np.ndarray:
    read = LookUpRows(np.array(ids, np.uint64), training=False)
    found: np.ndarray = of.run(on_table(name, read))
    return found


def test_a_table_that_is_dropped_takes_its_part_of_a_prepared_push_with_it() -> None:
    made = shard()
    before = {name: rows(made, name, [1, 2, 3, 4, 5]) for name in ALL}
    made.run(PreparePart(COMMIT, Part([push_of_all()])))
    made.run(DropTable("b"))
    made.run(CreateSparse("b", DIM, None, 0, 1, "float32", Uniform(), 1, SGD(1.0)))
    made.run(ApplyCommit(COMMIT))
    expected = {name: each - 0 for name, each in before.items()}
    expected["a"][:2] -= gradients(np.array([1, 2]))
    expected["c"][3:] -= gradients(np.array([4, 5]))
    for name in ALL:
        np.testing.assert_array_equal(rows(made, name, [1, 2, 3, 4, 5]), expected[name])


def test_rows_that_go_before_a_prepared_push_is_applied_are_made_again() -> None:
    made = shard()
    made.run(OnTables(ALL, LookUpRows(*flat([[1, 2], [3], [4, 5]]))))
    before = {name: rows(made, name, [1, 2, 3, 4, 5]) for name in ALL}
    made.run(PreparePart(COMMIT, Part([push_of_all()])))
    made.table("a").clear()
    made.run(ApplyCommit(COMMIT))
    assert made.run(on_table("a", ReadState()))["ids"].tolist() == [1, 2]
    before["a"][:2] -= gradients(np.array([1, 2]))
    np.testing.assert_array_equal(rows(made, "a", [1, 2, 3, 4, 5]), before["a"])


@pytest.mark.parametrize("names", [("a", "v"), ("v", "a"), ("a", "b", "gone")])
def test_tables_without_rows_are_refused(names: tuple[str, ...]) -> None:
    made = shard()
    ids, offsets = flat([[1]] * len(names))
    with pytest.raises(PsnbError):
        made.run(
            PreparePart(COMMIT, Part([OnTables(names, PushRows(ids, gradients(ids), offsets))]))
        )
    with pytest.raises(PsnbError):
        made.run(OnTables(names, LookUpRows(ids, offsets)))
    assert len(made.log) == 0
    assert made.run(on_table("a", ReadState()))["ids"].size == 0
