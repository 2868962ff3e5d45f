"""Keras models on a real cluster: the numbers of Keras alone; its callbacks, files.

For the backend that Keras has in this process; `test_keras_torch` runs them with torch.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from traceback import format_exception
from typing import Any

import keras
import numpy as np
import pytest
from distributed import Client

import psnb
import psnb.keras
from psnb.errors import ConfigurationError, IdOutOfRangeError
from tests.integration.models import wide_and_deep as wd
from tests.models.keras import nets

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]

PADDED = 4
"""Words of an example, with 0 where there is none."""


@pytest.fixture
def apart(whole: Client) -> Client:
    """Processes that have another backend by default: models bring theirs along."""
    other = {"jax": "torch", "torch": "jax"}[keras.backend.backend()]
    whole.run(os.environ.update, {"KERAS_BACKEND": other})
    return whole


def model() -> Any:
    """A wide & deep net with 26 tables, whose ids are columns of one input; ``words`` are bags."""
    keras.utils.set_random_seed(0)
    count = len(wd.COLUMNS)
    ids, x = keras.Input((count,), dtype="int32", name="ids"), keras.Input((wd.DENSE,), name="x")
    bags = keras.Input((PADDED,), dtype="int32", name="bags")
    columns = [
        keras.layers.Embedding(wd.ROWS, wd.DIM, name=name)(ids[:, number])
        for number, name in enumerate(wd.COLUMNS)
    ]
    words = keras.layers.Embedding(wd.ROWS + 1, wd.DIM, mask_zero=True, name="words")(bags)
    mean = keras.layers.GlobalAveragePooling1D()(words)
    wide = keras.layers.Flatten()(keras.layers.Embedding(wd.ROWS, 1, name="wide")(ids))
    hidden = keras.layers.Concatenate()([*columns, mean, x])
    hidden = keras.layers.Dense(wd.HIDDEN, "relu", kernel_regularizer="l2", name="first")(hidden)
    logit = keras.layers.Add()(
        [keras.layers.Dense(1, name=name)(x) for name, x in (("last", hidden), ("linear", wide))]
    )
    return keras.Model([ids, bags, x], keras.layers.Activation("sigmoid")(logit))


def data(steps: int = wd.STEPS) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the batches of all rounds, one after another."""
    batches = wd.batches(steps)
    ids, x, y = (np.concatenate([each[name] for each in batches]) for name in ("ids", "x", "y"))
    # Without a word, Keras's mean is 0 / 0.
    rows = [row + 1 if len(row) else np.ones(1, int) for each in batches for row in each["words"]]
    words = np.concatenate([np.pad(row, (0, PADDED - len(row))) for row in rows])
    given = {"ids": ids, "bags": words.reshape(-1, PADDED).astype(np.int32), "x": x}
    return given, y[:, None]


def adagrad() -> Any:
    return keras.optimizers.Adagrad(wd.SPARSE_RATE, initial_accumulator_value=0.1)


def options() -> dict[str, Any]:
    return {"loss": "binary_crossentropy", "metrics": [keras.metrics.AUC(name="auc")]}


@cache
def alone() -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
    """Train with Keras in this process, on the joined batches of each round."""
    found = model()
    found.compile(adagrad(), **options())
    x, y = data()
    history = found.fit(x, y, batch_size=2 * wd.HALF, epochs=1, shuffle=False, verbose=0)
    return history.history, named(found, found.get_weights())


