"""What `compile` may say of how a model is run, with the backend that Keras has."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from psnb._src.models.keras.compiled import check_execution
from psnb.errors import ConfigurationError
from tests.models.keras import nets

COMPILES = keras.backend.backend() == "jax"
KERAS: dict[str, Any] = {
    "run_eagerly": False,
    "steps_per_execution": 1,
    "jit_compile": "auto",
    "auto_scale_loss": True,
}


def checked(model: Any = None, **options: Any) -> None:
    check_execution(nets.plain() if model is None else model, **{**KERAS, **options})


def test_what_workers_do_anyway_may_be_given() -> None:
    checked()
    checked(jit_compile=COMPILES)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"run_eagerly": True}, r"run_eagerly=True\).*undistributed\(\)"),
        ({"steps_per_execution": 8}, r"steps_per_execution=8\).*leave it out"),
        ({"jit_compile": not COMPILES}, rf"jit_compile={not COMPILES}\).*leave it out"),
    ],
)
def test_what_workers_do_not_is_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        checked(**option)


def test_half_floats_whose_loss_would_be_scaled_are_refused() -> None:
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.dtype_policy = "mixed_float16"
    with pytest.raises(ConfigurationError, match=r"mixed_float16.*auto_scale_loss=False"):
        checked(model)
    checked(model, auto_scale_loss=False)
