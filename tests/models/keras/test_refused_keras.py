"""What Keras models on servers refuse, with the backend that Keras has."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

import psnb.keras
from psnb import SGD, ExponentialDecay
from psnb._src.models.keras.data import with_class_weights
from psnb._src.models.keras.split import split
from psnb.data import Ragged
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.models.keras import nets
from tests.models.placing import InProcessStrategy

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


def test_class_weights_are_for_one_output() -> None:
    weights = partial(with_class_weights, {1: 3.0})
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
    with pytest.raises(InvalidArrayError, match=r"is frozen.*distribute the model with the other"):
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
    with pytest.raises(
        ConfigurationError, match=r"'x' takes numbers, and found text: psnb\.hash_ids"
    ):
        found.predict({**x, "x": np.full((nets.SIZE, 3), "a")})

    with pytest.raises(ConfigurationError, match=r"has 2 inputs, \['ids', 'x'\]; a batch has 3"):
        found.predict([x["ids"], x["x"], x["x"]])


def test_rows_of_another_shape_change_nothing() -> None:
    found = nets.compiled(nets.plain())
    weights = found.read()
    wrong = [e[:-1] if e.shape == (nets.ROWS, 2) else e + 1 for e in weights]
    with pytest.raises(InvalidArrayError, match=r"'words' has shape \(9, 2\), found \(8, 2\)"):
        found.write(wrong)
    for value, other in zip(found.read(), weights, strict=True):
        np.testing.assert_array_equal(value, other)


def test_models_whose_steps_workers_would_not_run_are_refused() -> None:
    class OwnStep(keras.Model):
        def train_step(self, *arguments: Any) -> Any:
            return super().train_step(*arguments)

    x = keras.Input((3,))
    with pytest.raises(ConfigurationError, match="OwnStep has its own train_step, which workers"):
        split(OwnStep(x, keras.layers.Dense(1)(x)))


def test_embeddings_with_lora_weights_are_refused() -> None:
    ids = keras.Input((2,), dtype="int32")
    layer = keras.layers.Embedding(9, 4, name="words")
    model = keras.Model(ids, layer(ids))
    layer.enable_lora(2)
    with pytest.raises(ConfigurationError, match="embedding 'words' is quantized or has LoRA"):
        split(model)


class Scores(keras.layers.Layer):
    """A layer that computes with the weight of another one, which it was given."""

    def __init__(self, of: Any, **options: Any) -> None:
        super().__init__(**options)
        self.of = of

    def call(self, x: Any) -> Any:
        return x @ keras.ops.transpose(self.of.weights[0])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "of": keras.saving.serialize_keras_object(self.of)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(keras.saving.deserialize_keras_object(config.pop("of")), **config)


@pytest.mark.parametrize("kind", ["Embedding", "Dense"])
def test_a_layer_that_was_given_to_another_one_is_refused(kind: str) -> None:
    x = keras.Input((4,))
    if kind == "Dense":
        given = keras.layers.Dense(4, use_bias=False, name="given")
        hidden = given(x)
    else:
        given = keras.layers.Embedding(9, 4, name="given")
        hidden = keras.layers.GlobalAveragePooling1D()(given(x))
    with pytest.raises(ConfigurationError, match=r"'given' and 'scores' share.*call it twice"):
        split(keras.Model(x, Scores(given, name="scores")(hidden)))


class Words(keras.layers.Layer):
    """A layer that is called twice: for rows of its weight, and for scores of all of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows = self.add_weight(shape=(9, 4), initializer="normal", name="rows")

    def call(self, x: Any, scores: bool = False) -> Any:
        if scores:
            return x @ keras.ops.transpose(self.rows)
        return keras.ops.take(self.rows, keras.ops.cast(x, "int32"), axis=0)


def test_one_layer_in_the_place_of_both_learns_what_it_learns_in_keras_alone() -> None:
    x, words = keras.Input((3,), dtype="int32"), Words(name="words")
    mean = keras.layers.GlobalAveragePooling1D()(words(x))
    alone = keras.Model(x, words(mean * 10, scores=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = nets.compiled(alone, keras.optimizers.SGD(0.5), loss=loss)
    alone.compile(keras.optimizers.SGD(0.5), loss)
    batch = np.arange(9, dtype=np.int32)[:, None].repeat(3, 1), np.arange(9)
    metrics = found.metrics("metrics", batch).variable
    for _ in range(5):
        loss, _ = found.program.train(batch, metrics, False)
        assert loss == pytest.approx(alone.train_on_batch(*batch), rel=1e-4)
    for value, other in zip(found.read(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)


def test_modules_of_torch_are_for_psnb_torch() -> None:
    class TorchModuleWrapper(keras.layers.Layer):
        """As Keras calls the layer that it makes of a module."""

        def call(self, x: Any) -> Any:
            return x

    x = keras.Input((3,))
    with pytest.raises(ConfigurationError, match=r"'wrapped' is a module of torch.*psnb\.torch"):
        split(keras.Model(x, TorchModuleWrapper(name="wrapped")(x)))


def test_a_rate_that_follows_a_schedule_is_not_one_that_callbacks_set() -> None:
    found = nets.compiled(nets.plain(), SGD(ExponentialDecay(0.5, 10, 0.5)))
    with pytest.raises(ConfigurationError, match="learning rate follows ExponentialDecay"):
        _ = found.optimizer.learning_rate


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
    with pytest.raises(ConfigurationError, match=r"changes \['counting/calls'\], which are not"):
        found.metrics("metrics", (np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)))


class Clipping(keras.layers.Dense):
    """Writes to what learns."""

    def call(self, x: Any) -> Any:
        self.kernel.assign(keras.ops.clip(self.kernel, -1, 1))
        return super().call(x)


def test_weights_that_a_step_assigns_are_refused() -> None:
    x = keras.Input((3,), name="x")
    found = nets.compiled(keras.Model(x, Clipping(1, name="clipping")(x)), loss="mse")
    with pytest.raises(ConfigurationError, match=r"assigns to \['clipping/kernel'\], which learn"):
        found.metrics("metrics", (np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)))


def test_a_gradient_that_is_not_finite_where_the_loss_is_ends_nothing_quietly() -> None:
    x = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(1, kernel_initializer="zeros")(x)
    model = keras.Model(x, keras.layers.Lambda(keras.ops.sqrt)(hidden))
    found = nets.compiled(model, loss="mse")
    batch = np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)
    metrics = found.metrics("metrics", batch).variable
    with pytest.raises(InvalidArrayError):
        found.program.train(batch, metrics, True)
    assert not metrics.read().any()


