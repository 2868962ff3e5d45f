"""Every optimizer against optax in double precision, dense and sparse, in float32 and float64.

optax has no FTRL: see `test_ftrl`. For a sparse table the reference is optax on the whole matrix
with the summed gradients; of the rows without a gradient in a step, values and state are put back
as they were, while its count of steps goes on. That is what *lazy* means here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad, Adam, Lion, Momentum, RMSProp
from psnb._src.server.schedules import (
    CosineDecay,
    ExponentialDecay,
    PiecewiseConstant,
    PolynomialDecay,
    Warmup,
)
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable
from tests.server.writes import push

STEPS, ROWS, DIM = 25, 6, 3
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])

RULES: dict[str, tuple[Optimizer, Callable[[Any], optax.GradientTransformation]]] = {
    "sgd": (SGD(0.1), optax.sgd),
    "momentum": (Momentum(0.05), lambda rate: optax.sgd(rate, 0.9)),
    "nesterov": (Momentum(0.05, 0.8, True), lambda rate: optax.sgd(rate, 0.8, nesterov=True)),
    "adagrad": (
        Adagrad(0.1, 0.1, 1e-2, epsilon_in_root=True),
        lambda rate: optax.adagrad(rate, eps=1e-2),
    ),
    "adagrad from 1": (Adagrad(0.1, 1.0, 1e-30), lambda rate: optax.adagrad(rate, 1.0, 1e-30)),
    "adam": (Adam(0.01), optax.adam),
    "adam of other betas": (
        Adam(0.01, 0.8, 0.95, 1e-3),
        lambda rate: optax.adam(rate, 0.8, 0.95, 1e-3),
    ),
    "lion": (Lion(0.01), lambda rate: optax.lion(rate, weight_decay=0.0)),
    "lion of other betas": (
        Lion(0.01, 0.8, 0.95, weight_decay=0.1),
        lambda rate: optax.lion(rate, 0.8, 0.95, weight_decay=0.1),
    ),
    "rmsprop": (RMSProp(0.01), lambda rate: optax.rmsprop(rate, eps=1e-7)),
    "rmsprop with momentum": (
        RMSProp(0.01, 0.8, 0.7, 1e-4),
        lambda rate: optax.rmsprop(rate, 0.8, 1e-4, momentum=0.7),
    ),
    "rmsprop centered": (
        RMSProp(0.01, epsilon=1e-3, centered=True),
        lambda rate: optax.rmsprop(rate, eps=1e-3, centered=True),
    ),
    "rmsprop centered with momentum": (
        RMSProp(0.01, 0.9, 0.5, 1e-3, centered=True),
        lambda rate: optax.rmsprop(rate, 0.9, 1e-3, momentum=0.5, centered=True),
    ),
    "rmsprop with epsilon outside": (
        RMSProp(0.01, epsilon=1e-2, epsilon_in_root=False),
        lambda rate: optax.rmsprop(rate, eps=1e-2, eps_in_sqrt=False),
    ),
}

SCHEDULES = {
    "exponential": (ExponentialDecay(0.1, 10, 0.5), optax.exponential_decay(0.1, 10, 0.5)),
    "staircase": (
        ExponentialDecay(0.1, 10, 0.5, staircase=True),
        optax.exponential_decay(0.1, 10, 0.5, staircase=True),
    ),
    "cosine": (CosineDecay(0.1, 20, 0.1), optax.cosine_decay_schedule(0.1, 20, 0.1)),
    "polynomial": (
        PolynomialDecay(0.1, 20, 0.01, 2.0),
        optax.polynomial_schedule(0.1, 0.01, 2.0, 20),
    ),
    "piecewise": (
        PiecewiseConstant([5, 15], [0.1, 0.05, 0.01]),
        optax.piecewise_constant_schedule(0.1, {5: 0.5, 15: 0.2}),
    ),
    "warmup, then cosine": (
        Warmup(CosineDecay(0.1, 15), 5),
        optax.warmup_cosine_decay_schedule(0.0, 0.1, 5, 20),
    ),
}


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def batches(sparse: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids and gradients of each step: numbers that float32 holds, also their sums."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        n = 5 if sparse else ROWS
        ids = rng.integers(0, ROWS, n) if sparse else np.arange(ROWS)
        yield ids.astype(np.uint64), rng.integers(-64, 65, (n, DIM)) / 32 + 1 / 64


def start() -> np.ndarray:
    return np.full((ROWS, DIM), 0.25)


def by_optax(rule: optax.GradientTransformation, sparse: bool) -> np.ndarray:
    """Return what the parameters become in double precision."""
    values = start()
    state = rule.init(values)
    for ids, gradients in batches(sparse):
        whole = np.zeros_like(values)
        np.add.at(whole, ids, gradients)
        updates, new = rule.update(whole, state, values)
        touched = np.isin(np.arange(ROWS), ids)[:, None]

        def kept(old: Any, new: Any, touched: np.ndarray = touched) -> Any:
            return np.where(touched, new, old) if np.shape(new) == (ROWS, DIM) else new

        values = kept(values, optax.apply_updates(values, updates))
        state = jax.tree.map(kept, state, new)
    return values


def by_psnb(optimizer: Optimizer, sparse: bool, dtype: str) -> np.ndarray:
    """Return what the parameters become in our tables; ``clipnorm`` gets its norm from here."""
    dense = DenseTable("v", start().astype(dtype), optimizer)
    table = SparseTable("e", DIM, ROWS, 0, 1, dtype, Constant(0.25), 0, optimizer)
    for ids, gradients in batches(sparse):
        whole = np.zeros((ROWS, DIM))
        np.add.at(whole, ids, gradients)
        norm = float(np.linalg.norm(whole)) if optimizer.clipnorm else None
        if sparse:
            push(table, ids, gradients.astype(dtype), norm)
        else:
            push(dense, whole.astype(dtype), norm)
    return table.lookup(np.arange(ROWS, dtype=np.uint64)) if sparse else dense.read()


def assert_same(
    optimizer: Optimizer, rule: optax.GradientTransformation, dtype: str, tolerance: float
) -> None:
    for sparse in (False, True):
        found = by_psnb(optimizer, sparse, dtype)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, by_optax(rule, sparse), rtol=0, atol=tolerance)


@DTYPES
@pytest.mark.parametrize("name", RULES)
def test_optimizer_follows_optax(name: str, dtype: str, tolerance: float) -> None:
    optimizer, rule = RULES[name]
    assert_same(optimizer, rule(optimizer.learning_rate), dtype, tolerance)


@DTYPES
@pytest.mark.parametrize("name", ["sgd", "nesterov", "adagrad", "rmsprop with momentum"])
def test_weight_decay_is_added_to_the_gradient(name: str, dtype: str, tolerance: float) -> None:
    optimizer, rule = RULES[name]
    decayed = optax.chain(optax.add_decayed_weights(0.3), rule(optimizer.learning_rate))
    assert_same(replace(optimizer, weight_decay=0.3), decayed, dtype, tolerance)


@DTYPES
def test_weight_decay_of_adam_is_decoupled(dtype: str, tolerance: float) -> None:
    rule = optax.adamw(0.01, weight_decay=0.3)
    assert_same(Adam(0.01, weight_decay=0.3), rule, dtype, tolerance)


@DTYPES
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("options", [{"clipnorm": 2.0}, {"clipvalue": 0.5}])
def test_clipping_comes_before_the_optimizer(
    name: str, options: dict[str, float], dtype: str, tolerance: float
) -> None:
    optimizer, rule = RULES[name]
    [(kind, limit)] = options.items()
    clip = optax.clip_by_global_norm(limit) if kind == "clipnorm" else optax.clip(limit)
    clipped = optax.chain(clip, rule(optimizer.learning_rate))
    assert_same(replace(optimizer, **options), clipped, dtype, tolerance)


@DTYPES
def test_decay_comes_after_clipping(dtype: str, tolerance: float) -> None:
    rule = optax.chain(
        optax.clip_by_global_norm(2.0), optax.add_decayed_weights(0.3), optax.sgd(0.1)
    )
    assert_same(SGD(0.1, clipnorm=2.0, weight_decay=0.3), rule, dtype, tolerance)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["momentum", "adam", "rmsprop with momentum"])
def test_optimizer_follows_optax_on_a_schedule(name: str, schedule: str) -> None:
    ours, theirs = SCHEDULES[schedule]
    optimizer, rule = RULES[name]

    def in_double(count: Any) -> Any:  # optax counts in int32, whose quotients are float32
        return theirs(count.astype(np.float64))

    assert_same(replace(optimizer, learning_rate=ours), rule(in_double), "float64", 1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_of_optax_can_be_used_as_it_is(schedule: str) -> None:
    ours, theirs = SCHEDULES[schedule]
    found, expected = (by_psnb(Adam(rate), True, "float64") for rate in (theirs, ours))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_rows_without_gradient_stay_as_they_are(name: str) -> None:
    table = SparseTable("e", DIM, ROWS, 0, 1, "float32", Constant(1.0), 0, RULES[name][0])
    for _ in range(2):
        push(table, np.array([2], np.uint64), np.ones((1, DIM), np.float32))
    state = table.state()
    fresh = SparseTable("e", DIM, ROWS, 0, 1, "float32", Constant(1.0), 0, RULES[name][0]).state()
    others = np.arange(ROWS) != 2
    for key in state.keys() - {"step"}:
        np.testing.assert_array_equal(state[key][others], fresh[key][others])
    assert (state["values"][2] < 1).all()