def named(plain: Any, weights: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights by name: another layer may give them another order."""
    return {each.path: value for each, value in zip(plain.weights, weights, strict=True)}


def fitted(client: Client) -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
    """Train with rounds of two batches on two workers and two servers."""
    with wd.synchronous(client) as strategy:
        plain = model()
        found = psnb.keras.distribute(plain, strategy)
        found.compile(adagrad(), **options())
        assert "26 tables" in repr(found)
        x, y = data()
        history = found.fit(x, y, batch_size=wd.HALF, shuffle=False, verbose=0)
        return history.history, named(plain, found.get_weights())


def assert_as_alone(history: dict[str, list[float]], weights: dict[str, np.ndarray]) -> None:
    expected_history, expected = alone()
    assert history.keys() == expected_history.keys()
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
    wd.assert_close(weights, expected)


@pytest.mark.second_tier("without processes: tests/models; in them: torch's")
def test_fifty_rounds_are_fifty_steps_of_keras_alone(apart: Client) -> None:
    assert_as_alone(*fitted(apart))


class Recorder(keras.callbacks.Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.logs: list[dict[str, Any]] = []
        self.begun: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.begun.append("train")

    def on_test_begin(self, logs: Any = None) -> None:
        self.begun.append("test")

    def on_predict_begin(self, logs: Any = None) -> None:
        self.begun.append("predict")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)
        self.logs.append(dict(logs))


@pytest.fixture
def small(cluster: Client) -> Iterator[psnb.keras.DistributedKeras]:
    """A small model on servers, compiled."""
    keras.utils.set_random_seed(0)
    with psnb.ParameterServerStrategy(cluster) as strategy:
        found = psnb.keras.distribute(nets.normalized(), strategy)
        # Of probabilities that are NaN, torch itself makes no cross-entropy.
        found.compile(keras.optimizers.Adam(0.01), **{**options(), "loss": "mse"})
        yield found


def test_fit_has_keras_parameters_drives_callbacks_and_saves_a_plain_file(
    small: psnb.keras.DistributedKeras,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = nets.joined(nets.data(steps=20))
    recorder = Recorder()
    history = small.fit(
        x,
        y,
        batch_size=24,
        epochs=4,
        initial_epoch=1,
        validation_split=0.2,
        validation_freq=2,
        validation_batch_size=40,
        callbacks=[recorder, keras.callbacks.CSVLogger(tmp_path / "log.csv")],
        class_weight={0: 1.0, 1: 2.0},
        verbose=2,
    )
    assert recorder.batches == [*range(8)] * 3
    assert recorder.logs[-1].keys() >= {"loss"}
    assert recorder.begun == ["train", "test", "test"]
    assert len(history.history["loss"]) == 3
    assert len(history.history["val_loss"]) == 2
    assert set(history.history) == {"loss", "auc", "val_loss", "val_auc"}
    assert "Epoch 4/4" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]

    predicted = small.predict(x, batch_size=50, verbose=0, callbacks=[recorder])
    assert recorder.begun[-1] == "predict"
    evaluated = small.evaluate(x, y, batch_size=50, return_dict=True, verbose=0)
    monkeypatch.setenv("HOME", str(tmp_path))
    small.save("~/model.keras")
    small.save_weights("~/model.weights.h5")
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer 'adam"):
        plain = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(plain.predict(x, verbose=0), predicted, rtol=1e-4, atol=1e-6)
    expected = plain.evaluate(x, y, batch_size=50, return_dict=True, verbose=0)
    assert evaluated == pytest.approx(expected, rel=1e-4)

    small.set_weights([each * 0 for each in small.get_weights()])
    small.load_weights("~/model.weights.h5")
    again = small.predict(x, batch_size=50, verbose=0)
    np.testing.assert_allclose(again, predicted, rtol=1e-5, atol=1e-6)


def test_views_have_the_epochs_of_fit_and_its_validation_beside_its_metrics(
    small: psnb.keras.DistributedKeras,
) -> None:
    x, y = nets.joined(nets.data(steps=20))
    coordinator, found = small._coordinator, []

    class Watching(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            found.append(coordinator.statistics().training)

    recorder = Watching()
    history = small.fit(x, y, batch_size=24, epochs=2, validation_split=0.2, callbacks=[recorder])
    where = [(each.epoch, each.epochs, each.batch, each.batches) for each in found]
    assert where == [(epoch, 2, batch, 8) for epoch in (1, 2) for batch in range(1, 9)]
    left = found[-1].left
    assert left is not None
    assert left > 0.0  # the validation of the last epoch, as long as that of the first
    charted = coordinator.history()
    assert charted["auc"]["value"].tolist() == history.history["auc"]
    assert charted["val_loss"]["value"].tolist() == history.history["val_loss"]
    assert charted["val_loss"]["step"].tolist() == [8, 16]
    assert charted["val_auc"]["step"].tolist() == [8, 16]


def test_an_epoch_of_fit_that_hardly_moves_rows_is_said(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = psnb.keras.distribute(nets.plain(), strategy)
        model.compile(keras.optimizers.SGD(1e-9), "mse")
        x, y = nets.joined(nets.data(steps=110))
        model.fit(x, y, batch_size=nets.SIZE, verbose=0)
        events = psnb.ClusterCoordinator(strategy).events()
    assert [each.kind for each in events].count(psnb.EventKind.ROWS_UNMOVED) == 1


def test_datasets_steps_and_what_is_refused(small: psnb.keras.DistributedKeras) -> None:
    x, y = nets.joined(nets.data(steps=20))
    dataset = psnb.data.Dataset.from_tensor_slices((x, y)).batch(24)
    recorder = Recorder()
    small.fit(dataset, epochs=3, steps_per_epoch=3, callbacks=[recorder], verbose=0)
    assert recorder.batches == [*range(3)] * 3
    loss, auc = small.evaluate(dataset, verbose=0)
    assert loss > 0 <= auc <= 1
    assert len(small.evaluate(dataset, steps=2, verbose=0)) == 2
    whole = small.predict(dataset, verbose=0)
    np.testing.assert_allclose(whole, small.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    assert len(small.predict(dataset, steps=2, verbose=0)) == 48
    # It cannot be cut into parts.
    small.fit(dataset.repeat(), epochs=2, steps_per_epoch=3, callbacks=[recorder], verbose=0)
    assert recorder.batches[-6:] == [*range(3)] * 2
    with pytest.raises(ConfigurationError, match="leave y and"):
        small.fit(dataset, y)
    with pytest.raises(ConfigurationError, match="dataset has no end"):
        small.predict(dataset.repeat())
    with pytest.raises(ConfigurationError, match="CheckpointManager"):
        small.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore("folder")])
    with pytest.raises(ConfigurationError, match="is compiled"):
        small.compile()
    with pytest.raises(ConfigurationError, match="different numbers of examples"):
        small.fit(x, y[:5])
    with pytest.raises(ConfigurationError, match=r"a tuple of 1: are the targets, y, missing"):
        small.fit(x)
    with pytest.raises(ConfigurationError, match=r"validation_data is \(x, y\).*found ndarray"):
        small.fit(x, y, validation_data=y)
    with pytest.raises(ConfigurationError, match=r"of a dataset, dataset.take"):
        small.fit(dataset, validation_split=0.5)
    with pytest.raises(
        ConfigurationError, match=r"validation_split=1.0 of 240 examples leaves none"
    ):
        small.fit(x, y, validation_split=1.0)
    with pytest.raises(ConfigurationError, match=r"x must be arrays.*found generator"):
        small.fit(each for each in [(x, y)])
    with pytest.raises(ConfigurationError, match="there is no batch in the data"):
        small.evaluate(dataset.filter(lambda x, y: False))
    with pytest.raises(ConfigurationError, match="predict: there is no batch"):
        small.predict(dataset.take(0))


def test_an_error_of_a_worker_says_in_which_of_keras_calls(
    small: psnb.keras.DistributedKeras,
) -> None:
    x, y = nets.joined(nets.data(steps=2))
    for call in (small.fit, small.evaluate):
        with pytest.raises(IdOutOfRangeError) as raised:
            call(x | {"ids": x["ids"] + 10**6}, y)
        assert f"in closure step of {call.__name__}(" in "".join(format_exception(raised.value))


def test_lists_are_several_inputs_as_in_keras(small: psnb.keras.DistributedKeras) -> None:
    x, y = nets.joined(nets.data(steps=2))
    given = [x["ids"], x["x"]]
    assert len(small.fit(given, y, verbose=0).history["loss"]) == 1
    np.testing.assert_array_equal(small.predict(given, verbose=0), small.predict(x, verbose=0))
    assert small.evaluate(given, y, verbose=0) == small.evaluate(x, y, verbose=0)


def test_counts_that_are_none_are_refused_by_name(small: psnb.keras.DistributedKeras) -> None:
    x, y = nets.joined(nets.data(steps=2))
    with pytest.raises(ConfigurationError, match="fit: epochs must be 0 or more and whole"):
        small.fit(x, y, epochs=y)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="fit: steps_per_epoch must be 1 or more"):
        small.fit(x, y, steps_per_epoch=0)
    with pytest.raises(ConfigurationError, match="evaluate: batch_size must be 1 or more"):
        small.evaluate(x, y, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="predict: steps must be 1 or more"):
        small.predict(x, steps=-1)


def test_a_model_must_be_compiled_first(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        found = psnb.keras.distribute(nets.plain(), strategy)
        with pytest.raises(ConfigurationError, match="steps_per_execution=8"):
            found.compile(loss="mse", steps_per_execution=8)
        with pytest.raises(ConfigurationError, match="must be compiled first"):
            found.predict(np.zeros((1, 3)))


def test_what_a_distributed_model_lacks_its_undistributed_copy_has(
    small: psnb.keras.DistributedKeras,
) -> None:
    small.set_weights([each + 1 for each in small.get_weights()])
    with pytest.raises(AttributeError, match=r"undistributed\(\) returns.*has 'to_json'"):
        small.to_json()
    with pytest.raises(
        AttributeError, match=r"^'DistributedKeras' object has no attribute 'other'$"
    ):
        _ = small.other
    rows = small.undistributed().get_layer("words").get_weights()[0]
    assert any(np.array_equal(rows, each) for each in small.get_weights())


def test_a_summary_is_that_of_the_undistributed_model(small: psnb.keras.DistributedKeras) -> None:
    lines: list[str] = []
    small.summary(print_fn=lambda text, **_: lines.append(text))
    assert "words (Embedding)" in "".join(lines)


def test_layers_have_the_values_of_now(cluster: Client) -> None:
    ids = keras.Input((4,), dtype="int32", name="ids")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(9, 2, name="words")(ids))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.5)(hidden))
    model = keras.Model(ids, keras.layers.Dense(1, name="last")(hidden))
    with psnb.ParameterServerStrategy(cluster) as strategy:
        found = psnb.keras.distribute(model, strategy)
        found.compile("sgd", "mse")
        found.set_weights([each + 1 for each in found.get_weights()])
        plain = found.undistributed()
        assert [each.name for each in found.layers] == [each.name for each in plain.layers]
        for layer, other in zip(found.layers, plain.layers, strict=True):
            # Those of dropout are seeds, and no weights.
            assert len(layer.variables) == len(other.variables)
            for value, expected in zip(layer.get_weights(), other.get_weights(), strict=True):
                np.testing.assert_array_equal(value, expected)
        rows = found.get_layer("words").embeddings
        np.testing.assert_array_equal(rows, plain.get_layer("words").get_weights()[0])


def test_a_step_is_described_before_there_is_one(small: psnb.keras.DistributedKeras) -> None:
    told = small.describe(nets.data()[0])
    assert (told[0].name, told[-1].name) == ("pull", "push")


@pytest.mark.second_tier("Keras's callbacks are in the first tier in test_keras_callbacks.py")
def test_callbacks_steer_restore_and_stop(
    small: psnb.keras.DistributedKeras, tmp_path: Path
) -> None:
    x, y = nets.joined(nets.data(steps=10))
    kept: list[list[np.ndarray]] = []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: kept.append(small.get_weights())
    )
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.02 / (epoch + 1))
    # No epoch is better than the first one by so much.
    stop = keras.callbacks.EarlyStopping(
        "loss", patience=1, min_delta=10.0, restore_best_weights=True
    )
    best = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}.weights.h5", "loss", save_weights_only=True
    )
    history = small.fit(
        x, y, 24, epochs=9, verbose=0, callbacks=[keep, schedule, stop, best], shuffle=False
    )
    assert history.history["learning_rate"] == pytest.approx([0.02, 0.01])
    for value, other in zip(small.get_weights(), kept[0], strict=True):
        np.testing.assert_array_equal(value, other)
    assert {each.name for each in tmp_path.iterdir()} == {"1.weights.h5", "2.weights.h5"}

    plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=10.0)
    before = small.optimizer.learning_rate
    small.fit(x, y, 24, epochs=2, verbose=0, callbacks=[plateau])
    assert small.optimizer.learning_rate == pytest.approx(before / 2)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1

    recorder = Recorder()
    small.fit(x, y, 4, epochs=5, verbose=0, callbacks=[Stop(), recorder])
    assert recorder.batches == [0, 1]

    x["x"][50] = np.nan
    weights = small.get_weights()
    with pytest.raises(ValueError, match="loss is nan"):
        small.fit(x, y, len(y), verbose=0)
    ended = small.fit(
        x, y, len(y), epochs=5, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()]
    )
    assert len(ended.history["loss"]) == 1
    for value, other in zip(small.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(value, other)
