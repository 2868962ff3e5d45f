"""Tests of the learning rates by step; the optimizers' tests check them against optax in use."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.server.optimizers import FTRL, SGD
from psnb._src.server.schedules import (
    CosineDecay,
    ExponentialDecay,
    PiecewiseConstant,
    PolynomialDecay,
    Schedule,
    Warmup,
    rate_at,
)
from psnb.errors import ConfigurationError

ALL: list[Schedule] = [
    ExponentialDecay(0.5, 10, 0.9),
    CosineDecay(0.5, 10, 0.1),
    PolynomialDecay(0.5, 10, 0.1, 2.0),
    PiecewiseConstant([3, 9], [0.5, 0.1, 0.01]),
    Warmup(CosineDecay(0.5, 10), 4, 0.1),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda each: type(each).__name__)
@given(step=st.integers(0, 10**12))
def test_rates_stay_between_zero_and_the_highest(schedule: Schedule, step: int) -> None:
    assert 0 <= schedule(step) <= 0.5


def test_piecewise_rate_begins_with_its_boundary() -> None:
    schedule = PiecewiseConstant([3, 5], [3.0, 2.0, 1.0])
    assert [schedule(step) for step in range(7)] == [3, 3, 3, 2, 2, 1, 1]


def test_warmup_rises_in_a_line_to_a_number_and_stays() -> None:
    schedule = Warmup(1.0, 4)
    assert [schedule(step) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]


def test_what_follows_a_warmup_begins_with_its_own_first_step() -> None:
    after = ExponentialDecay(1.0, 1, 0.5)
    assert [Warmup(after, 2, 0.5)(step) for step in range(5)] == [0.5, 0.75, 1, 0.5, 0.25]


@pytest.mark.parametrize("schedule", ALL, ids=lambda each: type(each).__name__)
def test_schedules_pickle_and_describe_themselves_as_json(schedule: Schedule) -> None:
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    to_config = json.loads(json.dumps(schedule.describe()))
    assert to_config["name"] == type(schedule).__name__


def test_description_of_a_warmup_has_the_schedule_in_it() -> None:
    to_config = Warmup(CosineDecay(0.5, 10), 4).describe()
    assert to_config["learning_rate"]["name"] == "CosineDecay"


def halving(step: int) -> float:
    return 0.5**step


class Rates:
    """A function with a name of its class only, and a repr with an address."""

    def __call__(self, step: int) -> float:
        return 0.1


def test_a_function_is_described_by_its_name_without_an_address() -> None:
    assert repr(SGD(halving)) == (
        f"SGD(learning_rate={__name__}.halving, weight_decay=0.0, clipnorm=None, clipvalue=None, "
        "maximize=False)"
    )
    to_config = json.loads(json.dumps(SGD(Warmup(Rates(), 4)).describe()))
    assert to_config["learning_rate"]["learning_rate"] == {
        "name": "RateFunction",
        "function": f"{__name__}.Rates",
    }


def test_warmup_leads_to_a_function_which_begins_with_its_own_first_step() -> None:
    assert [Warmup(halving, 2)(step) for step in range(5)] == [0, 0.5, 1, 0.5, 0.25]


def test_optimizers_of_one_function_are_equal_after_a_pickle() -> None:
    assert pickle.loads(pickle.dumps(SGD(halving))) == SGD(halving)


def test_rate_of_a_function_becomes_a_float() -> None:
    for number in (np.float32(0.5), np.array(0.5), jax.numpy.asarray(0.5), Fraction(1, 2)):
        found = rate_at(SGD(lambda step, number=number: number).learning_rate, 3)
        assert type(found) is float
        assert found == 0.5


@pytest.mark.parametrize("kind", [SGD, FTRL, lambda rate: Warmup(rate, 3)])
@pytest.mark.parametrize(
    "bad",
    [
        lambda step: 1 / step,
        lambda step: -0.1,
        lambda step: math.nan,
        lambda step: math.inf,
        lambda step: "0.1",
        lambda step: None,
        lambda step: np.array([0.1]),
        lambda step: True,
        lambda: 0.1,
        CosineDecay,
    ],
)
def test_function_without_a_rate_for_step_0_is_refused(
    kind: Callable[[Any], object], bad: Callable[[int], object]
) -> None:
    with pytest.raises(ConfigurationError, match="step 0"):
        kind(bad)


BAD: dict[str, Callable[[], Schedule]] = {
    "initial_learning_rate=0": lambda: ExponentialDecay(0.0, 10, 0.5),
    "decay_steps=0": lambda: CosineDecay(0.1, 0),
    "decay_steps=1.5": lambda: CosineDecay(0.1, 1.5),  # type: ignore[arg-type]
    "decay_steps=True": lambda: CosineDecay(0.1, True),
    "decay_rate=1.1": lambda: ExponentialDecay(0.1, 10, 1.1),
    "decay_rate=0.0": lambda: ExponentialDecay(0.1, 10, 0.0),
    "staircase=1": lambda: ExponentialDecay(0.1, 10, 0.5, 1),  # type: ignore[arg-type]
    "alpha=1.5": lambda: CosineDecay(0.1, 10, 1.5),
    "end_learning_rate=-1": lambda: PolynomialDecay(0.1, 10, -1),
    "power=0": lambda: PolynomialDecay(0.1, 10, power=0),
    r"boundaries=\[5, 3\]": lambda: PiecewiseConstant([5, 3], [1, 2, 3]),
    r"boundaries=\[0\]": lambda: PiecewiseConstant([0], [1, 2]),
    r"values=\[1, 2, 3\]": lambda: PiecewiseConstant([5], [1, 2, 3]),
    r"values=\[1, nan\]": lambda: PiecewiseConstant([5], [1, float("nan")]),
    r"values='x'": lambda: PiecewiseConstant([5], "x"),  # type: ignore[arg-type]
    "learning_rate=nan": lambda: Warmup(float("nan"), 3),
    "warmup_steps=0": lambda: Warmup(0.1, 0),
}


@pytest.mark.parametrize("message", BAD)
def test_parameter_out_of_range_is_refused(message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        BAD[message]()
