"""Tests of Keras models on servers in this process, for the backend that Keras has."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

from psnb import Adagrad
from psnb._src.models import keras_backend
from psnb._src.models.keras.compiled import CompiledModel, program
from psnb._src.models.keras.split import plain_copy, split
from psnb._src.worker.context import WorkerContext, entered
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError, SerializationError
from tests.models.keras import nets
from tests.models.placing import InProcessStrategy

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer 'flatten:UserWarning"),
    # Of Keras with JAX, which has no 64-bit integers unless told.
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


@pytest.mark.parametrize("name", nets.NAMES)
def test_a_model_learns_what_it_learns_in_keras_alone(name: str) -> None:
    keras.utils.set_random_seed(0)
    alone = nets.ALL[name]()
    outputs = ("first", "second") if name in nets.TWO_OUTPUTS else ()
    batches = nets.data(outputs)
    options: dict[str, Any] = {"loss": "binary_crossentropy", "metrics": ["mae"]}
    if outputs:
        options = {"loss": {"first": "binary_crossentropy", "second": "mse"}}
        options["metrics"] = {"first": ["mae"], "second": ["mae"]}
    found = nets.compiled(alone, keras.optimizers.SGD(0.5), **options)
    alone.compile(keras.optimizers.SGD(0.5), **options)
    x, y = nets.joined(batches)
    expected = alone.fit(x, y, batch_size=nets.SIZE, shuffle=False, verbose=0).history
    logs = nets.trained(found, batches)
    weights = found.read()
    assert [each.shape for each in weights] == [each.shape for each in alone.get_weights()]
    for value, other in zip(weights, alone.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
    assert logs.keys() == expected.keys()
    for metric, (value,) in expected.items():
        assert logs[metric] == pytest.approx(value, rel=1e-4), metric
    given = {name: each[:5] for name, each in x.items()}
    keras.tree.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5),
        found.program.predict(given),
        alone.predict(given, verbose=0),
    )


def test_weights_of_examples_and_outputs_count_as_in_keras() -> None:
    keras.utils.set_random_seed(0)
    alone = nets.several_outputs()
    outputs = ("first", "second")
    weights = np.random.default_rng(2).uniform(0, 3, nets.SIZE).astype(np.float32)
    batches = [(x, y, dict.fromkeys(outputs, weights)) for x, y in nets.data(outputs)]
    options: dict[str, Any] = {
        "loss": {"first": "binary_crossentropy", "second": "mse"},
        "loss_weights": {"first": 0.5, "second": 2.0},
        "metrics": {"first": ["mae"]},
        "weighted_metrics": {"first": ["mse"]},
    }
    found = nets.compiled(alone, keras.optimizers.SGD(0.1), **options)
    alone.compile(keras.optimizers.SGD(0.1), **options)
    whole = nets.joined(batches)  # type: ignore[arg-type]
    x, y, w = whole  # type: ignore[misc]
    how: dict[str, Any] = {"batch_size": nets.SIZE, "shuffle": False, "verbose": 0}
    expected = alone.fit(x, y, sample_weight=w, **how).history
    logs = nets.trained(found, batches)  # type: ignore[arg-type]
    for value, other in zip(found.read(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
    assert logs == {name: pytest.approx(value, rel=1e-4) for name, (value,) in expected.items()}


def test_a_step_asks_each_server_once_and_tells_it_once() -> None:
    found = nets.compiled(nets.called_twice())
    batches = nets.data()
    nets.trained(found, batches[:2])  # torch learns from the first one where ids are
    metrics = found.metrics("metrics", batches[0])
    strategy: Any = found._strategy
    strategy.calls()
    found.program.train(batches[2], metrics.variable, False)
    # One to read; prepared on both servers, then applied; and the metrics: this is not a closure.
    assert strategy.calls() == 4


def test_a_program_comes_to_another_process_once_with_the_backend_of_the_first() -> None:
    program = nets.compiled(nets.with_lambda()).program
    pickled = cloudpickle.dumps(program)
    first, second = pickle.loads(pickled), pickle.loads(pickled)
    assert first is second
    assert keras.backend.backend().encode() in pickled
    assert type(first) is type(program)


def test_a_process_that_has_keras_with_another_backend_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Other:
        class backend:  # noqa: N801  # as Keras calls it
            backend = staticmethod(lambda: "tensorflow")

    pickled = cloudpickle.dumps(nets.compiled(nets.plain()).program)
    monkeypatch.setitem(sys.modules, "keras", Other)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"imported Keras with 'tensorflow'.*KERAS_BACKEND"
    ):
        keras_backend.unpickled(keras.backend.backend(), "another name", pickled)


def test_ids_out_of_range_fractions_and_what_is_missing_are_named() -> None:
    # Of probabilities that are NaN, torch itself makes no cross-entropy.
    found = nets.compiled(nets.plain(), loss="mse")
    (x, y), *_ = nets.data()
    metrics = found.metrics("metrics", (x, y)).variable

    def train(**changed: Any) -> None:
        given = {name: each for name, each in {**x, **changed}.items() if each is not None}
        found.program.train((given, y), metrics, False)

    before = found.read()
    with pytest.raises(IdOutOfRangeError, match=r"'model.words'"):
        train(ids=x["ids"] + nets.ROWS)
    with pytest.raises(InvalidArrayError, match=r"input 'ids' takes integers.*fractions"):
        train(ids=x["ids"] + 0.5)
    with pytest.raises(InvalidArrayError, match=r"fractions and missing values"):
        train(ids=np.where(x["ids"] == 1, np.nan, x["ids"]))
    with pytest.raises(InvalidArrayError, match=r"is of int32, and has .* to"):
        train(ids=x["ids"].astype(np.int64) + 2**40)
    with pytest.raises(ConfigurationError, match=r"lacks the inputs \['x'\].*it has \['ids'\]"):
        train(x=None)
    with pytest.raises(ConfigurationError, match=r"'x' of the model has shape \(None, 3\).*12, 2"):
        train(x=x["x"][:, :2])
    with pytest.raises(InvalidArrayError, match=r"the loss is nan.*x.*1 not finite"):
        train(x=np.where(np.arange(36).reshape(12, 3) == 7, np.nan, x["x"]))
    for value, other in zip(found.read(), before, strict=True):
        np.testing.assert_array_equal(value, other)
    with pytest.raises(ConfigurationError, match=r"tuple \(inputs, targets\)"):
        found.program.train(x, metrics, False)


def test_a_loss_that_is_not_finite_is_refused_also_where_all_gradients_are() -> None:
    def loss(y: Any, found: Any) -> Any:
        return keras.ops.mean(found) + keras.ops.mean(keras.ops.log(y))  # some are 0

    found = nets.compiled(nets.plain(), loss=loss)
    (x, y), *_ = nets.data()
    metrics = found.metrics("metrics", (x, y)).variable
    before = found.read()
    with pytest.raises(InvalidArrayError, match=r"the loss is -inf"):
        found.program.train((x, y), metrics, False)
    for value, other in zip(found.read(), before, strict=True):
        np.testing.assert_array_equal(value, other)
    assert not metrics.read().any()


def test_a_loss_that_is_not_finite_is_returned_where_a_callback_ends_there() -> None:
    found = nets.compiled(nets.plain(), loss="mse")
    (x, y), *_ = nets.data()
    metrics = found.metrics("metrics", (x, y)).variable
    bad = {**x, "x": np.full_like(x["x"], np.nan)}
    loss, examples = found.program.train((bad, y), metrics, True)
    assert np.isnan(loss)
    assert examples == nets.SIZE
    assert not metrics.read().any()


def test_what_a_layer_was_adapted_to_is_in_all_copies_of_a_model() -> None:
    x = (100 + 5 * np.random.default_rng(0).normal(size=(64, 3))).astype(np.float32)
    norm, other = keras.layers.Normalization(), keras.layers.Normalization()
    norm.adapt(x)
    other.adapt(2 * x)
    inner = keras.Sequential([keras.Input((3,)), other])
    given = keras.Input((3,))
    hidden = keras.layers.Concatenate()([norm(given), inner(2 * given)])
    model = keras.Model(given, keras.layers.Dense(1)(hidden))
    expected = model.predict(x, verbose=0)
    assert np.abs(expected).max() < 10  # those that are not normalized are large
    found = nets.compiled(model, optimizer=keras.optimizers.SGD(0.0), loss="mse")
    network = pickle.loads(cloudpickle.dumps(found.program.network))  # as on a worker
    for each in (found.program, program(network, found._values)):
        np.testing.assert_allclose(each.predict(x), expected, rtol=1e-5, atol=1e-5)
    plain = plain_copy(model, found.read())
    np.testing.assert_allclose(plain.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-5)
    y = np.ones((64, 1), np.float32)
    metrics = found.metrics("metrics", (x, y)).variable
    loss, _ = found.program.train((x, y), metrics, False)
    assert loss == pytest.approx(((expected - 1) ** 2).mean(), rel=1e-4)
    with pytest.raises(InvalidArrayError, match="distribute the model with the other value"):
        found.write([each + 1 for each in found.read()])


def test_weights_of_other_shapes_change_nothing() -> None:
    found = nets.compiled(nets.plain())
    weights = found.read()
    with pytest.raises(InvalidArrayError, match="shape"):
        found.write([np.zeros_like(weights[0]), *(each[..., :1] for each in weights[1:])])
    with pytest.raises(InvalidArrayError, match="weights, found 1"):
        found.write(weights[:1])
    for value, other in zip(found.read(), weights, strict=True):
        np.testing.assert_array_equal(value, other)
    found.write([each + 1 for each in weights])
    np.testing.assert_array_equal(found.read()[0], weights[0] + 1)


def test_a_lambda_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def locked(x: Any) -> Any:
        with lock:
            return x

    x = keras.Input((3,), name="x")
    model = keras.Sequential(
        [x, keras.layers.Lambda(locked, name="guarded"), keras.layers.Dense(1)]
    )
    with pytest.raises(SerializationError, match=r"^the function of Lambda layer 'guarded'"):
        cloudpickle.dumps(nets.compiled(model).program)


class Doubled(keras.layers.Layer):
    """A layer of the user's, which Keras does not know."""

    def call(self, x: Any) -> Any:
        return 2 * x


