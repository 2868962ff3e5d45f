"""Property tests of sparse tables against a dict of rows: admission, use of rows, shrinking."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables import row_index, row_table
from psnb._src.server.tables.admission import Admission, Always, CountFilter, Probability
from psnb._src.server.tables.initializers import Constant, Uniform
from psnb._src.server.tables.operations import LookUpRows, PushRows, PutRows, RecordUse
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sharding import shard_of_ids
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ServerMemoryError
from tests.server.writes import push

DIM, SEED = 2, 7
ACCESSOR = CtrAccessor(nonclk_coeff=0.5, show_click_decay_rate=0.5)
OPTIMIZER = Adagrad(0.5)
ADMISSIONS = [Always(), Probability(0.5), CountFilter(1), CountFilter(2), CountFilter(5)]


def table(admission: Admission = ADMISSIONS[0], storage: str = "memory") -> SparseTable:
    form = "e", DIM, None, 0, 1, "float64", Uniform(), SEED, OPTIMIZER, admission, ACCESSOR
    return SparseTable(*form, storage)


class Sharded:
    """A table over some shards, as handles deal ids out; every second one is on disk."""

    def __init__(self, shards: int, admission: Admission) -> None:
        self.admission = admission
        storages = itertools.islice(itertools.cycle(["memory", "disk"]), shards, 2 * shards)
        self.tables = [table(admission, each) for each in storages]

    def split(self, ids: np.ndarray) -> list[tuple[SparseTable, np.ndarray]]:
        owners = shard_of_ids(ids, len(self.tables), growing=True)
        return [(t, owners == i) for i, t in enumerate(self.tables)]

    def lookup(self, ids: np.ndarray, training: bool = True) -> np.ndarray:
        out = np.full((ids.size, DIM), np.nan)
        for each, at in self.split(ids):
            out[at] = each.lookup(ids[at], training)
        return out

    def push(self, ids: np.ndarray, gradients: np.ndarray, use: np.ndarray) -> None:
        for each, at in self.split(ids):
            push(each, ids[at], gradients[at])
            each.run(ops.RecordUse(ids[at], *use[:, at]))

    def row_use(self, ids: np.ndarray) -> np.ndarray:
        out = np.full((ids.size, 3), np.nan)
        for each, at in self.split(ids):
            out[at] = each.row_use(ids[at])
        return out

    def counted(self) -> tuple[int, int]:
        to_config = [each.describe_rows() for each in self.tables]
        return sum(d["rows"] for d in to_config), sum(d["waiting"] for d in to_config)

    def reloaded(self, shards: int) -> Sharded:
        states = [each.state() for each in self.tables]
        other = Sharded(shards, self.admission)
        other.lookup(np.array([99, 98], np.uint64))  # is forgotten
        whole = {k: np.concatenate([s[k] for s in states]) for k in states[0] if k != "step"}
        for i, each in enumerate(other.tables):
            state = {"step": np.array([0])}
            for key, array in whole.items():
                ids = whole["waiting.ids" if key.startswith("waiting.") else "ids"]
                state[key] = array[shard_of_ids(ids, shards, growing=True) == i]
            each.load(state)
        return other


@dataclass
class Row:
    values: np.ndarray
    accumulator: np.ndarray = field(default_factory=lambda: np.zeros(DIM))
    use: np.ndarray = field(default_factory=lambda: np.zeros(3, np.float32))


def first(i: int) -> np.ndarray:
    """Return how the row of an id starts."""
    values = np.empty((1, DIM))
    Uniform().fill(values, np.array([i], np.uint64), SEED)
    return values[0]


class Model:
    """What a table means: a dict of rows and a dict of occurrences."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.rows: dict[int, Row] = {}
        self.frequencies: dict[int, int] = {}

    def sight(self, ids: np.ndarray) -> None:
        for i in set(ids.tolist()) - self.rows.keys():
            if not self.admission.may_enter(np.array([i], np.uint64), SEED)[0]:
                continue
            self.frequencies[i] = self.frequencies.get(i, 0) + 1
            if self.frequencies[i] >= self.admission.min_count:
                del self.frequencies[i]
                self.rows[i] = Row(first(i))

    def lookup(self, ids: np.ndarray) -> np.ndarray:
        self.sight(ids)
        found = [self.rows[i].values if i in self.rows else np.zeros(DIM) for i in ids.tolist()]
        return np.array(found).reshape(-1, DIM)

    def seen(self, ids: np.ndarray) -> np.ndarray:
        """Return what a lookup gives that is no training."""
        found = []
        for i in ids.tolist():
            at_once = self.admission.min_count == 1
            enters = at_once and self.admission.may_enter(np.array([i], np.uint64), SEED)[0]
            alone = first(i) if enters else np.zeros(DIM)
            found.append(self.rows[i].values if i in self.rows else alone)
        return np.array(found).reshape(-1, DIM)

    def push(self, ids: np.ndarray, gradients: np.ndarray, use: np.ndarray) -> None:
        self.sight(ids)
        for i in set(ids.tolist()) & self.rows.keys():
            row, at = self.rows[i], ids == i
            total = gradients[at].sum(axis=0)
            row.accumulator += total**2
            row.values -= 0.5 * total / (np.sqrt(row.accumulator) + OPTIMIZER.epsilon)
            row.use[:2] += use[:, at].sum(axis=1)
            row.use[2] = 0

    def end_day(self) -> None:
        for row in self.rows.values():
            row.use[:2] *= 0.5
            row.use[2] += 1

    def shrink(self, threshold: float, days: float, forget: bool) -> int:
        gone = [
            i
            for i, row in self.rows.items()
            if 0.5 * (row.use[0] - row.use[1]) + row.use[1] < threshold or row.use[2] > days
        ]
        for i in gone:
            del self.rows[i]
        if forget:
            self.frequencies.clear()
        return len(gone)


