"""Tests of what optimizers take, say of themselves and keep apart from their numerics."""

from __future__ import annotations

import doctest
import json
import math
import pickle
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import FTRL, SGD, Adagrad, Adam, Lion, Momentum, RMSProp
from psnb._src.server.schedules import CosineDecay
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.server.writes import push

KINDS: list[type[Optimizer]] = [SGD, Momentum, Adagrad, Adam, Lion, RMSProp, FTRL]
ALL = [
    *(kind(0.1) for kind in KINDS),
    RMSProp(0.1, momentum=0.5, centered=True),
    Adam(0.1, amsgrad=True),
]
HUGE = pytest.param(10**400, id="more than a float holds")
EACH = pytest.mark.parametrize("optimizer", ALL, ids=lambda each: type(each).__name__)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, "0.1", None, 1j, HUGE])
def test_learning_rate_out_of_range_is_refused(kind: type[Optimizer], bad: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\(learning_rate="):
        kind(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, "0.1"])
@pytest.mark.parametrize("name", ["weight_decay", "clipnorm", "clipvalue"])
def test_common_hyperparameter_out_of_range_is_refused(
    kind: type[Optimizer], name: str, bad: object
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\({name}="):
        kind(**{name: bad})  # type: ignore[arg-type]


ZEROS, GRADIENTS = np.zeros((4, 2), np.float32), np.ones((1, 2), np.float32)


@pytest.mark.parametrize(
    ("values", "slot", "gradients"),
    [
        (ZEROS.astype("f8"), ZEROS, GRADIENTS),
        (ZEROS, ZEROS.astype("f8"), GRADIENTS),
        (ZEROS, ZEROS, GRADIENTS.astype("f8")),
        (np.asfortranarray(ZEROS), ZEROS, GRADIENTS),
        (ZEROS, ZEROS[:2], GRADIENTS),
        (ZEROS, ZEROS, np.ones((1, 3), np.float32)),
        (ZEROS, ZEROS, GRADIENTS[:0]),
    ],
    ids=["values", "slot", "gradients", "columns first", "short slot", "wide", "too few"],
)
def test_arrays_that_a_kernel_would_misread_are_refused(
    values: np.ndarray, slot: np.ndarray, gradients: np.ndarray
) -> None:
    values, slot = values.copy("K"), slot.copy()
    with pytest.raises(InvalidArrayError, match=r"Adagrad\.apply: expected contiguous"):
        Adagrad(0.1).apply(values, {"accumulator": slot}, np.array([0]), gradients, 0)
    assert not values.any()
    assert not slot.any()


BAD: dict[str, Callable[[], Optimizer]] = {
    r"Adagrad\(epsilon=0.0.* above 0": lambda: Adagrad(epsilon=0.0),
    r"Adagrad\(epsilon=nan.* above 0": lambda: Adagrad(epsilon=math.nan),
    r"initial_accumulator_value=-0.1.* not below 0": lambda: Adagrad(0.1, -0.1),
    r"initial_accumulator_value=inf": lambda: Adagrad(0.1, math.inf),
    r"dampening=1.5.* 1 at most": lambda: Momentum(dampening=1.5),
    r"dampening=0.5.* 0 with nesterov=True": lambda: Momentum(0.1, 0.9, True, 0.5),
    r"learning_rate_decay=-1": lambda: Adagrad(learning_rate_decay=-1),
    r"SGD\(maximize=1.* True or False": lambda: SGD(maximize=1),  # type: ignore[arg-type]
    r"Momentum\(momentum=1.* below 1": lambda: Momentum(momentum=1),
    r"Momentum\(nesterov='yes'.* True or False": lambda: Momentum(nesterov="yes"),  # type: ignore[arg-type]
    r"Adam\(beta_1=1.0.* below 1": lambda: Adam(beta_1=1.0),
    r"Adam\(beta_2=-0.1": lambda: Adam(beta_2=-0.1),
    r"Lion\(beta_2=1": lambda: Lion(beta_2=1),
    r"RMSProp\(rho=1": lambda: RMSProp(rho=1),
    r"RMSProp\(centered=1": lambda: RMSProp(centered=1),  # type: ignore[arg-type]
    r"FTRL\(learning_rate=0.* above 0": lambda: FTRL(0.0),
    r"FTRL\(learning_rate_power=0.5.* not above 0": lambda: FTRL(learning_rate_power=0.5),
    r"FTRL\(learning_rate_power=nan": lambda: FTRL(learning_rate_power=math.nan),
    r"FTRL\(l1=-1": lambda: FTRL(l1=-1),
    r"SGD\(clipnorm=0": lambda: SGD(clipnorm=0),
}


@pytest.mark.parametrize("message", BAD)
def test_hyperparameter_out_of_range_is_refused(message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        BAD[message]()


@pytest.mark.parametrize("number", [0.5, np.float32(0.5), np.float64(0.5)])
def test_describe_is_json_with_name_and_hyperparameters(number: float) -> None:
    to_config = json.loads(json.dumps(Adagrad(number, clipnorm=number).describe()))
    assert to_config == {
        "name": "Adagrad",
        "learning_rate": 0.5,
        "weight_decay": 0.0,
        "clipnorm": 0.5,
        "clipvalue": None,
        "maximize": False,
        "initial_accumulator_value": 0.0,
        "epsilon": 1e-7,
        "learning_rate_decay": 0.0,
        "epsilon_in_root": False,
    }


@pytest.mark.parametrize("kind", [Momentum, Adagrad, Adam, Lion, RMSProp])
def test_the_example_in_its_docstring_runs(kind: type[Optimizer]) -> None:
    (found,) = doctest.DocTestFinder(recurse=False).find(
        kind, kind.__name__, sys.modules[kind.__module__]
    )
    assert found.examples
    assert not doctest.DocTestRunner(verbose=False).run(found).failed


def test_describe_has_the_schedule_in_it() -> None:
    to_config = json.loads(json.dumps(SGD(CosineDecay(0.5, 10)).describe()))
    assert to_config["learning_rate"]["name"] == "CosineDecay"
    assert to_config["learning_rate"]["decay_steps"] == 10


@EACH
def test_optimizers_of_equal_hyperparameters_are_equal_after_a_pickle(optimizer: Optimizer) -> None:
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer


@EACH
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_gradient_at_all_makes_no_nan(optimizer: Optimizer, dtype: str) -> None:
    table = DenseTable("v", np.zeros(2, dtype), optimizer)
    for _ in range(3):
        push(table, np.zeros(2, dtype))
    assert table.read().tolist() == [0, 0]


def test_epsilon_too_small_for_float32_divides_by_nothing() -> None:
    for optimizer in (Adagrad(0.1, 0.0, epsilon=1e-60), Adam(0.1, epsilon=1e-60)):
        table = DenseTable("v", np.ones(2, np.float32), optimizer)
        push(table, np.array([0.0, 1.0], np.float32))
        np.testing.assert_allclose(table.read(), [1.0, 0.9], atol=1e-6)


@EACH
def test_gradient_is_left_as_it_is(optimizer: Optimizer) -> None:
    gradient = np.full(3, 5.0, np.float32)
    clipping = type(optimizer)(0.1, clipvalue=1.0, clipnorm=2.0)
    for each in (optimizer, clipping):
        push(DenseTable("v", np.ones(3, np.float32), each), gradient, 8.7)
    assert gradient.tolist() == [5, 5, 5]


@st.composite
def pushes(draw: st.DrawFn) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw ids, most of them more than once, with whole gradients: their sums are exact."""
    found = []
    for ids in draw(st.lists(st.lists(st.integers(0, 4), max_size=8), min_size=1, max_size=6)):
        numbers = st.lists(st.integers(-9, 9), min_size=2 * len(ids), max_size=2 * len(ids))
        gradients = np.array(draw(numbers), float).reshape(-1, 2)
        found.append((np.array(ids, np.uint64), gradients))
    return found


@settings(max_examples=60)
@given(
    history=pushes(),
    optimizer=st.sampled_from(ALL),
    dtype=st.sampled_from(["float32", "float64"]),
    rows=st.sampled_from([5, None]),
)
def test_an_id_counts_once_a_push_however_often_it_is_in_it(
    history: list[tuple[np.ndarray, np.ndarray]],
    optimizer: Optimizer,
    dtype: str,
    rows: int | None,
) -> None:
    given_, expected = (
        SparseTable("e", 2, rows, 0, 1, dtype, Constant(0.5), 0, optimizer) for _ in range(2)
    )
    for ids, gradients in history:
        push(given_, ids, gradients.astype(dtype))
        distinct = np.unique(ids)
        sums = np.array([gradients[ids == i].sum(0) for i in distinct]).reshape(-1, 2)
        push(expected, distinct, sums.astype(dtype))
    every = np.arange(5, dtype=np.uint64)
    np.testing.assert_array_equal(given_.lookup(every), expected.lookup(every))
