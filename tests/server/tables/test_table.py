"""Tests of tables: both kinds of rows against a model, then dense slices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant, Initializer, Uniform
from psnb._src.server.tables.sharding import shard_of_ids
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ConfigurationError
from tests.server.writes import assign, push

ROWS, DIM, SEED = 50, 3, 7
KINDS = pytest.mark.parametrize("rows", [ROWS, None], ids=["fixed", "growing"])


class Shards:
    """One embedding table over several shards, split as handles split it; one is on disk."""

    def __init__(
        self,
        rows: int | None,
        shards: int = 1,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        dtype: str = "float64",
    ) -> None:
        self.growing = rows is None
        self.tables = [
            SparseTable(
                *("e", DIM, rows, index, shards, dtype, initializer or Uniform(), SEED, optimizer),
                storage="memory" if index else "disk",
            )
            for index in range(shards)
        ]

    def split(self, ids: Sequence[int]) -> list[tuple[SparseTable, np.ndarray, np.ndarray]]:
        array = np.array(ids, np.uint64)
        owners = shard_of_ids(array, len(self.tables), growing=self.growing)
        return [(t, owners == i, array[owners == i]) for i, t in enumerate(self.tables)]

    def lookup(self, ids: Sequence[int]) -> np.ndarray:
        out = np.full((len(ids), DIM), np.nan)
        for table, at, own in self.split(ids):
            out[at] = table.lookup(own)
        return out

    def push(self, ids: Sequence[int], gradients: np.ndarray) -> None:
        for table, at, own in self.split(ids):
            push(table, own, gradients[at])

    def states(self) -> list[dict[str, np.ndarray]]:
        return [table.state() for table in self.tables]

    def load(self, states: list[dict[str, np.ndarray]]) -> None:
        step = max(state["step"] for state in states)
        keys = states[0].keys() - {"step"}
        whole = {key: np.concatenate([state[key] for state in states]) for key in keys}
        for table, at, _ in self.split(whole["ids"].tolist()):
            table.load({"step": step, **{key: array[at] for key, array in whole.items()}})


class Model:
    """What a table means: a dict of rows, with Adagrad."""

    def __init__(self, optimizer: Adagrad) -> None:
        self.optimizer = optimizer
        self.rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def row(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        if i not in self.rows:
            first = np.empty((1, DIM))
            Uniform().fill(first, np.array([i], np.uint64), SEED)
            accumulator = np.full(DIM, self.optimizer.initial_accumulator_value)
            self.rows[i] = first[0], accumulator
        return self.rows[i]

    def lookup(self, ids: Sequence[int]) -> np.ndarray:
        return np.array([self.row(i)[0] for i in ids]).reshape(-1, DIM)

    def push(self, ids: Sequence[int], gradients: np.ndarray) -> None:
        for i in set(ids):
            total = sum(g for j, g in zip(ids, gradients, strict=True) if i == j)
            values, accumulator = self.row(i)
            accumulator += total**2
            step = self.optimizer.learning_rate * total
            values -= step / (np.sqrt(accumulator) + self.optimizer.epsilon)


def gradients(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM))


@st.composite
def histories(draw: st.DrawFn) -> tuple[int | None, list[tuple[str, list[int]]]]:
    """Draw a kind of table and operations with ids that it takes, many of them more than once."""
    rows = draw(st.sampled_from([1, ROWS, None]))
    ids = st.integers(0, 5 if rows is None else rows - 1)
    if rows is None:
        ids |= st.integers(0, 2**64 - 1)
    operation = st.tuples(st.sampled_from(["lookup", "push"]), st.lists(ids, max_size=12))
    return rows, draw(st.lists(operation, max_size=8))


@settings(max_examples=80)
@given(history=histories(), shards=st.integers(1, 4))
def test_table_is_a_dict_of_rows(
    history: tuple[int | None, list[tuple[str, list[int]]]], shards: int
) -> None:
    rows, operations = history
    optimizer = Adagrad(0.5)
    table, model = Shards(rows, shards, optimizer), Model(optimizer)
    for step, (operation, ids) in enumerate(operations):
        if operation == "push":
            table.push(ids, gradients(len(ids), step))
            model.push(ids, gradients(len(ids), step))
        np.testing.assert_allclose(table.lookup(ids), model.lookup(ids), rtol=1e-12, atol=1e-15)
    known = sorted(model.rows)
    np.testing.assert_allclose(table.lookup(known), model.lookup(known), rtol=1e-12, atol=1e-15)


@KINDS
@pytest.mark.parametrize("shards", [2, 3, 5])
def test_first_rows_do_not_depend_on_the_number_of_shards(rows: int | None, shards: int) -> None:
    ids = range(ROWS)
    np.testing.assert_array_equal(Shards(rows, shards).lookup(ids), Shards(rows).lookup(ids))


@KINDS
def test_first_rows_do_not_depend_on_the_order_of_first_sight(rows: int | None) -> None:
    ids = np.random.default_rng(0).permutation(ROWS).tolist()
    shuffled = Shards(rows, 2).lookup(ids)
    np.testing.assert_array_equal(shuffled, Shards(rows, 2).lookup(range(ROWS))[ids])


@KINDS
@pytest.mark.parametrize("initializer", [Constant(3.0), Uniform(5.0, 6.0)])
def test_rows_start_as_the_initializer_says(rows: int | None, initializer: Initializer) -> None:
    found = Shards(rows, initializer=initializer).lookup([0, 49])
    expected = np.empty((2, DIM))
    initializer.fill(expected, np.array([0, 49], np.uint64), SEED)
    np.testing.assert_array_equal(found, expected)


@KINDS
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_state_loads_onto_any_number_of_shards(rows: int | None, before: int, after: int) -> None:
    ids = [3, 3, 10, 41, 49]
    saved, restored = (Shards(rows, n, Adagrad(0.5)) for n in (before, after))
    saved.push(ids, gradients(5))
    restored.push([0, 3, 7], gradients(3, 1))  # is forgotten
    restored.load(saved.states())
    # Once more on both: shows that the accumulators came along.
    for table in (saved, restored):
        table.push(ids, gradients(5, 2))
    np.testing.assert_array_equal(restored.lookup(range(ROWS)), saved.lookup(range(ROWS)))


def test_load_forgets_rows_that_the_state_has_not() -> None:
    table = Shards(None, optimizer=SGD(1.0))
    empty = table.states()
    table.push([8], gradients(1))
    table.load(empty)
    assert table.tables[0].state()["ids"].size == 0
    np.testing.assert_array_equal(table.lookup([8]), Shards(None).lookup([8]))


@KINDS
def test_push_without_optimizer_is_refused_and_changes_nothing(rows: int | None) -> None:
    table = Shards(rows)
    before = table.states()[0]
    with pytest.raises(ConfigurationError, match="'e' has no optimizer"):
        table.push([1], gradients(1))
    assert table.states()[0]["ids"].tolist() == before["ids"].tolist()
    np.testing.assert_array_equal(table.states()[0]["values"], before["values"])


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lookup_has_the_dtype_and_shape_of_the_table(rows: int | None, dtype: str) -> None:
    table = Shards(rows, dtype=dtype).tables[0]
    for n in (0, 1, 5):
        found = table.lookup(np.arange(n, dtype=np.uint64))
        assert (found.shape, found.dtype) == ((n, DIM), np.dtype(dtype))


@KINDS
def test_what_a_sparse_table_returns_is_a_copy(rows: int | None) -> None:
    table = Shards(rows, optimizer=Adagrad()).tables[0]
    ids = np.arange(5, dtype=np.uint64)
    before = table.lookup(ids).copy()
    table.lookup(ids)[...] = 99
    for array in table.state().values():
        array[...] = 99
    np.testing.assert_array_equal(table.lookup(ids), before)
    assert (table.state()["slot.accumulator"] == 0.0).all()


def test_growing_table_keeps_values_and_accumulators_while_it_grows() -> None:
    table = Shards(None, 2, Adagrad(0.5))
    table.push(range(100), gradients(100))
    for start in range(100, 20_000, 1000):
        table.lookup(range(start, start + 1000))
    small = Shards(None, 2, Adagrad(0.5))
    small.push(range(100), gradients(100))
    for grown in (table, small):
        grown.push(range(100), gradients(100, 1))
    np.testing.assert_array_equal(table.lookup(range(100)), small.lookup(range(100)))


def test_fixed_table_takes_no_more_memory_than_its_rows() -> None:
    table = Shards(1000, optimizer=Adagrad(), dtype="float32").tables[0]
    assert table.nbytes() == 1000 * DIM * 4 * 2  # values and accumulator


def test_marks_of_what_has_changed_count_as_memory() -> None:
    table = Shards(1000, optimizer=Adagrad(), dtype="float32").tables[0]
    before = table.nbytes()
    table.changed_since("")
    assert table.nbytes() == before + 1000 * 2 + 1000 // 8  # two bytes a row, and a bit


def dense(value: Any = (1.0, 2.0), optimizer: Optimizer | None = None) -> DenseTable:
    return DenseTable("v", np.array(value, np.float32), optimizer)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3, 4)])
def test_dense_push_works_on_any_shape(shape: tuple[int, ...]) -> None:
    table = dense(np.ones(shape), SGD(0.5))
    push(table, np.ones(shape, np.float32))
    np.testing.assert_array_equal(table.read(), np.full(shape, 0.5, np.float32))


def test_dense_push_reaches_a_slice_given_in_fortran_order() -> None:
    table = DenseTable("v", np.asfortranarray(np.ones((3, 4), np.float32)), SGD(1.0))
    push(table, np.ones((3, 4), np.float32))
    assert not table.read().any()


def test_dense_assign_and_add() -> None:
    table = dense()
    assign(table, np.array([3, 4], np.float32))
    table.run(ops.AddValues(np.array([1, 1], np.float32)))
    assert table.read().tolist() == [4, 5]


def test_dense_assign_leaves_optimizer_state() -> None:
    table = dense(optimizer=Adagrad())
    push(table, np.ones(2, np.float32))
    before = table.state()["slot.accumulator"]
    assign(table, np.zeros(2, np.float32))
    np.testing.assert_array_equal(table.state()["slot.accumulator"], before)


def test_dense_push_without_optimizer_is_refused() -> None:
    table = dense()
    with pytest.raises(ConfigurationError, match="'v' has no optimizer"):
        push(table, np.ones(2, np.float32))
    assert table.read().tolist() == [1, 2]


def test_dense_state_round_trips_with_optimizer_state() -> None:
    saved, restored = dense(optimizer=Adagrad()), dense((9, 9), Adagrad())
    push(saved, np.ones(2, np.float32))
    restored.load(saved.state())
    for table in (saved, restored):
        push(table, np.ones(2, np.float32))
    np.testing.assert_array_equal(restored.read(), saved.read())


def test_dense_table_shares_neither_its_initial_value_nor_its_state() -> None:
    given_values = np.ones(2, np.float32)
    table = DenseTable("v", given_values, Adagrad())
    given_values[...] = 5
    for array in table.state().values():
        array[...] = 7
    assert table.read().tolist() == [1, 1]
    assert (table.state()["slot.accumulator"] == 0.0).all()
