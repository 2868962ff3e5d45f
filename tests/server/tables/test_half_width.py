"""Tests of tables whose rows and optimizer state are stored in half width or by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, RowWiseAdagrad
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Probability
from psnb._src.server.tables.initializers import Constant, Uniform
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.transport.half_width import widened

DIM = 8
IDS = np.arange(40, dtype=np.uint64)
OTHERS = pytest.mark.second_tier("compiles a loop for each width: a minute")
NAMES = [
    name if name in ("RowWiseAdagrad", "SGD") else pytest.param(name, marks=OTHERS)
    for name, each in OPTIMIZERS.items()
    if issubclass(each, Optimizer)
]

FORMS = pytest.mark.parametrize(
    ("dtype", "slot_dtype"),
    [("bfloat16", None), ("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16")],
)


def table(
    dtype: str = "bfloat16", optimizer: Optimizer | None = None, rows: int | None = None, **how: Any
) -> SparseTable:
    how = {"initializer": Uniform(), "seed": 3, **how}
    return SparseTable("t", DIM, rows, 0, 1, dtype, optimizer=optimizer, **how)


def gradients(step: int, ids: np.ndarray = IDS) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(ids.size, DIM)).astype(np.float32)


def train(made: SparseTable, steps: int = 3, ids: np.ndarray = IDS) -> SparseTable:
    for step in range(steps):
        made.run(ops.PushRows(ids, gradients(step, ids)))
    return made


def rows_of(made: SparseTable, ids: np.ndarray = IDS) -> np.ndarray:
    found = made.lookup(ids, training=False)
    return widened(found)


@FORMS
@pytest.mark.parametrize("name", NAMES)
def test_rows_learn_as_those_of_float32_do(name: str, dtype: str, slot_dtype: str | None) -> None:
    optimizer = OPTIMIZERS[name](0.05)
    wide = train(table("float32", optimizer))
    half = train(table(dtype, optimizer, slot_dtype=slot_dtype))
    # Three roundings, each by less than 2 ** -7 of numbers around 0.2; means keep some of it.
    np.testing.assert_allclose(rows_of(half), rows_of(wide), atol=0.02)


@FORMS
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_table_goes_on_with_the_same_bits(
    name: str, dtype: str, slot_dtype: str | None
) -> None:
    made = train(table(dtype, OPTIMIZERS[name](0.05), slot_dtype=slot_dtype))
    other = table(dtype, OPTIMIZERS[name](0.05), slot_dtype=slot_dtype)
    state = made.state()
    order = np.random.default_rng(0).permutation(IDS.size)
    other.load({key: each if key == "step" else each[order] for key, each in state.items()})
    for each in (made, other):
        each.run(ops.PushRows(IDS, gradients(9)))
    np.testing.assert_array_equal(rows_of(made), rows_of(other))


def test_a_preview_has_the_bits_of_the_push() -> None:
    made = train(table("bfloat16", Adagrad(0.05)))
    push = ops.PushRows(IDS, gradients(7))
    shown = widened(made.preview([push], ops.LookUpRows(IDS)))
    made.run(push)
    np.testing.assert_array_equal(shown, rows_of(made))


def test_small_steps_are_not_lost() -> None:
    """Rounded to the nearest, rows would not move: numbers are 50 steps apart."""
    made = table("bfloat16", OPTIMIZERS["SGD"](1.0), initializer=Constant(1.0))
    ids = np.arange(2000, dtype=np.uint64)
    for _ in range(50):
        made.run(ops.PushRows(ids, np.full((ids.size, DIM), 2.0**-7 / 50, np.float32)))
    assert rows_of(made, ids).mean() == pytest.approx(1 - 2.0**-7, abs=5e-4)


@pytest.mark.parametrize(("clipnorm", "admission"), [(1.0, None), (None, Probability(0.5))])
def test_gradients_that_are_changed_first_give_the_same_rounding(
    clipnorm: float | None, admission: Probability | None
) -> None:
    """By id, not by where a row is among those that are updated."""
    how: dict[str, Any] = {} if admission is None else {"admission": admission}
    first = table("bfloat16", Adagrad(0.05, clipnorm=clipnorm), **how)
    other = table("bfloat16", Adagrad(0.05, clipnorm=clipnorm), **how)
    back = IDS[::-1].copy()
    train(first)
    for step in range(3):
        other.run(ops.PushRows(back, gradients(step)[::-1].copy()))
    np.testing.assert_array_equal(rows_of(first), rows_of(other))


def test_initial_rows_are_the_nearest() -> None:
    wide, half = table("float32"), table("bfloat16")
    expected = wide.lookup(IDS).astype("bfloat16")
    np.testing.assert_array_equal(half.lookup(IDS, training=False), expected)  # not made yet
    np.testing.assert_array_equal(half.lookup(IDS), expected)


def test_fixed_rows_begin_likewise() -> None:
    large = 3 * (1 << 14) // DIM  # more than are rounded at a time
    expected = table("float32", rows=large).state()["values"].astype("bfloat16")
    np.testing.assert_array_equal(table("bfloat16", rows=large).state()["values"], expected)


def test_numbers_that_are_too_large_for_float16_are_infinite() -> None:
    made = table("float16", initializer=Constant(1e5))
    assert np.isinf(rows_of(made)).all()
    made.run(ops.PutRows(IDS, np.full((IDS.size, DIM), 65_504.0, np.float32)))
    assert (rows_of(made) == 65_504).all()
    made.run(ops.PutRows(IDS, np.full((IDS.size, DIM), -1e6, np.float32)))
    assert np.isneginf(rows_of(made)).all()


def test_a_row_takes_its_own_width() -> None:
    made = train(table("bfloat16", RowWiseAdagrad(0.1)))
    state = made.state()
    assert state["values"].dtype == "bfloat16"
    assert (state["slot.accumulator"].dtype, state["slot.accumulator"].shape) == (
        np.float32,
        (IDS.size, 1),
    )
    assert made.expected.row_nbytes == 8 + 2 * DIM + 4


def test_at_dim_32_a_row_takes_less_than_055_of_float32_with_adagrad() -> None:
    def nbytes(dtype: str, optimizer: Optimizer) -> int:
        made = SparseTable("t", 32, None, 0, 1, dtype, Constant(0.0), 1, optimizer)
        made.lookup(np.arange(100_000, dtype=np.uint64))
        return made.nbytes()

    ratio = nbytes("bfloat16", RowWiseAdagrad()) / nbytes("float32", Adagrad())
    assert ratio < 0.55


@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_one_accumulator_a_row_is_the_mean_of_the_squares(dim: int, decay: float) -> None:
    made = SparseTable(
        *("t", dim, None, 0, 1, "float64", Constant(0.5), 1),
        RowWiseAdagrad(0.1, 0.2, 1e-3, weight_decay=decay),
    )
    ids = np.arange(5, dtype=np.uint64)
    weights, squares = np.full((5, dim), 0.5), np.full((5, 1), 0.2)
    for step in range(4):
        given = np.random.default_rng(step).normal(size=(5, dim))
        made.run(ops.PushRows(ids, given))
        gradient = given + decay * weights
        squares += (gradient**2).mean(1, keepdims=True)
        weights -= 0.1 * gradient / (np.sqrt(squares) + 1e-3)
    np.testing.assert_allclose(made.lookup(ids), weights, rtol=1e-12)


def test_what_a_copy_has_learned_is_merged_in_the_width_for_computing() -> None:
    made = train(table("bfloat16", Adam(0.05), slot_dtype="bfloat16"))
    before = rows_of(made)
    slots = {name: np.zeros((IDS.size, DIM), np.float32) for name in Adam().slots}
    made.run(ops.MergeRows(IDS, np.full((IDS.size, DIM), 0.25, np.float32), slots, 9, 1.0))
    np.testing.assert_allclose(rows_of(made), before + 0.25, atol=4e-3)
    assert not widened(made.state()["slot.first_moment"]).any()
    assert made.updater.step == 9


def test_what_two_copies_have_learned_at_one_update_is_rounded_by_bits_of_its_own() -> None:
    """Else both are rounded up, or both down, and their errors add up."""
    ids = np.arange(500, dtype=np.uint64)
    made = table(optimizer=SGD(0.1), initializer=Constant(1.0))
    ups = []
    for share in (0.5, 0.499):  # of the distance between two numbers
        before = rows_of(made, ids)
        learned = np.full((ids.size, DIM), share * 2**-7, np.float32)
        made.run(ops.MergeRows(ids, learned, {}, 0, 1.0))
        ups.append(rows_of(made, ids) > before)
    assert (ups[0] == ups[1]).mean() == pytest.approx(0.5, abs=0.03)
