"""The hyperparameters that PyTorch's optimizers have, against PyTorch in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad, Adam, Momentum, RMSProp, RowWiseAdagrad
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable
from tests.server.writes import push

STEPS, ROWS, DIM = 25, 6, 3
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-12)])

RULES: dict[str, tuple[Optimizer, Callable[[Any], torch.optim.Optimizer]]] = {
    "dampening": (
        Momentum(0.05, dampening=0.3),
        lambda p: torch.optim.SGD(p, 0.05, 0.9, dampening=0.3),
    ),
    "maximize": (
        SGD(0.05, weight_decay=0.1, maximize=True),
        lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1, maximize=True),
    ),
    "maximize with momentum": (
        Momentum(0.05, maximize=True),
        lambda p: torch.optim.SGD(p, 0.05, 0.9, maximize=True),
    ),
    "decay of the rate": (
        Adagrad(0.1, 0.0, 1e-4, learning_rate_decay=0.2),
        lambda p: torch.optim.Adagrad(p, 0.1, 0.2, eps=1e-4),
    ),
    "weight decay in the gradient": (
        Adam(0.01, decoupled=False, weight_decay=0.3),
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.3),
    ),
    "amsgrad": (
        Adam(0.01, 0.8, 0.9, 1e-3, amsgrad=True),
        lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.9), 1e-3, amsgrad=True),
    ),
    "amsgrad with decoupled decay": (
        Adam(0.01, amsgrad=True, weight_decay=0.2),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.2, amsgrad=True),
    ),
    "epsilon outside of the root": (
        RMSProp(0.01, 0.9, 0.5, 1e-2, centered=True, epsilon_in_root=False),
        lambda p: torch.optim.RMSprop(p, 0.01, 0.9, 1e-2, momentum=0.5, centered=True),
    ),
}


def gradients() -> list[np.ndarray]:
    """Return a gradient for each step; of sizes that differ, so that amsgrad has a maximum."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(ROWS, DIM)) * rng.choice([0.05, 1.0, 3.0]) for _ in range(STEPS)]


def by_torch(make: Callable[[Any], torch.optim.Optimizer]) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.full((ROWS, DIM), 0.25, dtype=torch.float64))
    optimizer = make([parameter])
    for gradient in gradients():
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return parameter.detach().numpy()


@DTYPES
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", RULES)
def test_hyperparameter_is_that_of_torch(
    name: str, sparse: bool, dtype: str, tolerance: float
) -> None:
    optimizer, make = RULES[name]
    dense = DenseTable("v", np.full((ROWS, DIM), 0.25, dtype), optimizer)
    table = SparseTable("e", DIM, ROWS, 0, 1, dtype, Constant(0.25), 0, optimizer)
    ids = np.arange(ROWS, dtype=np.uint64)
    for gradient in gradients():
        if sparse:
            push(table, ids, gradient.astype(dtype))
        else:
            push(dense, gradient.astype(dtype))
    found = table.lookup(ids) if sparse else dense.read()
    np.testing.assert_allclose(found, by_torch(make), rtol=0, atol=tolerance)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5])  # such as of a mean over a large batch
def test_adagrad_takes_torchs_steps_by_default_however_small_gradients_are(size: float) -> None:
    table = DenseTable("v", np.zeros(3), Adagrad(0.1))
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    alone = torch.optim.Adagrad([weight], 0.1)
    for gradient in np.random.default_rng(0).normal(size=(20, 3)) * size:
        push(table, gradient)
        weight.grad = torch.from_numpy(gradient)
        alone.step()
    found = weight.detach().numpy()
    assert np.abs(found).max() > 0.1
    np.testing.assert_allclose(table.read(), found, rtol=0.1)  # epsilon is larger


def test_epsilon_of_adagrad_may_be_in_the_root() -> None:
    table = DenseTable("v", np.zeros(1), Adagrad(1.0, 0.0, 0.25, epsilon_in_root=True))
    push(table, np.array([0.5]))
    assert table.read() == pytest.approx([-0.5 / np.sqrt(0.25 + 0.25)], rel=1e-12)


def test_maximize_negates_what_is_clipped() -> None:
    table = DenseTable("v", np.zeros(2), SGD(1.0, clipnorm=5.0, clipvalue=3.5, maximize=True))
    push(table, np.array([6.0, -8.0]))
    assert table.read().tolist() == [3.0, -3.5]


def test_maximize_can_be_set_live() -> None:
    table = DenseTable("v", np.zeros(1), SGD(1.0))
    table.updater.tune({"maximize": True})
    push(table, np.ones(1))
    assert table.read().tolist() == [1.0]


def test_gradients_change_without_memory_of_a_table_too() -> None:
    values = np.zeros((2, 1))
    SGD(1.0, maximize=True, clipvalue=2.0).apply(
        values, {}, np.array([0, 1]), np.array([[1.0], [-3.0]]), 0
    )
    assert values.tolist() == [[1.0], [-2.0]]


def test_at_one_number_a_row_adagrad_by_row_is_pytorchs() -> None:
    weights = torch.full((ROWS, 1), 0.5, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adagrad([weights], 0.1, initial_accumulator_value=0.2, eps=1e-8)
    ours = SparseTable(*("t", 1, ROWS, 0, 1, "float64", Constant(0.5), 1), RowWiseAdagrad(0.1, 0.2))
    for gradient in gradients():
        weights.grad = torch.from_numpy(gradient[:, :1].copy())
        theirs.step()
        push(ours, np.arange(ROWS, dtype=np.uint64), gradient[:, :1].copy())
    found = ours.lookup(np.arange(ROWS, dtype=np.uint64))
    np.testing.assert_allclose(found, weights.detach().numpy(), rtol=1e-10)