IDS = st.lists(st.integers(0, 6) | st.integers(2**64 - 3, 2**64 - 1), max_size=8)
OPERATIONS = st.one_of(
    st.tuples(st.just("lookup"), IDS),
    st.tuples(st.just("look"), IDS),
    st.tuples(st.just("push"), IDS, st.integers(0, 2**32)),
    st.just(("end_day",)),
    st.tuples(
        st.just("shrink"), st.sampled_from([0, 0.75, 1.5]), st.sampled_from([0, 1]), st.booleans()
    ),
    st.tuples(st.just("reload"), st.integers(1, 3)),
)


@settings(max_examples=150)
@given(
    operations=st.lists(OPERATIONS, max_size=12),
    admission=st.sampled_from(ADMISSIONS),
    shards=st.integers(1, 3),
)
def test_a_growing_table_is_a_dict_of_rows(
    operations: list[tuple[Any, ...]], admission: Admission, shards: int
) -> None:
    found, model = Sharded(shards, admission), Model(admission)
    for name, *arguments in operations:
        if name == "reload":
            found = found.reloaded(*arguments)
        elif name == "end_day":
            model.end_day()
            for each in found.tables:
                each.run(ops.EndDay())
        elif name == "shrink":
            assert sum(each.shrink(*arguments) for each in found.tables) == model.shrink(*arguments)
        elif name == "look":
            ids = np.array(arguments[0], np.uint64)
            np.testing.assert_allclose(found.lookup(ids, False), model.seen(ids), rtol=1e-12)
        else:
            ids = np.array(arguments[0], np.uint64)
            if name == "push":
                rng = np.random.default_rng(arguments[1])
                gradients = rng.normal(size=(ids.size, DIM))
                use = rng.integers(0, 4, (2, ids.size)).astype(np.float32)
                model.push(ids, gradients, use)
                found.push(ids, gradients, use)
            np.testing.assert_allclose(found.lookup(ids), model.lookup(ids), rtol=1e-12)
        assert found.counted() == (len(model.rows), len(model.frequencies))
        known = np.array([*model.rows], np.uint64)
        expected = np.array([row.use for row in model.rows.values()]).reshape(-1, 3)
        np.testing.assert_allclose(found.row_use(known), expected)
        np.testing.assert_allclose(found.lookup(known), model.lookup(known), rtol=1e-12)


