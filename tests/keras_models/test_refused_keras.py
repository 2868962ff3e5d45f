"""What Keras models on servers refuse, with the backend that Keras has."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import psnb.keras
from psnb._src.keras_models.batches import ClassWeights
from psnb.data import Ragged
from psnb.errors import ConfigurationError, GradientError
from tests.keras_models import nets

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


def test_class_weights_are_for_one_output() -> None:
    weights = ClassWeights({1: 3.0})
    x, y = np.zeros((3, 1)), np.array([0, 1, 2])
    np.testing.assert_array_equal(weights(x, y)[2], [1, 3, 1])
    np.testing.assert_array_equal(weights(x, np.eye(3), 2 * np.ones(3))[2], [2, 6, 2])
    with pytest.raises(ConfigurationError, match="one output"):
        weights(x, {"first": y, "second": y})


def test_frozen_weights_cannot_be_replaced_by_others() -> None:
    model = nets.frozen()
    found = nets.compiled(model)
    weights = found.read()
    found.write(weights)
    with pytest.raises(GradientError, match=r"is frozen.*distribute the model with the other"):
        found.write([each + 1 for each in weights])
    for value, other in zip(found.read(), weights, strict=True):
        np.testing.assert_array_equal(value, other)


def test_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    with pytest.raises(ConfigurationError, match=r"Keras's backend is 'tensorflow': set KERAS_"):
        psnb.keras.distribute(nets.plain(), None)  # type: ignore[arg-type]


def test_inputs_that_are_no_arrays_of_numbers_are_named() -> None:
    found = nets.compiled(nets.plain()).program
    (x, _), *_ = nets.data()
    bags = Ragged.from_rows([[1]] * nets.SIZE, np.int64)
    with pytest.raises(ConfigurationError, match=r"input 'ids' is Ragged.*pad\(\) it"):
        found.predict({**x, "ids": bags})
    with pytest.raises(ConfigurationError, match="input 'x' is of <U1, not of numbers"):
        found.predict({**x, "x": np.full((nets.SIZE, 3), "a")})


class Counting(keras.layers.Layer):
    """A layer that counts its calls in an integer."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls"
        )

    def call(self, x: Any) -> Any:
        self.calls.assign(self.calls + 1)
        return x


def test_integers_that_a_step_changes_are_refused() -> None:
    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(Counting(name="counting")(x)))
    found = nets.compiled(model, loss="mse")
    with pytest.raises(ConfigurationError, match=r"changes \['counting/calls'\], which are no flo"):
        found.metrics("metrics", (np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)))


def test_a_gradient_that_is_not_finite_where_the_loss_is_ends_nothing_quietly() -> None:
    x = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(1, kernel_initializer="zeros")(x)
    model = keras.Model(x, keras.layers.Lambda(keras.ops.sqrt)(hidden))
    found = nets.compiled(model, loss="mse")
    batch = np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)
    metrics = found.metrics("metrics", batch).variable
    with pytest.raises(GradientError):
        found.program.train(batch, metrics, True)
    assert not metrics.read().any()