class Regularized(keras.losses.Loss):
    """A loss that holds what it penalises."""

    def __init__(self, penalised: Any) -> None:
        super().__init__()
        self.penalised = penalised

    def call(self, y: Any, found: Any) -> Any:
        return keras.ops.mean((y - found) ** 2) + sum(
            keras.ops.sum(each**2) for each in self.penalised
        )


def test_a_loss_or_metric_that_refers_to_the_model_is_refused_by_name() -> None:
    model = nets.plain()
    dense = model.layers[-1]

    def penalty(y: Any, found: Any) -> Any:
        return keras.ops.mean((y - found) ** 2) + keras.ops.sum(dense.kernel**2)

    def of_all(y: Any, found: Any) -> Any:
        return sum(keras.ops.sum(each**2) for each in model.trainable_weights)

    for compiled, message in (
        ({"loss": penalty}, f"loss= uses layer '{dense.name}' besides the model.*add_loss"),
        ({"loss": "mse", "metrics": [of_all]}, "metrics= uses the model itself"),
        ({"loss": Regularized(model.weights[1:])}, "loss= uses weight 'dense"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            nets.compiled(model, **compiled)


def test_a_layer_that_refers_to_another_one_beside_the_graph_is_refused_by_name() -> None:
    x = keras.Input((3,))
    dense = keras.layers.Dense(2)

    def use(h: Any, of: Any) -> Any:
        return h @ keras.ops.transpose(of[0].kernel)

    def tied(function: Any, **options: Any) -> Any:
        return keras.layers.Lambda(function, output_shape=(3,), name="tied", **options)

    for layer in (tied(lambda h: use(h, [dense])), tied(use, arguments={"of": [dense]})):
        with pytest.raises(
            ConfigurationError, match=r"layers? .*'tied' .*weight|'tied' uses layer 'dense"
        ):
            split(keras.Model(x, layer(dense(x))))


def test_two_classes_of_one_name_are_refused() -> None:
    def scaled() -> Any:
        class Scaled(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                return 2 * x

        return Scaled()

    model = keras.Sequential([keras.Input((3,)), scaled(), scaled(), keras.layers.Dense(1)])
    with pytest.raises(ConfigurationError, match=r"two classes.* called 'Scaled'.*package="):
        split(model)


class Forgetful(keras.layers.Layer):
    """Its config has no units."""

    def __init__(self, units: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.units = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units))

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, self.kernel)

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


def test_a_layer_whose_config_makes_other_weights_is_refused() -> None:
    layer = Forgetful(2, name="forgetful")
    with pytest.raises(
        ConfigurationError, match=r"'forgetful' has weights of shapes \[\(3, 2\)\].*\[\(3, 1\)\]"
    ):
        split(keras.Sequential([keras.Input((3,)), layer]))


class Late(Forgetful):
    """Has other weights where a saved config builds it."""

    def build_from_config(self, config: dict[str, Any]) -> None:
        self.units = 2
        super().build_from_config(config)


def test_a_model_that_is_made_again_with_other_weights_is_refused() -> None:
    network = nets.compiled(
        keras.Sequential([keras.Input((3,)), Late()]), loss="mse"
    ).program.network
    with pytest.raises(
        ConfigurationError, match=r"makes has weights of shapes \[\(3, 2\)\], where"
    ):
        pickle.loads(cloudpickle.dumps(network))


def test_stateful_layers_are_refused_by_name() -> None:
    layer = keras.layers.Bidirectional(keras.layers.LSTM(4, stateful=True), name="both")
    model = keras.Sequential([keras.Input(batch_shape=(16, 6, 3)), layer, keras.layers.Dense(1)])
    with pytest.raises(ConfigurationError, match=r"layer 'both' is stateful.*stateful=False"):
        split(model)


def test_arguments_in_the_wrong_order_are_refused() -> None:
    strategy = InProcessStrategy()
    with pytest.raises(
        ConfigurationError,
        match=r"psnb\.keras\.distribute: model must be a keras\.Model, found InPr",
    ):
        psnb.keras.distribute(strategy, nets.frozen())  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError,
        match=r"keras\.distribute: strategy must be a psnb\.ParameterServerStrategy, found Func",
    ):
        psnb.keras.distribute(nets.frozen(), nets.frozen())  # type: ignore[arg-type]