@pytest.mark.parametrize("admission", [Probability(1e-9), CountFilter(5)])
def test_what_is_not_admitted_gives_zeros_and_takes_no_gradient(admission: Admission) -> None:
    made, ids = table(admission), np.array([3, 4], np.uint64)
    push(made, ids, np.ones((2, DIM)))
    assert not made.lookup(ids).any()
    assert made.state()["ids"].size == 0
    assert made.state()["step"] == 0


def test_a_rehearsed_push_is_no_sighting_and_no_use() -> None:
    made, ids = table(CountFilter(2)), np.array([3], np.uint64)
    known = np.array([8], np.uint64)
    push(made, known, np.ones((1, DIM)))
    push(made, known, np.ones((1, DIM)))
    before = made.lookup(known)
    counts = np.ones(1, np.float32)
    writes: list[Any] = []
    for each in (ids, known):
        writes.append(PushRows(each, np.ones((1, DIM))))
        writes.append(RecordUse(each, counts, counts))
    seen = made.preview(writes, LookUpRows(known))
    assert (seen < before).all()
    np.testing.assert_array_equal(made.lookup(known), before)
    assert made.describe_rows()["waiting"] == 0
    assert not made.row_use(known).any()


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_what_a_lookup_gives_that_is_no_training_is_what_training_would_start_with(
    admission: Admission,
) -> None:
    made, ids = table(admission), np.arange(40, dtype=np.uint64)
    seen = made.lookup(ids, training=False)
    assert made.describe_rows() == table(admission).describe_rows()
    np.testing.assert_array_equal(seen, made.lookup(ids))


def test_a_row_that_is_made_after_days_have_ended_was_not_unseen_on_them() -> None:
    made, ids = table(), np.arange(6, dtype=np.uint64)
    made.lookup(ids[:4])
    made.lookup(ids[4:5])  # there is room for a sixth now
    made.run(ops.EndDay())
    made.lookup(ids[5:])
    assert made.row_use(ids)[:, 2].tolist() == [1, 1, 1, 1, 1, 0]


def test_shrinking_frees_memory() -> None:
    made = table()
    made.lookup(np.arange(20_000, dtype=np.uint64))
    before = made.nbytes()
    assert made.shrink(1.0, 30, False) == 20_000  # nobody was shown
    assert made.nbytes() < before / 20
    made.lookup(np.arange(100, dtype=np.uint64))
    assert made.describe_rows()["rows"] == 100


def test_rows_that_a_shard_cannot_tell_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_table, row_index):  # what is compiled has it as a constant
        monkeypatch.setattr(module, "MOST_ROWS", 3)
    made = SparseTable("e", 2, None, 0, 1, "float32", Constant(1.0), 0, SGD(1.0))
    ids = np.arange(5, dtype=np.uint64)
    made.lookup(ids[:3])
    before = made.state()
    ones = np.ones((3, 2), np.float32)
    for write in (PushRows(ids[2:], ones), PutRows(ids[2:], ones)):
        with pytest.raises(ServerMemoryError, match="has 3 at most"):
            made.run(write)
    with pytest.raises(ServerMemoryError, match="shards="):
        made.lookup(ids)
    for key, array in made.state().items():
        np.testing.assert_array_equal(array, before[key])
    push(made, ids[:3], ones)
    np.testing.assert_array_equal(made.lookup(ids[:3]), np.zeros((3, 2)))


def test_fixed_rows_that_cannot_be_cleared_for_want_of_memory_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = SparseTable("e", 1, 10, 0, 1, "float32", Constant(0.5), 0, SGD(0.1))
    table.run(PutRows(np.array([1], np.uint64), np.full((1, 1), 7, np.float32)))

    def ids(*given: object) -> np.ndarray:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(row_index.FixedRowIndex, "ids", ids)
        with pytest.raises((MemoryError, ServerMemoryError)):
            table.run(ops.ClearTable())
    assert table.run(LookUpRows(np.array([1, 2], np.uint64))).tolist() == [[7.0], [0.5]]
    table.run(ops.ClearTable())
    assert table.run(LookUpRows(np.array([1], np.uint64))).tolist() == [[0.5]]
