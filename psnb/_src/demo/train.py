"""The flights job on parameter servers: its model, its step and its data. The user's side."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import psnb
from psnb._src.demo import flights
from psnb.data import Dataset

EMBEDDING_RATE = 0.05
NETWORK_RATE = 0.01
"""Lower than for embeddings: every batch updates the whole network, so stale gradients affect it
more."""

SCORED = 8192
"""Held-out flights in a batch."""


@lru_cache(maxsize=1)
def _loaded() -> tuple[flights.Flights, flights.Flights]:
    """Read the flights, once in each worker's process."""
    return flights.load()


def make_trainer(coordinator: psnb.ClusterCoordinator) -> psnb.Trainer:
    """Place fresh parameters on the servers; return what trains them."""
    import psnb.jax
    from psnb._src.demo import model

    strategy = coordinator.strategy
    adagrad, start = psnb.Adagrad(EMBEDDING_RATE), psnb.Normal(stddev=0.01)
    tables = {
        "wide": strategy.embedding("wide", 1, initializer=0.0, optimizer=adagrad),
        "deep": strategy.embedding("deep", model.DIMENSION, None, start, adagrad),
    }
    layers = model.initial_layers(len(flights.FIELDS), len(flights.DENSE_COLUMNS), seed=0)
    params = psnb.jax.variables(strategy, layers, psnb.Adagrad(NETWORK_RATE), "network")
    of: dict[str, Any] = {"params": params, "tables": tables, "ids": model.ids}
    predict = psnb.jax.forward(model.predict, **of)
    auc = psnb.metrics.AUC()

    def evaluate(iterator: Any) -> None:
        batch = next(iterator)
        psnb.report(auc=auc(batch["labels"], predict(batch)))

    step = psnb.jax.step(model.loss, has_aux=True, **of)
    return psnb.Trainer(coordinator, step, evaluate=evaluate, predict=predict)


def training(first: int, stop: int, batch_size: int) -> Dataset:
    """Return batches of the training flights, by their numbers: see `flights.Flights.batch`."""

    def batch(number: int) -> dict[str, Any]:
        return vars(_loaded()[0].batch(int(number), batch_size))

    return Dataset.range(first, stop).map(batch)


def held_out() -> Dataset:
    """Return the held-out flights, in batches."""

    def batch(start: int) -> dict[str, Any]:
        return vars(_loaded()[1][int(start) : int(start) + SCORED])

    return Dataset.range(0, flights.TESTING, SCORED).map(batch)
