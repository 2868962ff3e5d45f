"""Whatever happens while a copy is filled, it ends the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.server import transfer
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import (
    ApplyCommit,
    CreateDense,
    DropTable,
    EndRound,
    PreparePart,
    SetMark,
)
from psnb._src.server.optimizers import SGD
from psnb._src.server.tables import operations
from psnb._src.server.tables.operations import (
    ClearTable,
    EndDay,
    FinishTable,
    LookUpRows,
    PutRows,
    PutSegment,
    ReadValues,
    RecordUse,
    ShrinkTable,
    TuneOptimizer,
    on_table,
)
from tests.server.pair import ONES, SPARSE, SYNCED, B, Pair, push, push_rows, results, same

EMPTY_ROW = {
    **{
        name: np.full((1, 2), 7, np.float32)
        for name in ("values", "slot.first_moment", "slot.second_moment")
    },
    **{name: np.full(1, 3, np.float32) for name in ("show", "click", "unseen_days")},
}
TAIL = {
    "step": np.array([5]),
    "waiting.ids": np.array([77], np.uint64),
    "waiting.frequencies": np.array([1], np.uint32),
}
IDS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)
STEP = st.one_of(
    st.tuples(st.just("push"), st.sampled_from("vw")),
    st.tuples(st.just("rows"), IDS),
    st.tuples(st.just("both"), IDS),
    st.tuples(st.just("lookup"), IDS),
    st.tuples(st.just("prepare"), IDS),
    st.tuples(st.just("apply"), IDS),
    st.tuples(st.just("use"), IDS),
    st.tuples(st.just("assign"), IDS),
    st.tuples(st.just("load"), IDS),
    st.tuples(st.just("anew"), st.none()),
    st.tuples(st.just("day"), st.none()),
    st.tuples(st.just("shrink"), st.none()),
    st.tuples(st.just("tune"), st.floats(0.01, 1)),
    st.tuples(st.just("again"), st.integers(0, 20)),
    st.tuples(st.just("drop"), st.just("w")),
    st.tuples(st.just("create"), st.just("x")),
    st.tuples(st.just("deliver"), st.integers(1, 3)),
)


@settings(max_examples=150)
@given(st.lists(STEP, max_size=12), st.lists(STEP, max_size=25))
def test_whatever_happens_while_a_copy_is_filled_it_ends_the_same(
    before: list[tuple[str, Any]], meanwhile: list[tuple[str, Any]]
) -> None:
    pair = Pair()
    for step in before:
        take(pair, *step)
    with small_segments():
        pair.tell("a", syncing=B)
        for step in meanwhile:
            take(pair, *step)
        pair.flow()
    assert pair.copied() is SYNCED
    assert same(pair.shard("a"), pair.shard("b"))
    for step in (*before, *meanwhile):
        take(pair, *step)
    pair.flow()
    assert same(pair.shard("a"), pair.shard("b"))


@pytest.mark.parametrize("turn", [None, 0])
@pytest.mark.parametrize("drop", [True, False])
def test_what_was_prepared_for_a_table_that_was_made_anew_is_written_to_no_copy(
    turn: int | None, drop: bool
) -> None:
    pair, commit = Pair(), Commit("h", 1)
    pair.do(PreparePart(commit, Part([push("v"), push("w"), push_rows(1)], round_number=turn)))
    for made in (CreateDense("v", 3 * ONES, SGD(1.0)), SPARSE):
        if drop:
            pair.do(DropTable(made.name))
        pair.do(made)
    pair.fill()
    pair.send("a", ApplyCommit(commit), EndRound("h", 0, [1], {}))
    pair.flow()
    assert same(pair.shard("a"), pair.shard("b"))
    assert pair.read("a") == [3, 3]
    assert pair.do(on_table("w", ReadValues())).tolist() == [1, 1]


@contextmanager
def small_segments() -> Iterator[None]:
    """Send a row or two at a time, and nothing at last that was not sent before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "SEGMENT", 80)
        patch.setattr(transfer, "LAST", 40)
        yield


def take(pair: Pair, what: str, value: Any) -> None:
    """Do one thing to the pair's shard."""
    tables = pair.shard("a").tables()
    match what:
        case "push" if value in tables:
            pair.commit(push(value))
        case "rows":
            pair.commit(push_rows(*value))
        case "both":
            pair.commit(push(), push_rows(*value))
        case "prepare":
            part = Part([push(), push_rows(*value)])
            pair.send("a", PreparePart(Commit("h", value[0]), part))
        case "apply":
            pair.send("a", ApplyCommit(Commit("h", value[0])))
        case "lookup":
            pair.send("a", on_table("e", LookUpRows(np.array(value, np.uint64))))
        case "day":
            pair.commit(on_table("e", EndDay()))
        case "use":
            ones = np.ones(len(value), np.float32)
            pair.commit(on_table("e", RecordUse(np.array(value, np.uint64), ones, ones)))
        case "assign":
            ids = np.unique(np.array(value, np.uint64))
            rows = np.full((ids.size, 2), 7, np.float32)
            pair.commit(on_table("e", PutRows(ids, rows)))
        case "shrink":
            pair.send("a", on_table("e", ShrinkTable(0.5, 1.0, forget_waiting=False)))
        case "load":
            pair.send("a", on_table("e", ClearTable()))
            rows = {"ids": np.array(value, np.uint64), **EMPTY_ROW}
            segment = {key: np.repeat(a, len(value) if a.size else 1, 0) for key, a in rows.items()}
            segment["ids"] = rows["ids"]
            pair.send("a", on_table("e", PutSegment(segment)))
            pair.send("a", on_table("e", FinishTable(TAIL)))
        case "tune":
            pair.send("a", on_table("v", TuneOptimizer({"learning_rate": value})))
        case "again":
            pair.commit(push(), number=value)
        case "drop":
            pair.send("a", DropTable(value))
        case "create" if value not in tables:
            pair.send("a", CreateDense(value, 3 * ONES, None))
        case "anew":
            pair.send("a", DropTable("e"))
            pair.send("a", SPARSE)
        case "deliver":
            for _ in range(value):
                for wire in pair.wires:
                    if wire.waiting:
                        wire.deliver()


def test_a_replica_that_was_filled_since_a_mark_gets_none_when_it_is_sent_again() -> None:
    pair = Pair()
    moment = pair.do(SetMark("m"))
    pair.fill()
    answers = pair.send("a", SetMark("m"))
    pair.flow()
    assert results(answers) == [moment]
    assert pair.shard("b")._marks == {}
    made = pair.send("a", SetMark("n"))
    pair.flow()
    assert [pair.shard("b")._marks["n"].moment] == results(made)
