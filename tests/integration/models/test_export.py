"""A trained model is exported; a process without Dask and the training code predicts with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import psnb
import psnb.jax
import psnb.keras
from psnb.demo import flights, model

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]

ALONE = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        hidden = "distributed", "dask", "tornado", "keras", "tests", "psnb._src.demo", "psnb.jax"
        hidden += "psnb._src.models.jax", "psnb._src.client", "psnb._src.server.server"
        if name in hidden or name.startswith(tuple(f"{each}." for each in hidden)):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Nowhere())
import numpy as np
import psnb

model = psnb.load_model(sys.argv[1])
with np.load(sys.argv[2]) as batch:
    np.save(sys.argv[3], model.predict(dict(batch)))
    one = model.predict({name: each[:1] for name, each in batch.items()})
    assert abs(one - np.load(sys.argv[3])[:1]).max() < 1e-6
"""


def predicted_alone(path: Path, batch: Any, folder: Path) -> np.ndarray:
    """Return what another process predicts, which lacks all that trained the model."""
    np.savez(folder / "batch.npz", **batch)
    arguments = [str(path), str(folder / "batch.npz"), str(folder / "found.npy")]
    subprocess.run([sys.executable, "-c", ALONE, *arguments], check=True, timeout=100)
    found: np.ndarray = np.load(folder / "found.npy")
    return found


def made(count: int, values: int) -> flights.Flights:
    """Return flights at random; what the model learns of them is no matter."""
    rng = np.random.default_rng(count)
    fields = np.arange(len(flights.FIELDS)) << flights.FIELD_SHIFT
    ids = fields + rng.integers(0, values, (count, len(fields)))
    dense = rng.normal(size=(count, len(flights.DENSE_COLUMNS))).astype(np.float32)
    return flights.Flights(ids, dense, rng.integers(0, 2, count).astype(np.float32))


TEST = made(500, 6000)
"""Some of their values are of no flight that the model is trained with."""


@pytest.fixture
def trained(coordinator: psnb.ClusterCoordinator, strategy: psnb.ParameterServerStrategy) -> Any:
    """The demo's model: its forward pass, and a function that schedules steps."""
    start, rate = psnb.Normal(stddev=0.01), psnb.Adagrad(0.05)
    tables = {
        "wide": strategy.embedding("wide", 1, initializer=0.0, optimizer=rate),
        "deep": strategy.embedding("deep", model.DIMENSION, None, start, rate),
    }
    layers = model.initial_layers(len(flights.FIELDS), len(flights.DENSE_COLUMNS), seed=0)
    of: dict[str, Any] = {
        "params": psnb.jax.variables(strategy, layers, psnb.Adagrad(0.01), "network"),
        "tables": tables,
        "ids": model.ids,
    }
    train = psnb.jax.step(model.loss, has_aux=True, **of)
    data = coordinator.create_per_worker_resource(lambda: made(30_000, 5000))

    def step(data: Any, number: int) -> None:
        train.train_on(vars(data.batch(number, 512)))

    def run(numbers: range) -> None:
        for number in numbers:
            coordinator.schedule(step, (data, number))

    return psnb.jax.forward(model.predict, **of), run


@pytest.mark.second_tier("another process that predicts what is trained: test_following.py")
def test_the_demo_predicts_alone_what_the_cluster_predicts(
    coordinator: psnb.ClusterCoordinator, trained: Any, tmp_path: Path
) -> None:
    forward, run = trained
    run(range(20))
    coordinator.join()
    path = psnb.export(tmp_path / "model", forward, example=vars(TEST[:32]))
    found = predicted_alone(path, {"ids": TEST.ids, "dense": TEST.dense}, tmp_path)
    np.testing.assert_allclose(found, forward(vars(TEST)), rtol=0, atol=1e-6)


@pytest.mark.second_tier(
    "another framework: tests/models/keras/test_keras_export.py has what it predicts"
)
def test_a_keras_model_predicts_alone(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    ids, x = keras.Input((3,), dtype="int32", name="ids"), keras.Input((2,), name="x")
    rows = keras.layers.Flatten()(keras.layers.Embedding(20, 4, name="rows")(ids))
    other = keras.layers.Flatten()(keras.layers.Embedding(40, 2, name="other")(ids[:, :1] + 20))
    hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()([rows, other, x]))
    plain = keras.Model([ids, x], keras.layers.Dense(1, activation="sigmoid")(hidden))
    made = psnb.keras.distribute(plain, strategy, sparse=psnb.SGD(0.1), dense=psnb.SGD(0.1))
    made.compile(loss="binary_crossentropy")
    rng = np.random.default_rng(0)
    batch = {
        "ids": rng.integers(0, 20, (64, 3)).astype(np.int32),
        "x": rng.normal(size=(64, 2)).astype(np.float32),
    }
    made.fit(batch, rng.integers(0, 2, (64, 1)).astype(np.float32), batch_size=16, verbose=0)
    found = predicted_alone(psnb.export(tmp_path / "model", made), batch, tmp_path)
    np.testing.assert_allclose(found, made.predict(batch), rtol=0, atol=1e-6)


@pytest.fixture(autouse=True)
def _closed(strategy: psnb.ParameterServerStrategy) -> Iterator[None]:
    yield
    strategy.close()
