"""Tables of which rows leave, beside a model of plain dicts; and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psnb._src.server.optimizers import SGD
from psnb._src.server.snapshots import Snapshot, snapshot
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Always, CountFilter
from psnb._src.server.tables.eviction import leaving
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ServerMemoryError
from tests.server.tables.leaving_model import FIRST, LeavingModel

BOUND = 12


def table(eviction: Eviction | None = None, **more: Any) -> SparseTable:
    shown = more.pop("dtype", "float32"), Constant(FIRST), 0, SGD(1.0)
    eviction = eviction or Eviction(BOUND)
    return SparseTable("e", 2, None, 0, 1, *shown, eviction=eviction, **more)


def array(*ids: int) -> np.ndarray:
    return np.array(ids, np.uint64)


def push(*ids: int, by: float = 0.5) -> ops.PushRows:
    return ops.PushRows(array(*ids), np.full((len(ids), 2), -by, np.float32))


def ids_of(of: SparseTable) -> set[int]:
    return {*of.index.ids().tolist()}


def used(evict: Any) -> Callable[[Any], np.ndarray]:
    return lambda usage: usage.count.astype(np.float64) * 2**31 - usage.age


def held(segment: ops.Segment) -> dict[int, float]:
    return dict(zip(segment["ids"].tolist(), segment["values"][:, 0].tolist(), strict=True))


class Both:
    """A table and its model, to which the same is done."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.evict = ["lru", "lfu", "function"][seed % 3]
        self.count = 1 + seed % 2
        evict = used(None) if self.evict == "function" else self.evict
        self.times = [(None, None), (9, None), (None, 2), (9, 3)][seed % 4]
        admission = CountFilter(2) if self.count == 2 else Always()
        # All numbers here are halves, which half width has exactly.
        how = {"dtype": ["float32", "bfloat16", "float16"][seed // 2 % 3]}
        how["storage"] = ["memory", "disk"][seed // 6 % 2]
        self.table = table(Eviction(BOUND, evict, *self.times), admission=admission, **how)
        self.model = LeavingModel(BOUND, self.evict, leaving._LEAST, self.row_of, self.count)
        self.later: list[tuple[list[int], Callable[[], None]]] = []
        self.mark, self.saved = self.table.changed_since("").mark, dict[int, float]()
        self.open: tuple[Snapshot, dict[int, float]] | None = None

    def ids(self, most: int = 5) -> list[int]:
        size = self.random.integers(0, most, endpoint=True)
        found: list[int] = self.random.choice(30, size, replace=False).tolist()
        return found

    def row_of(self, each: int) -> int:
        return int(self.table.index.find(array(each))[0])

    @property
    def held(self) -> int:
        return sum(len(ids) for ids, _ in self.later)

    def fits(self, ids: list[int], run: Callable[[], Any], read: bool = False) -> Any:
        """Run it if it is to be possible; else it is refused, and nothing changed."""
        if read and not self.later and {*ids} <= {*self.model.rows}:
            return run()  # it takes no rows, nor such that others will take
        if self.model.ensure(len({*ids}), self.held):
            return run()
        with pytest.raises(ServerMemoryError, match="may have 12 rows"):
            run()
        return None

    def look_up(self) -> None:
        ids = self.ids()
        ids += ids[:2]
        found = self.fits(ids, lambda: self.table.lookup(array(*ids)).copy(), read=True)
        if found is not None:
            self.model.give(ids)
            assert found[:, 0].tolist() == [self.value(each, 0.0) for each in ids]

    def evaluate(self) -> None:
        ids = self.ids()
        found = self.table.lookup(array(*ids), training=False)
        none = FIRST if self.count == 1 else 0.0
        assert found[:, 0].tolist() == [self.value(each, none) for each in ids]

    def push(self) -> None:
        ids = self.ids()
        if self.fits(ids, lambda: self.table.run(push(*ids)) or True):
            self.pushed(ids)

    def pushed(self, ids: list[int]) -> None:
        self.model.give(ids)
        there = [each for each in ids if each in self.model.rows]
        for each in there:
            self.model.rows[each].value += 0.5
        self.model.step += bool(there or not ids)

    def assign(self) -> None:
        ids = self.ids()
        values = np.full((len(ids), 2), 7, np.float32)
        if self.fits(ids, lambda: self.table.run(ops.PutRows(array(*ids), values)) or True):
            self.model.give(ids, inserted=True)
            for each in ids:
                self.model.rows[each].value = 7

    def prepare(self) -> None:
        ids = self.ids(3)
        if len(self.later) < 2:
            made = self.fits(ids, lambda: self.table.reserve(push(*ids)))
            if made is not None:
                self.later.append((ids, made))

    def make(self) -> None:
        if self.later:
            ids, make = self.later.pop(0)
            make()
            del make
            self.pushed(ids)

    def drop(self) -> None:
        if self.later and self.random.random() < 0.3:
            self.later.pop()

    def minute(self) -> None:
        if any(self.times):
            self.table.run(ops.CountMinute())
            self.model.expire(*self.times)

    def remove(self) -> None:
        ids = self.ids(2)
        self.table.run(ops.RemoveRows(array(*ids)))
        for each in {*ids} & {*self.model.rows}:
            self.model.forget(each)

    def preview(self) -> None:
        writes, read = self.ids(3), self.ids(3)
        if not self.model.ensure(len(writes), self.held):
            return
        if not self.model.ensure(len(read), self.held + len(writes)):
            return
        asked = ops.Preview([push(*writes)], ops.LookUpRows(array(*read)))
        found = self.table.run(asked)
        self.model.give(writes, counting=False)
        self.model.give(read)
        expected = [self.value(each, 0.0) + 0.5 * (each in writes) for each in read]
        there = [each in self.model.rows for each in read]
        assert [v for v, t in zip(found[:, 0], there, strict=True) if t] == [
            v for v, t in zip(expected, there, strict=True) if t
        ]

    def delta(self) -> None:
        """Take the changes since the last time: removals first, then rows."""
        changes = self.table.changed_since(self.mark)
        self.mark = changes.mark
        if changes.rows is None:
            self.saved.clear()
        for each in changes.removed.tolist():
            self.saved.pop(each, None)
        self.saved |= held(self.table.pick(slice(None) if changes.rows is None else changes.rows))
        assert self.saved == self.values()
        assert not changes.nothing or not changes.removed.size

    def snapshot(self) -> None:
        """Read what was to be read of a moment, or choose one."""
        if self.open is None:
            self.open = snapshot(self.table), self.values()
            return
        taken, values = self.open
        middle = (taken.rows + 1) // 2  # what was read may be asked for again
        parts = [taken.read(0, middle), taken.read(middle, taken.rows)]
        taken.close()
        self.open = None
        assert {**held(parts[0]), **held(parts[1])} == values

    def values(self) -> dict[int, float]:
        return {each: row.value for each, row in self.model.rows.items()}

    def value(self, each: int, none: float) -> float:
        return self.model.rows[each].value if each in self.model.rows else none

    def check(self) -> None:
        state, model = self.table.state(), self.model
        assert held(state) == self.values()
        last = dict(zip(state["ids"].tolist(), state["last_update"].tolist(), strict=True))
        assert last == {each: row.last for each, row in model.rows.items()}
        if "uses" in state:
            uses = dict(zip(state["ids"].tolist(), state["uses"].tolist(), strict=True))
            assert uses == {each: row.uses for each, row in model.rows.items()}
        beside = self.table.beside()
        assert beside["queue"].tolist() == [e for e in model.queue if e in model.leave]
        assert self.table._leaving is not None
        assert self.table._leaving.flagged == len(model.leave)
        assert self.table.describe_rows()["evicted"] == model.evicted
        assert self.table.extent <= BOUND
        waiting = dict(
            zip(*(each.tolist() for each in self.table.index.waiting_ids()), strict=True)
        )
        assert waiting == model.waiting
        assert self.table.index.waiting == len(waiting)


STEPS = (
    *("look_up", "evaluate", "push", "assign", "prepare", "make", "drop", "minute"),
    *("look_up", "push", "preview", "remove", "delta", "snapshot"),
)


@pytest.mark.parametrize("seed", range(24))
def test_it_does_what_the_model_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_LEAST", 1 + seed % 5)
    both = Both(seed)
    for _ in range(60):
        getattr(both, both.random.choice(STEPS))()
        both.check()


def test_rows_of_a_table_that_counted_no_minutes_keep_their_order() -> None:
    of = table(Eviction(2, minutes=3))
    values = np.ones((2, 2), np.float32)
    of.put({"ids": array(1, 2), "values": values, "last_update": np.array([5, 4])})
    of.finish({"step": np.array([9]), "minutes": np.array([7])})
    assert of.state()["last_update"].tolist() == [5, 4]
    assert of.state()["last_minute"].tolist() == [7, 7]
    of.lookup(array(3))
    assert ids_of(of) == {1, 3}


def test_a_lookup_counts_once_for_an_id_however_often_it_is_there() -> None:
    of = table(Eviction(BOUND, "lfu"))
    for ids in ((1, 2), (1, 1, 2, 1), (2, 2)):
        of.run(ops.LookUpRows(array(*ids)))
    segment = of.segment(0, 2)
    assert dict(zip(segment["ids"].tolist(), segment["uses"].tolist(), strict=True)) == {1: 2, 2: 3}


def test_no_more_ids_wait_than_there_may_be_rows() -> None:
    of = table(admission=CountFilter(3))
    for ids in [(1, 2), (1, 2), *((each, each + 1) for each in range(100, 200, 2))]:
        for change in of.choices(2, array(*ids)):
            of.run(change)
        of.lookup(array(*ids))
        assert of.index.waiting == of._growing().waiting_ids()[0].size <= BOUND
    of.lookup(array(1, 2))  # those that were seen most often waited on
    assert ids_of(of) == {1, 2}


def test_the_same_ids_wait_on_in_whatever_order_they_came() -> None:
    found = []
    for ids in (range(40), range(39, -1, -1)):
        of = table(admission=CountFilter(2))
        for each in ids:
            of.lookup(array(each))
        of.run(ops.ForgetWaiting(10))
        found.append({*of._growing().waiting_ids()[0].tolist()})
    assert found[0] == found[1]
    assert len(found[0]) == 10
