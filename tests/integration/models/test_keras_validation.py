"""Keras on a real cluster, epoch by epoch beside Keras alone: validation, and what is not used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from distributed import Client

import psnb
import psnb.keras
from psnb.data import Dataset
from psnb.errors import ConfigurationError

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 3)).astype(np.float32)
Y = RNG.normal(size=(70, 1)).astype(np.float32)
HELD_OUT = X[:45] + 1, Y[:45], RNG.random(45).astype(np.float32)


def batches(size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, 45, size):
        yield tuple(each[start : start + size] for each in HELD_OUT[:2])  # type: ignore[misc]


class Sequence(keras.utils.PyDataset):
    """What Keras alone takes for a dataset of `batches`."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return list(batches(7))[number]


SMALL = {"validation_data": HELD_OUT, "validation_batch_size": 7}
CASES: dict[str, dict[str, Any]] = {
    "split": {"validation_split": 0.3},
    "split, steps": {"validation_split": 0.5, "validation_batch_size": 4, "validation_steps": 3},
    "arrays": {"validation_data": HELD_OUT[:2]},
    "weights": SMALL,
    "steps": {**SMALL, "validation_steps": 2},
    "too many steps": {**SMALL, "validation_steps": 20},
    "frequency": {**SMALL, "validation_freq": 2},
    "epochs": {**SMALL, "validation_freq": [1, 3], "validation_steps": 1},
    "later": {**SMALL, "validation_freq": 2, "initial_epoch": 1},
    "dataset": {"validation_data": "dataset", "validation_steps": 3},
    "generator": {"validation_data": "generator", "validation_steps": 3},
}


def compiled(model: Any, rate: float) -> Any:
    model.compile(keras.optimizers.SGD(rate), "mse", weighted_metrics=["mae"])
    return model


def plain() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def data(of: Any) -> Any:
    if of == "dataset":
        return Dataset.from_tensor_slices(HELD_OUT[:2]).batch(7)
    return Dataset.from_generator(lambda: batches(7)) if of == "generator" else of


ASYNC = pytest.param(psnb.Async(), marks=pytest.mark.second_tier("another mode"))


@pytest.mark.parametrize("mode", [psnb.Sync(1), ASYNC], ids=str)
def test_validation_is_keras_to_the_batch(cluster: Client, mode: Any) -> None:
    # Nothing learns where the order of steps is open.
    rate = 0.05 if isinstance(mode, psnb.Sync) else 0.0
    common = {"epochs": 3, "batch_size": 16, "shuffle": False, "verbose": 0}
    with psnb.ParameterServerStrategy(cluster, mode=mode) as strategy:
        model = compiled(psnb.keras.distribute(plain(), strategy), rate)
        start, alone = model.get_weights(), compiled(plain(), rate)
        for what, given in CASES.items():
            model.set_weights(start)
            alone.set_weights(start)
            validation = given.get("validation_data")
            of_keras = Sequence() if isinstance(validation, str) else validation
            expected = alone.fit(X, Y, **common, **{**given, "validation_data": of_keras}).history
            own = {**given, "validation_data": data(validation)}
            found = model.fit(X, Y, **common, **own).history
            names = [name for name in expected if name.startswith("val_")]
            assert names, what
            for name in names:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=what)


def test_evaluate_takes_the_first_batches(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = compiled(psnb.keras.distribute(plain(), strategy), 0.1)
        found = model.evaluate(*HELD_OUT[:2], batch_size=7, steps=2, verbose=0)
        alone = compiled(plain(), 0.1)
        expected = alone.evaluate(*HELD_OUT[:2], batch_size=7, steps=2, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_callback_ends_an_evaluation(cluster: Client) -> None:
    class Once(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_evaluating = True

    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(1)) as strategy:
        model = compiled(psnb.keras.distribute(plain(), strategy), 0.1)
        model.evaluate(data("dataset").repeat(), steps=10_000, verbose=0, callbacks=[Once()])
        assert psnb.ClusterCoordinator(strategy).statistics().completed < 5_000


class Unused(keras.layers.Layer):
    """Has a weight that it does not use: of which torch has no gradient, and JAX one of zeros."""

    def build(self, shape: Any) -> None:
        self.used = self.add_weight(shape=(3,), initializer="ones", name="used")
        self.idle = self.add_weight(shape=(3,), initializer="ones", name="idle")

    def call(self, x: Any) -> Any:
        return x * self.used


@pytest.mark.second_tier("the validation beside Keras's is in the first tier")
def test_a_weight_that_is_not_used_is_as_keras_leaves_it(cluster: Client) -> None:
    def made() -> keras.Model:
        x = keras.Input((3,))
        return keras.Model(x, keras.layers.Dense(1)(Unused()(x)))

    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(1)) as strategy:
        keras.utils.set_random_seed(1)
        alone = made()
        keras.utils.set_random_seed(1)
        model = psnb.keras.distribute(made(), strategy)
        for each in (alone, model):
            each.compile(keras.optimizers.AdamW(0.05, weight_decay=0.1), "mse")
            each.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        for one, other in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_freezing_after_distribute_is_refused(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = compiled(psnb.keras.distribute(of := plain(), strategy), 0.1)
        of.layers[0].trainable = False
        with pytest.raises(ConfigurationError, match="undistributed"):
            model.fit(X, Y, verbose=0)
