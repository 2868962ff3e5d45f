"""The flights job on parameter servers: what `psnb demo` and the quickstart notebook share.

Everything here is the user's side of psnb: parameters are made in the notebook's process, `step`
and `score` run on the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    """The model's parameters on the servers, after Cheng et al., *Wide & Deep Learning*, 2016.

    Attributes
    ----------
    wide : psnb.Embedding
        One weight for each value of each field.
    deep : psnb.Embedding
        A vector for each value of each field, the input of the network.
    network : psnb.Variable
        All weights of the network as one vector.
    """

    wide: psnb.Embedding
    deep: psnb.Embedding
    network: psnb.Variable

    @classmethod
    def create(cls, strategy: psnb.ParameterServerStrategy) -> WideAndDeep:
        """Place fresh parameters on the servers."""
        from psnb._src.demo import model

        weights = model.initial_weights(len(FIELDS), len(DENSE_COLUMNS), seed=0)
        adagrad = psnb.Adagrad(EMBEDDING_RATE)
        start = psnb.Normal(stddev=0.01)
        return cls(
            strategy.embedding("wide", 1, initializer=0.0, optimizer=adagrad),
            strategy.embedding("deep", model.DIMENSION, initializer=start, optimizer=adagrad),
            strategy.variable(weights, "network", optimizer=psnb.Adagrad(NETWORK_RATE)),
        )


def step(model: WideAndDeep, data: Data, number: int, batch_size: int) -> None:
    """Train on one batch: pull, compute gradients with JAX, push, report."""
    from psnb._src.demo.model import auc, gradients

    batch = data[0].batch(number, batch_size)
    loss, probabilities, (by_network, by_wide, by_deep) = gradients(
        model.network.read(),
        model.wide.lookup(batch.ids),
        model.deep.lookup(batch.ids),
        batch.dense,
        batch.labels,
    )
    model.network.push(by_network)
    model.wide.push(batch.ids, by_wide)
    model.deep.push(batch.ids, by_deep)
    psnb.report(loss=loss, auc=auc(batch.labels, probabilities))


def score(model: WideAndDeep, data: Data, start: int, stop: int) -> np.ndarray:
    """Return the probabilities of some held-out flights, float32 ``(stop - start,)``."""
    from psnb._src.demo.model import predict

    batch = data[1][start:stop]
    wide = model.wide.lookup(batch.ids, training=False)
    deep = model.deep.lookup(batch.ids, training=False)
    return predict(model.network.read(), wide, deep, batch.dense)


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
        coordinator.schedule(score, (model, data, start, stop))
        for start, stop in _ranges(len(labels), _EVALUATION_BATCH)
    ]
    return auc(labels, np.concatenate(coordinator.fetch(scores)))


def _ranges(total: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, size):
        yield start, min(start + size, total)
