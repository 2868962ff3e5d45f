"""Tests of optimizers of Keras as those of psnb."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import psnb
from psnb._src.models.keras.optimizers import as_optimizer
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_names_have_the_hyperparameters_of_keras() -> None:
    assert as_optimizer("sgd") == psnb.SGD(0.01)
    adam = as_optimizer("adam")
    assert isinstance(adam, psnb.Adam)
    assert adam.learning_rate == pytest.approx(0.001)
    assert adam.epsilon == pytest.approx(1e-7)


def test_objects_keep_their_hyperparameters() -> None:
    given = keras.optimizers.SGD(0.25, momentum=0.5, nesterov=True, clipnorm=1.0)
    assert as_optimizer(given) == psnb.Momentum(0.25, 0.5, True, clipnorm=1.0)
    decaying = as_optimizer(keras.optimizers.AdamW(0.5, weight_decay=0.25))
    assert decaying.weight_decay == 0.25
    own = psnb.FTRL(0.1)
    assert as_optimizer(own) is own


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: keras.optimizers.SGD(0.1, momentum=0.5, nesterov=True),
        lambda: keras.optimizers.RMSprop(0.01, momentum=0.3),
        lambda: keras.optimizers.Adagrad(0.1),
        lambda: keras.optimizers.Adagrad(0.1, 0.0, 1e-2),
        lambda: keras.optimizers.Adam(0.01, beta_2=0.5, amsgrad=True),
        lambda: keras.optimizers.SGD(0.5, clipnorm=0.02),
        lambda: keras.optimizers.Lion(0.1, 0.8, 0.9, weight_decay=0.1),
    ],
    ids=[
        "adam",
        "adamw",
        "momentum",
        "rmsprop",
        "adagrad",
        "adagrad from 0",
        "amsgrad",
        "clipnorm",
        "lion",
    ],
)
def test_they_give_the_numbers_of_keras(make: Any) -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=(4, 3)).astype(np.float32)
    alone, optimizer = keras.Variable(start), make()
    found = InProcessStrategy().variable(start, name="v", optimizer=as_optimizer(make()))
    for scale in (1, 0.5, 0.1):
        gradient = (scale * rng.normal(size=start.shape)).astype(np.float32)
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [alone])
        found.push(gradient)
    expected = keras.ops.convert_to_numpy(alone)
    np.testing.assert_allclose(found.read(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "nadam", "psnb has no such one"),
        (lambda: keras.optimizers.SGD(weight_decay=0.1), "psnb has no such one"),
        (lambda: keras.optimizers.Adam(use_ema=True), "use_ema"),
        (
            lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10)),
            "schedule of Keras",
        ),
    ],
)
def test_what_psnb_does_not_have_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        as_optimizer(make())


def own_kind() -> Any:
    return type("Adam", (keras.optimizers.Adam,), {})()


def without_decay_of_biases() -> Any:
    found = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    found.exclude_from_weight_decay(var_names=["bias"])
    return found


def without_decay_of_one() -> Any:
    found = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    found.exclude_from_weight_decay(var_list=[keras.Variable(np.zeros(2))])
    return found


def used() -> Any:
    found = keras.optimizers.Adam(0.1)
    variable = keras.Variable(np.zeros(2, np.float32))
    found.apply([keras.ops.ones(2)], [variable])
    return found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (own_kind, "optimizer Adam is a class of"),
        (without_decay_of_biases, "exclude_from_weight_decay"),
        (without_decay_of_one, "exclude_from_weight_decay"),
        (used, "has taken 1 steps"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            "scales losses.*mixed_bfloat16",
        ),
    ],
)
def test_what_no_config_says_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        as_optimizer(make())
