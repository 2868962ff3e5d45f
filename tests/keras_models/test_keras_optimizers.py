"""Tests of optimizers of Keras as those of psnb."""

from __future__ import annotations

from typing import Any

import keras
import pytest

import psnb
from psnb._src.keras_models.keras_optimizers import as_optimizer
from psnb.errors import ConfigurationError

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
    ("make", "message"),
    [
        (lambda: "nadam", "psnb has no such one"),
        (lambda: keras.optimizers.Adam(amsgrad=True), "psnb has no such one"),
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