class Gate(keras.layers.Layer):
    """Has a layer that is built when it is called."""

    def build(self, shape: Any) -> None:
        self.inner = keras.layers.Dense(shape[-1], "sigmoid")
        self.built = True

    def call(self, x: Any) -> Any:
        return x * self.inner(x)


def local_classes() -> tuple[Any, Any]:
    """Return a layer and an initializer that no module has, as those of a notebook are."""

    class Threes(keras.initializers.Initializer):
        def __call__(self, shape: Any, dtype: Any = None) -> Any:
            return 3 * keras.ops.ones(shape, dtype)

    class Affine(keras.layers.Layer):
        def __init__(self, units: int, inner: Any = None, **options: Any) -> None:
            super().__init__(**options)
            self.units, self.inner = units, inner

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], self.units))

        def call(self, x: Any) -> Any:
            x = keras.ops.matmul(x, self.kernel)
            return x if self.inner is None else self.inner(x)

        def get_config(self) -> dict[str, Any]:
            inner = keras.saving.serialize_keras_object(self.inner)
            return {**super().get_config(), "units": self.units, "inner": inner}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            inner = keras.saving.deserialize_keras_object(config.pop("inner"))
            return cls(inner=inner, **config)

    return Affine, Threes


def of_local_classes() -> list[Any]:
    """Return layers of a notebook, one in another one, which has an initializer of the notebook."""
    affine, threes = local_classes()
    dense = keras.layers.Dense(2, kernel_initializer=threes())
    return [affine(4, affine(3, dense))]


