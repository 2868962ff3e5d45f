"""Tests of what models move beside weights, however late; servers here, for Keras's backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest

from psnb._src.client.updates import Updates, buffered
from psnb._src.models.keras.compiled import CompiledModel
from psnb._src.server.commit_log import Commit
from tests.models.keras import nets

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # Of Keras with JAX, which has no 64-bit integers unless told.
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]

MOMENTUM = 0.9


class Running(keras.layers.Layer):
    """A layer of the user's with a state of its own."""

    def build(self, shape: Any) -> None:
        self.state = self.add_weight(shape=(3,), initializer="ones", trainable=False)
        self.still = self.add_weight(shape=(2,), initializer="ones", trainable=False)

    def call(self, x: Any, training: bool | None = None) -> Any:
        if training:
            self.state.assign(0.5 * self.state + 0.5 * keras.ops.mean(x, axis=0))
        return x * self.still[0]


class Center(Running):
    """Reads what it has assigned."""

    def call(self, x: Any, training: bool | None = None) -> Any:
        super().call(x, training=training)
        return x * self.state


class Wrapped(keras.layers.Layer):
    """A layer that holds another one, and calls it twice."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.norm = keras.layers.BatchNormalization(momentum=MOMENTUM)

    def build(self, shape: Any) -> None:
        self.norm.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.norm(self.norm(x, training=training) + 1, training=training)


class Written(Wrapped):
    """Writes to the averages of the other one, too."""

    def call(self, x: Any, training: bool | None = None) -> Any:
        found = super().call(x, training=training)
        self.norm.moving_mean.assign(0.5 * self.norm.moving_mean)
        return self.norm(found, training=training)


def model(layer: Any) -> Any:
    keras.utils.set_random_seed(0)
    x = keras.Input((3,), name="x")
    return keras.Model(x, keras.layers.Dense(1)(layer(x)))


def batches(count: int, scale: float) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    y = np.ones((8, 1), np.float32)
    return [((scale * rng.normal(size=(8, 3))).astype(np.float32), y) for _ in range(count)]


def train(found: CompiledModel, batch: Any) -> None:
    found.program.train(batch, found.metrics("metrics", batch).variable, False)


@contextmanager
def late(found: CompiledModel, several: Sequence[Any]) -> Iterator[None]:
    """Compute a step for each batch before the block, and push it after it."""
    steps = []
    for batch in several:
        steps.append(Updates(counted=True))
        with buffered(steps[-1]):
            train(found, batch)
    yield
    for number, each in enumerate(steps):
        transport: Any = found._strategy.transport  # type: ignore[attr-defined]
        each.commit(transport, Commit("late", number))


def by_name(found: CompiledModel, plain: Any) -> dict[str, np.ndarray]:
    return {each.name: value for each, value in zip(plain.weights, found.read(), strict=True)}


@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_late_steps_are_averaged_with_what_is_there_when_they_come(scale: float) -> None:
    plain = model(keras.layers.BatchNormalization(momentum=MOMENTUM))
    found = nets.compiled(plain, loss="mse")
    data = batches(43, scale)
    with late(found, data[:3]):
        for each in data[3:]:
            train(found, each)
    weights = by_name(found, plain)
    x = [batch[0].astype(np.float64) for batch in (*data[3:], *data[:3])]
    mean, variance = np.zeros(3), np.ones(3)
    for each in x:
        mean = MOMENTUM * mean + (1 - MOMENTUM) * each.mean(0)
        variance = MOMENTUM * variance + (1 - MOMENTUM) * each.var(0)
    atol = 1e-6 * scale
    np.testing.assert_allclose(weights["moving_mean"], mean, rtol=1e-4, atol=atol)
    np.testing.assert_allclose(weights["moving_variance"], variance, rtol=1e-4, atol=atol)
    assert np.isfinite(found.program.predict(data[0][0])).all()


@pytest.mark.second_tier(
    "steps that are not late are in the first tier; late ones with a known state, too"
)
def test_late_steps_set_unknown_state_to_what_they_have_computed() -> None:
    plain = model(Running())
    found = nets.compiled(plain, loss="mse")
    (_, y), *_ = batches(1, 1.0)
    zeros = np.zeros((8, 3), np.float32), y
    with late(found, [zeros]):
        for _ in range(20):
            train(found, zeros)
        assert found.read()[0].tolist() == pytest.approx([0.5**20] * 3)
    assert found.read()[0].tolist() == [0.5] * 3  # changes would add up to -0.5
    assert found.read()[1].tolist() == [1.0] * 2


def further(layer: Callable[[], Any], name: str) -> Any:
    return pytest.param(layer, id=name, marks=pytest.mark.second_tier("a further kind of state"))


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(Wrapped, id="twice"),
        pytest.param(Running, id="own"),
        pytest.param(lambda: keras.Sequential([keras.layers.Dense(3), Center()]), id="read"),
        further(lambda: keras.layers.BatchNormalization(momentum=MOMENTUM, scale=False), "norm"),
        further(lambda: keras.layers.BatchNormalization(renorm=True), "renorm"),
        further(lambda: keras.layers.BatchNormalization(momentum=0.0), "last"),
        further(lambda: keras.layers.BatchNormalization(trainable=False), "frozen"),
        further(Written, "written"),
    ],
)
def test_one_worker_moves_what_keras_moves(layer: Callable[[], Any]) -> None:
    plain = model(layer())
    found = nets.compiled(plain, keras.optimizers.SGD(0.01), loss="mse")
    plain.compile(keras.optimizers.SGD(0.01), loss="mse")
    for x, y in batches(4, 3.0):
        train(found, (x, y))
        plain.train_on_batch(x, y)
    for value, other in zip(found.read(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
