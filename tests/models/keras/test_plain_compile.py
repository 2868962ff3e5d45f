"""Plain copies of models are compiled as the distributed ones, with the backend that Keras has."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from psnb import Adam
from psnb._src.models.keras.compiled import compile_plain
from tests.models.keras import nets

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


class Off(keras.losses.Loss):
    """A loss of the user's."""

    def call(self, y: Any, found: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y - found), -1)


def test_a_copy_has_loss_metrics_optimizer_and_the_rate_of_now() -> None:
    keras.utils.set_random_seed(0)
    given = {"loss": Off(), "metrics": [keras.metrics.AUC(name="auc"), "mae"]}
    model, optimizer = nets.plain(), keras.optimizers.SGD(0.1, momentum=0.5)
    found = nets.compiled(model, optimizer, **given)
    found.optimizer.learning_rate = 0.25
    compile_plain(model, optimizer, given, found.optimizer)
    batch = nets.data()[0]
    metrics = found.metrics("metrics", batch)
    metrics.begin()
    found.program.score(batch, metrics.variable)
    expected = model.evaluate(*batch, return_dict=True, verbose=0)
    assert metrics.results() == pytest.approx(expected, rel=1e-5)
    assert model.optimizer is not optimizer
    assert float(np.asarray(keras.ops.convert_to_numpy(model.optimizer.learning_rate))) == 0.25
    assert model.optimizer.momentum == 0.5
    theirs: Any = given["metrics"][0]  # type: ignore[index]
    assert not any(keras.ops.convert_to_numpy(each).any() for each in theirs.variables)


def test_a_copy_is_not_compiled_with_an_optimizer_of_psnb() -> None:
    model, optimizer = nets.plain(), Adam(0.1)
    found = nets.compiled(model, optimizer)
    compile_plain(model, optimizer, {"loss": "mse"}, found.optimizer)
    assert not model.compiled