@pytest.mark.parametrize(
    "made", [lambda: [Doubled()], lambda: [Gate()], of_local_classes], ids=["call", "built", "own"]
)
def test_layers_of_ones_own_travel(made: Callable[[], list[Any]]) -> None:
    model = keras.Sequential([keras.Input((3,), name="x"), *made(), keras.layers.Dense(1)])
    found = nets.compiled(model, loss="mse")
    keras_backend._known.clear()
    loaded = pickle.loads(cloudpickle.dumps(found.program))
    assert loaded is not found.program
    values, x = found.program.network.own_values(), np.ones((2, 3), np.float32)
    outputs = loaded.network.computed(
        values, {"x": loaded.network.inputs.arrays(x)}, training=False
    ).outputs
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(outputs), model.predict(x, verbose=0), rtol=1e-5
    )


def test_a_model_of_one_batch_size_gets_batches_of_it() -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input(batch_shape=(16, 3), name="x")
    pairs = keras.layers.Lambda(lambda x: keras.ops.sum(keras.ops.reshape(x, (8, 2, 3)), 1))(x)
    hidden = keras.layers.Concatenate()([x, keras.ops.repeat(pairs, 2, 0)])
    alone = keras.Model(x, keras.layers.Dense(1)(hidden))
    rng = np.random.default_rng(0)
    batches: Any = [(rng.normal(size=(16, 3)), rng.normal(size=(16, 1))) for _ in range(3)]
    found = nets.compiled(alone, keras.optimizers.SGD(0.1), loss="mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    alone.fit(*nets.joined(batches), batch_size=16, shuffle=False, verbose=0)
    nets.trained(found, batches)
    for value, other in zip(found.read(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_what_servers_cannot_do_is_refused() -> None:
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    ids = keras.Input((4,), dtype="int32")
    for options in ({"embeddings_regularizer": "l2"}, {"embeddings_constraint": "non_neg"}):
        model = keras.Model(ids, keras.layers.Embedding(9, 2, **options)(ids))
        with pytest.raises(ConfigurationError, match="regularizer or a constraint"):
            split(model)
    with pytest.raises(ConfigurationError, match=r"found Own, a Model.*keras.Model"):
        split(Own())
    with pytest.raises(ConfigurationError, match="not built"):
        split(keras.Sequential([keras.layers.Dense(1)]))
    bounded = keras.layers.Dense(1, kernel_constraint="non_neg")
    with pytest.raises(ConfigurationError, match="kernel' has a constraint"):
        split(keras.Sequential([keras.Input((3,)), bounded]))


class Largest(keras.metrics.Metric):
    """A metric that does not add up."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(predicted)))

    def result(self) -> Any:
        return self.most


def test_metrics_that_do_not_add_up_are_refused() -> None:
    found = nets.compiled(nets.plain(), metrics=[Largest(name="largest")])
    with pytest.raises(ConfigurationError, match=r"most.*does not add up"):
        found.metrics("metrics", nets.data()[0])


def test_setting_the_learning_rate_sets_that_of_compiles_optimizer_on_the_servers() -> None:
    found = nets.compiled(nets.plain(), keras.optimizers.SGD(0.5))
    found.optimizer.learning_rate = np.float32(0.25)
    assert found.optimizer.learning_rate == 0.25
    parameters = found._strategy.parameters
    assert parameters["model.words"].optimizer.learning_rate == 0.25  # type: ignore[union-attr]
    parts = split(nets.plain())
    given = InProcessStrategy(), "m", parts, Adagrad(0.1), Adagrad(0.1), "sgd", {"loss": "mse"}
    with pytest.raises(ConfigurationError, match="none of compile's"):
        _ = CompiledModel(*given).optimizer.learning_rate


def test_dropout_is_another_one_in_each_step_and_the_same_when_a_closure_runs_again() -> None:
    ids, x = nets.inputs()
    rows = keras.layers.Flatten()(keras.layers.Embedding(9, 2)(ids))
    dropped = keras.layers.Dropout(0.5)(keras.layers.Concatenate()([rows, x]))
    model = keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(dropped))
    found = nets.compiled(model, keras.optimizers.SGD(0.0))
    batch = nets.data()[0]
    metrics = found.metrics("metrics", batch).variable

    def loss(closure: int) -> float:
        with entered(WorkerContext(0, 1, "w", 1, lambda *_: None, closure=closure)):
            return found.program.train(batch, metrics, False)[0]

    assert loss(1) == loss(1) != loss(2)
