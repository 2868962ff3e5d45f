"""The flights job on parameter servers: its model, its step and its data. The user's side."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import psnb
import psnb.jax
from psnb._src.demo import flights, model
from psnb.data import Dataset

EMBEDDING_RATE = 0.05
NETWORK_RATE = 0.01
"""Lower than for embeddings: every batch updates the whole network, so stale gradients affect it
more."""

SCORED = 8192
"""Held-out flights in a batch."""


@lru_cache(maxsize=1)
def loaded() -> tuple[flights.Flights, flights.Flights]:
    """Read the flights, once in each process."""
    return flights.load()


def place(strategy: psnb.ParameterServerStrategy, seed: int = 0) -> dict[str, Any]:
    """Put fresh parameters on the servers; return what the functions of `psnb.jax` take of them."""
    adagrad, start = psnb.Adagrad(EMBEDDING_RATE), psnb.Normal(stddev=0.01)
    tables = {
        "wide": strategy.embedding("wide", 1, initializer=0.0, optimizer=adagrad),
        "deep": strategy.embedding("deep", model.DIMENSION, initializer=start, optimizer=adagrad),
    }
    layers = model.initial_layers(len(flights.FIELDS), len(flights.DENSE_COLUMNS), seed)
    params = psnb.jax.variables(strategy, layers, psnb.Adagrad(NETWORK_RATE), "network")
    return {"params": params, "tables": tables, "ids": model.ids}


def make_trainer(
    coordinator: psnb.ClusterCoordinator, of: dict[str, Any], **options: Any
) -> psnb.Trainer:
    """Return what trains the parameters that `place` returned."""
    step = psnb.jax.step(model.loss, has_aux=True, **of)
    predict = psnb.jax.forward(model.predict, **of)
    auc = psnb.metrics.AUC()

    def evaluate(iterator: Any) -> None:
        batch = next(iterator)
        psnb.report(auc=auc(batch["labels"], predict(batch)))

    return psnb.Trainer(coordinator, step, evaluate=evaluate, predict=predict, **options)


def training(first: int, stop: int, batch_size: int, seed: int = 0) -> Dataset:
    """Return batches of the training flights, by their numbers: see `flights.Flights.batch`."""

    def batch(number: int) -> dict[str, Any]:
        return vars(loaded()[0].batch(int(number), batch_size, seed))

    return Dataset.range(first, stop).map(batch)


def held_out() -> Dataset:
    """Return the held-out flights, in batches."""

    def batch(start: int) -> dict[str, Any]:
        return vars(loaded()[1][int(start) : int(start) + SCORED])

    return Dataset.range(0, flights.TESTING, SCORED).map(batch)
