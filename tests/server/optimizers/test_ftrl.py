"""FTRL-Proximal, which optax lacks: against the paper's definition, Adagrad and TensorFlow's form.

Without regularization FTRL-Proximal that starts at zero is Adagrad (McMahan et al., section 3), so
optax's can judge. With it, weights are the minimum of what the paper says they minimize, found by
trying. The power of the learning rate is checked on the formula of TensorFlow's documentation.
"""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import FTRL
from psnb._src.server.schedules import PiecewiseConstant
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable
from tests.server.writes import push

STEPS, ROWS, DIM = 25, 5, 3
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ids and gradients of each step; in quarters, so that sums are exact."""
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, ROWS, 4).astype(np.uint64), rng.integers(-8, 9, (4, DIM)) / 4)
        for _ in range(STEPS)
    ]


def by_formula(optimizer: FTRL, start: float) -> np.ndarray:
    """Return a matrix after all batches, by TensorFlow's formula, lazily for each row."""
    w, z = np.full((ROWS, DIM), start), np.zeros((ROWS, DIM))
    n = np.full((ROWS, DIM), optimizer.initial_accumulator_value)
    rate, power = optimizer.learning_rate, -optimizer.learning_rate_power
    assert isinstance(rate, float)
    for ids, gradients in batches():
        for row in np.unique(ids):
            g = gradients[ids == row].sum(0) + optimizer.weight_decay * w[row]
            new = n[row] + g**2
            z[row] += g - (new**power - n[row] ** power) / rate * w[row]
            n[row] = new
            l2 = optimizer.l2 + optimizer.beta / (2 * rate)
            quadratic = new**power / rate + 2 * l2
            w[row] = (np.clip(z[row], -optimizer.l1, optimizer.l1) - z[row]) / quadratic
    return w


def by_psnb(optimizer: Optimizer, dtype: str, start: float) -> np.ndarray:
    table = SparseTable("e", DIM, ROWS, 0, 1, dtype, Constant(start), 0, optimizer)
    for ids, gradients in batches():
        push(table, ids, gradients.astype(dtype))
    return table.lookup(np.arange(ROWS, dtype=np.uint64))


@DTYPES
@pytest.mark.parametrize("start", [0.0, 0.25])
@pytest.mark.parametrize(
    "optimizer",
    [
        FTRL(0.1),
        FTRL(0.1, l1=0.5, l2=0.3, beta=1.0),
        FTRL(0.1, learning_rate_power=-0.7, l1=0.1),
        FTRL(0.1, learning_rate_power=0.0, initial_accumulator_value=0.0),
        FTRL(0.1, l2=0.2, weight_decay=0.3),
    ],
)
def test_sparse_rows_follow_tensorflows_formula(
    optimizer: FTRL, start: float, dtype: str, tolerance: float
) -> None:
    expected = by_formula(optimizer, start)
    np.testing.assert_allclose(by_psnb(optimizer, dtype, start), expected, rtol=0, atol=tolerance)


@DTYPES
def test_without_regularization_it_is_adagrad(dtype: str, tolerance: float) -> None:
    gradients = np.random.default_rng(1).integers(-8, 9, (STEPS, 7)) / 4
    table = DenseTable("v", np.zeros(7, dtype), FTRL(0.1))
    with jax.enable_x64(True):
        rule, expected = optax.adagrad(0.1, eps=1e-30), np.zeros(7)
        state = rule.init(expected)
        for gradient in gradients:
            push(table, gradient.astype(dtype))
            updates, state = rule.update(gradient, state, expected)
            expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(table.read(), expected, rtol=0, atol=tolerance)


def test_weights_minimize_the_papers_objective() -> None:
    rate, l1, l2, beta = 0.2, 0.8, 0.15, 1.0
    gradients = np.random.default_rng(2).integers(-8, 9, 20) / 4
    table = DenseTable("v", np.zeros(1), FTRL(rate, -0.5, 0.0, l1, l2, beta))
    weights, n = [0.0], 0.0
    grid = np.linspace(-5, 5, 200_001)
    # g_1:t w + (sum of sigma_s (w - w_s)^2 + (beta / rate + 2 l2) w^2) / 2 + l1 |w|
    objective = (beta / rate + 2 * l2) * grid**2 / 2 + l1 * abs(grid)
    for gradient in gradients:
        push(table, np.array([gradient]))
        sigma = (np.sqrt(n + gradient**2) - np.sqrt(n)) / rate
        n += gradient**2
        objective += gradient * grid + sigma * (grid - weights[-1]) ** 2 / 2
        weights.append(float(table.read()[0]))
        assert weights[-1] == pytest.approx(grid[objective.argmin()], abs=1e-4)
    assert 0.0 in weights[1:]  # l1 did its part


def test_gradients_within_l1_leave_exact_zeros() -> None:
    table = DenseTable("v", np.zeros(2, np.float32), FTRL(0.1, l1=1.0))
    push(table, np.array([0.9, 1.5], np.float32))
    assert table.read()[0] == 0
    assert table.read()[1] < 0


@pytest.mark.parametrize("gradient", [0.0, 1e-30])
def test_nothing_is_divided_by_zero(gradient: float) -> None:
    table = DenseTable("v", np.ones(1, np.float32), FTRL(0.1, initial_accumulator_value=0.0))
    push(table, np.array([gradient], np.float32))
    assert table.read()[0] == 0


def test_a_step_at_rate_zero_changes_nothing() -> None:
    table = DenseTable("v", np.ones(1, np.float32), FTRL(PiecewiseConstant([1], [0.0, 0.1])))
    push(table, np.ones(1, np.float32))
    assert table.read()[0] == 1
    push(table, np.ones(1, np.float32))
    assert table.read()[0] < 1
