"""One asynchronous pass over the flights reaches an AUC of 0.81, in each framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as functional
from distributed import Client
from torch import Tensor, nn

import psnb
import psnb.jax
import psnb.keras
import psnb.torch
from psnb.demo import flights, model

pytestmark = pytest.mark.second_tier(
    "a pass over all flights in each framework; test_jax_models.py, test_torch_models.py and "
    "test_keras_models.py train each of them as alone"
)

BATCH, DIM, HIDDEN, SEED = 512, 8, (32, 16), 0
INPUTS = len(flights.FIELDS) * DIM + len(flights.DENSE_COLUMNS)
SPARSE, DENSE = psnb.Adagrad(0.05), psnb.Adagrad(0.01)

Data = tuple[flights.Flights, flights.Flights]


def auc_of(
    client: Client,
    make: Callable[
        [psnb.ParameterServerStrategy],
        tuple[Callable[[Data, int], Any], Callable[[flights.Flights], np.ndarray]],
    ],
) -> float:
    """Train one pass asynchronously, and score the held-out flights on the workers."""
    with psnb.ParameterServerStrategy(client) as strategy:
        step, predict = make(strategy)
        coordinator = psnb.ClusterCoordinator(strategy)
        data = coordinator.create_per_worker_resource(flights.load)
        for number in range(flights.TRAINING // BATCH):
            coordinator.schedule(step, (data, number))
        coordinator.join()

        def score(data: Data, start: int) -> np.ndarray:
            return predict(data[1][start : start + 8192])

        labels = flights.load()[1].labels
        parts = [coordinator.schedule(score, (data, at)) for at in range(0, len(labels), 8192)]
        return model.auc(labels, np.concatenate(coordinator.fetch(parts)))


def in_jax(strategy: psnb.ParameterServerStrategy) -> Any:
    rng = np.random.default_rng(SEED)
    shapes = [(INPUTS, HIDDEN[0]), HIDDEN, (HIDDEN[1], 1)]
    layers = [
        (rng.normal(0, (2 / a) ** 0.5, (a, b)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in shapes
    ]
    tables = {
        "wide": strategy.embedding("wide", 1, initializer=0.0, optimizer=SPARSE),
        "deep": strategy.embedding("deep", DIM, initializer=psnb.Normal(0, 0.01), optimizer=SPARSE),
    }
    params = psnb.jax.variables(strategy, layers, DENSE)

    def logits(layers: Any, rows: Any, batch: Any) -> Any:
        hidden = jnp.concatenate([rows["deep"].reshape(-1, INPUTS - 15), batch["dense"]], 1)
        for matrix, bias in layers[:-1]:
            hidden = jax.nn.relu(hidden @ matrix + bias)
        matrix, bias = layers[-1]
        return (hidden @ matrix + bias)[:, 0] + rows["wide"].sum((1, 2))

    def loss(layers: Any, rows: Any, batch: Any) -> Any:
        return optax.sigmoid_binary_cross_entropy(
            logits(layers, rows, batch), batch["labels"]
        ).sum()

    def ids(batch: Any) -> dict[str, Any]:
        return dict.fromkeys(("wide", "deep"), batch["ids"])

    train = psnb.jax.step(loss, params=params, tables=tables, ids=ids)
    score = psnb.jax.forward(logits, params=params, tables=tables, ids=ids)

    def step(data: Data, number: int) -> None:
        train(iter([vars(data[0].batch(number, BATCH))]))

    return step, lambda batch: score(vars(batch))


class WideDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = psnb.torch.Embedding(1, 0.0)
        self.deep = psnb.torch.Embedding(DIM, psnb.Normal(0, 0.01))
        self.network = nn.Sequential(
            *(nn.Linear(INPUTS, HIDDEN[0]), nn.ReLU()),
            *(nn.Linear(*HIDDEN), nn.ReLU(), nn.Linear(HIDDEN[1], 1)),
        )
        for layer in self.network[::2]:
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        hidden = torch.cat([self.deep(ids).flatten(1), dense], 1)
        found: Tensor = self.network(hidden)[:, 0] + self.wide(ids).sum((1, 2))
        return found


def in_torch(strategy: psnb.ParameterServerStrategy) -> Any:
    torch.manual_seed(SEED)
    net = psnb.torch.distribute(WideDeep(), strategy, sparse=SPARSE, dense=DENSE)

    def step(data: Data, number: int) -> None:
        batch = psnb.torch.as_torch(data[0].batch(number, BATCH))
        with net.step():
            logits = net(batch.ids, batch.dense)
            loss = functional.binary_cross_entropy_with_logits(
                logits, batch.labels, reduction="sum"
            )
            loss.backward()
        psnb.report(loss=loss.item() / BATCH)

    def predict(batch: flights.Flights) -> np.ndarray:
        given = psnb.torch.as_torch(batch)
        with torch.no_grad():
            return net(given.ids, given.dense).numpy()  # type: ignore[no-any-return]

    return step, predict


@pytest.mark.parametrize("make", [in_jax, in_torch])
def test_one_pass_over_the_flights_reaches_an_auc_of_081(whole: Client, make: Any) -> None:
    assert auc_of(whole, make) > 0.81


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
def test_one_epoch_of_keras_over_the_flights_reaches_an_auc_of_081(whole: Client) -> None:
    keras.utils.set_random_seed(SEED)
    # Keras's embeddings have a number of rows: ids are numbered, 0 is what was not seen.
    train, held_out = flights.load()
    known = np.unique(train.ids)

    def inputs(data: flights.Flights) -> dict[str, np.ndarray]:
        place = np.searchsorted(known, data.ids).clip(max=len(known) - 1)
        numbers = np.where(known[place] == data.ids, place + 1, 0)
        return {"ids": numbers.astype(np.int32), "numbers": data.dense}

    rows, x, held_out_x = len(known) + 1, inputs(train), inputs(held_out)
    ids = keras.Input((len(flights.FIELDS),), dtype="int32", name="ids")
    dense = keras.Input((len(flights.DENSE_COLUMNS),), name="numbers")
    normal = keras.initializers.RandomNormal(stddev=0.01)
    hidden = keras.layers.Flatten()(keras.layers.Embedding(rows, DIM, normal, name="deep")(ids))
    hidden = keras.layers.Concatenate()([hidden, dense])
    for units in HIDDEN:
        hidden = keras.layers.Dense(units, "relu", kernel_initializer="he_normal")(hidden)
    wide = keras.layers.Flatten()(keras.layers.Embedding(rows, 1, "zeros", name="wide")(ids))
    logit = keras.layers.Add()(
        [keras.layers.Dense(1)(hidden), keras.ops.sum(wide, 1, keepdims=True)]
    )
    net = keras.Model([ids, dense], logit)
    loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
    with psnb.ParameterServerStrategy(whole) as strategy:
        found = psnb.keras.distribute(net, strategy, sparse=SPARSE, dense=DENSE)
        found.compile(loss=loss, metrics=[keras.metrics.AUC(from_logits=True, name="auc")])
        found.fit(x, train.labels[:, None], batch_size=BATCH, verbose=0)
        scores = found.predict(held_out_x, batch_size=8192, verbose=0)[:, 0]
        told = found.evaluate(
            held_out_x, held_out.labels[:, None], 8192, return_dict=True, verbose=0
        )
    assert model.auc(held_out.labels, scores) > 0.81
    # That of Keras is taken from 200 thresholds.
    assert told["auc"] == pytest.approx(model.auc(held_out.labels, scores), abs=0.01)
