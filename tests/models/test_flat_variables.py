"""Tests of arrays by name that lie in few variables; servers in this process."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.models.flat_variables import FlatVariables, place_flat
from psnb._src.models.placing import WantedModel, place_model
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.models.placing import InProcessStrategy

ARRAYS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scale": np.float64(3) * np.ones(()),
    "b": np.ones(3, np.float32),
}


def placed(strategy: InProcessStrategy | None = None) -> FlatVariables:
    return place_flat(strategy or InProcessStrategy(), "m", ARRAYS, SGD(1.0))


def test_arrays_of_one_dtype_and_optimizer_are_one_variable() -> None:
    strategy = InProcessStrategy()
    assert [each.shape for each in placed(strategy).variables] == [(9,), (1,)]
    assert list(strategy.parameters) == ["m", "m.1"]


def test_a_function_gives_each_parameter_its_optimizer() -> None:
    def choose(name: str) -> Optimizer:
        return Adagrad() if name == "b" else SGD()

    made = place_flat(InProcessStrategy(), "m", ARRAYS, choose)
    assert [each.shape for each in made.variables] == [(6,), (1,), (3,)]


def test_what_is_read_is_what_was_placed() -> None:
    found = placed().read()
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def test_gradients_are_joined_with_zeros_where_there_are_none() -> None:
    first, second = placed().join({"b": np.full(3, 2.0, np.float32)})
    assert first is not None
    assert first.tolist() == [0] * 6 + [2] * 3
    assert second is None


def test_all_can_be_assigned() -> None:
    made = placed()
    made.assign({name: array + 1 for name, array in ARRAYS.items()})
    np.testing.assert_array_equal(made.read()["w"], ARRAYS["w"] + 1)


def test_a_parameter_that_changed_its_shape_is_named() -> None:
    with pytest.raises(
        InvalidArrayError, match=r"'w' was made with shape \(2, 3\), and now .*\(3, 2\)"
    ):
        placed().assign({**ARRAYS, "w": np.ones((3, 2), np.float32)})


def test_parameters_of_other_names_are_refused() -> None:
    with pytest.raises(InvalidArrayError, match="'b'"):
        placed().assign({"w": ARRAYS["w"], "scale": ARRAYS["scale"]})


@pytest.mark.parametrize("optimizer", [None, lambda name: "adam", object()])
def test_what_is_no_optimizer_is_refused(optimizer: object) -> None:
    strategy = InProcessStrategy()
    with pytest.raises(ConfigurationError, match=r"'w': expected an optimizer of psnb"):
        place_model(strategy, "m", WantedModel(ARRAYS), sparse=None, dense=optimizer, adopt=None)  # type: ignore[arg-type]
    assert not strategy.parameters


def test_half_precision_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="autocast"):
        place_flat(InProcessStrategy(), "m", {"w": np.ones(2, np.float16)}, SGD())


def test_a_name_that_is_taken_is_refused_before_anything_is_placed() -> None:
    strategy = InProcessStrategy()
    strategy.variable(np.zeros(1), "m.1")
    with pytest.raises(ConfigurationError, match=r"\['m\.1'\] already, .* another name="):
        placed(strategy)
    assert list(strategy.parameters) == ["m.1"]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_norm_of_two_dtypes_is_refused(by_name: bool) -> None:
    strategy = InProcessStrategy()
    arrays = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float64)}
    one, other = SGD(0.1, clipnorm=1.0), SGD(0.1, clipnorm=2.0)
    if by_name:  # each has a norm of its own
        place_flat(strategy, "m", arrays, lambda name: one if name == "a" else other)
        return
    with pytest.raises(ConfigurationError, match="some parameters are float32 and some float64"):
        place_flat(strategy, "m", arrays, one)
    assert not strategy.parameters
