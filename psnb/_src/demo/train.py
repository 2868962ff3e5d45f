"""The flights job on parameter servers: what `psnb demo` and the quickstart notebook share.

Everything here is the user's side of psnb: parameters are made in the notebook's process, steps
and scores run on the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import psnb
from psnb._src.demo.flights import DENSE_COLUMNS, FIELDS, Flights

EMBEDDING_RATE = 0.05
NETWORK_RATE = 0.01
"""Lower than for embeddings: every batch updates the whole network, so stale gradients affect it
more."""

_EVALUATION_BATCH = 8192

Data = tuple[Flights, Flights]
"""What `psnb._src.demo.flights.load` returns: the training and the held-out flights."""


@dataclass(frozen=True)
class WideAndDeep:
    """The model on the servers.

    Attributes
    ----------
    step : callable
        Trains on one batch: takes the flights, the number of the batch and its size. It reports the
        loss and the AUC.
    score : callable
        Takes the flights and a range of held-out ones, and returns their probabilities of label 1.
    """

    step: Callable[[Data, int, int], None]
    score: Callable[[Data, int, int], np.ndarray]

    @classmethod
    def create(cls, strategy: psnb.ParameterServerStrategy) -> WideAndDeep:
        """Place fresh parameters on the servers."""
        import psnb.jax
        from psnb._src.demo import model

        adagrad = psnb.Adagrad(EMBEDDING_RATE)
        start = psnb.Normal(stddev=0.01)
        layers = model.initial_layers(len(FIELDS), len(DENSE_COLUMNS), seed=0)
        tables = {
            "wide": strategy.embedding("wide", 1, initializer=0.0, optimizer=adagrad),
            "deep": strategy.embedding("deep", model.DIMENSION, None, start, adagrad),
        }
        params = psnb.jax.variables(strategy, layers, psnb.Adagrad(NETWORK_RATE), "network")
        of: dict[str, Any] = {"params": params, "tables": tables, "ids": model.ids}
        train = psnb.jax.step(model.loss, has_aux=True, **of)
        predict = psnb.jax.forward(model.predict, **of)

        def step(data: Data, number: int, batch_size: int) -> None:
            train.train_on(vars(data[0].batch(number, batch_size)))

        def score(data: Data, start: int, stop: int) -> np.ndarray:
            return predict(vars(data[1][start:stop]))

        return cls(step, score)


def evaluate(
    coordinator: psnb.ClusterCoordinator,
    model: WideAndDeep,
    data: psnb.PerWorkerValues,
    labels: np.ndarray,
) -> float:
    """Score the held-out flights on the workers and return the area under the ROC curve.

    Parameters
    ----------
    coordinator : psnb.ClusterCoordinator
        The coordinator of the workers.
    model : WideAndDeep
        The model to evaluate.
    data : psnb.PerWorkerValues
        The flights on each worker.
    labels : numpy.ndarray
        The labels of the held-out flights, in the notebook.
    """
    from psnb._src.demo.model import auc

    scores = [
        coordinator.schedule(model.score, (data, start, stop))
        for start, stop in _ranges(len(labels), _EVALUATION_BATCH)
    ]
    return auc(labels, np.concatenate(coordinator.fetch(scores)))


def _ranges(total: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, size):
        yield start, min(start + size, total)
