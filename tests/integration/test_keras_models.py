"""Keras models on a real cluster: the numbers of Keras alone, its callbacks and its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from distributed import Client

import psnb
import psnb.keras
from tests.integration import wide_and_deep as wd

pytestmark = [
    pytest.mark.slow,
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


def model() -> Any:
    """A wide & deep net with 26 tables, whose ids are columns of one input."""
    keras.utils.set_random_seed(0)
    ids, x = keras.Input((24,), dtype="int32", name="ids"), keras.Input((wd.DENSE,), name="x")
    columns = [
        keras.layers.Embedding(wd.ROWS, wd.DIM, name=name)(ids[:, number])
        for number, name in enumerate(wd.COLUMNS)
    ]
    words = keras.layers.GlobalAveragePooling1D()(
        keras.layers.Embedding(wd.ROWS, wd.DIM, name="words")(ids)
    )
    wide = keras.layers.Flatten()(keras.layers.Embedding(wd.ROWS, 1, name="wide")(ids))
    hidden = keras.layers.Concatenate()([*columns, words, x])
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dense(wd.HIDDEN, activation="relu", kernel_regularizer="l2")(hidden)
    logit = keras.layers.Add()([keras.layers.Dense(1)(hidden), keras.layers.Dense(1)(wide)])
    return keras.Model([ids, x], keras.layers.Activation("sigmoid")(logit))


def data(steps: int = 20) -> tuple[Any, np.ndarray]:
    batches = wd.batches(steps)
    ids, x, y = (np.concatenate([each[name] for each in batches]) for name in ("ids", "x", "y"))
    return {"ids": ids, "x": x}, y[:, None]


def adagrad() -> Any:
    return keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.1, epsilon=1e-7)


def test_rounds_are_steps_of_keras_alone(whole: Client) -> None:
    # Leases say which batch comes when, and at the end of an epoch a round may have one closure
    # with data: so all batches are the same, and a round has one closure.
    batch = {name: each[: wd.HALF] for name, each in data()[0].items()}, data()[1][: wd.HALF]
    rounds = 25
    x, y = keras.tree.map_structure(lambda each: np.concatenate([each] * rounds), batch)
    options = {"loss": "binary_crossentropy", "metrics": [keras.metrics.AUC(name="auc")]}
    alone = model()
    alone.compile(adagrad(), **options)
    expected = alone.fit(x, y, batch_size=wd.HALF, epochs=2, shuffle=False, verbose=0)
    with psnb.ParameterServerStrategy(whole, mode=psnb.Sync(1)) as strategy:
        found = psnb.keras.distribute(model(), strategy)
        options["metrics"] = [keras.metrics.AUC(name="auc")]
        found.compile(adagrad(), **options)
        batches = keras.tree.map_structure(lambda each: np.stack([each] * rounds), batch)
        history = found.fit(psnb.data.Dataset.from_tensor_slices(batches), epochs=2, verbose=0)
        weights = found.get_weights()
    assert history.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-4, err_msg=name)
    for value, other in zip(weights, alone.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-5)


def test_fit_drives_callbacks_and_saves_a_plain_file(whole: Client, tmp_path: Path) -> None:
    x, y = data()
    held_out = {name: each[:100] for name, each in x.items()}, y[:100]
    with psnb.ParameterServerStrategy(whole) as strategy:
        found = psnb.keras.distribute(model(), strategy, sparse=psnb.Adagrad(0.1))
        found.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
        stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0)
        history = found.fit(
            x,
            y,
            batch_size=24,
            epochs=5,
            validation_data=held_out,
            callbacks=[stop],
            verbose=0,
            class_weight={0: 1.0, 1: 2.0},
        )
        assert len(history.history["loss"]) == 2
        assert set(history.history) == {"loss", "auc", "val_loss", "val_auc"}
        predicted = found.predict(held_out[0], batch_size=40)
        evaluated = found.evaluate(*held_out, batch_size=50, return_dict=True)
        found.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(plain.predict(held_out[0], verbose=0), predicted, rtol=1e-5)
    plain.compile(loss="binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    expected = plain.evaluate(*held_out, batch_size=50, return_dict=True, verbose=0)
    assert evaluated == pytest.approx(expected, rel=1e-4)
