"""Batches of random examples for all metrics, with ties and with weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from psnb import metrics


class Batch(NamedTuple):
    """What metrics are called with."""

    labels: np.ndarray
    scores: np.ndarray
    weights: np.ndarray | None


BINARY: list[Any] = [
    metrics.AUC(),
    metrics.AUC(buckets=None),
    metrics.PRAUC(),
    metrics.PRAUC(buckets=None),
    metrics.LogLoss(),
    metrics.NormalizedEntropy(),
    metrics.Calibration(),
    metrics.Accuracy(),
    metrics.RMSE(),
    metrics.MAE(),
]
"""Metrics of labels of 0 and 1 and of probabilities."""

CLASSES: list[Any] = [metrics.Accuracy(), metrics.TopK(2)]
"""Metrics of the numbers of classes and of scores of each."""

ALL = [*BINARY, *CLASSES, metrics.Mean()]


def binary(
    random: np.random.Generator, size: int, weighted: bool = False, distinct: int | None = None
) -> Batch:
    """Return labels and probabilities; these have so many different values, if that is given."""
    scores = random.random(size) if distinct is None else random.integers(distinct, size=size) / 8
    labels = (random.random(size) < scores).astype(np.int64)
    return Batch(labels, scores, random.random(size) * 3 + 0.01 if weighted else None)


def classes(random: np.random.Generator, size: int, weighted: bool = False) -> Batch:
    """Return numbers of five classes and scores of each."""
    labels = random.integers(5, size=size)
    scores = random.normal(size=(size, 5))
    scores[np.arange(size), labels] += 1
    return Batch(labels, scores, random.random(size) * 3 + 0.01 if weighted else None)


def call(
    metric: Any, random: np.random.Generator, size: int, weighted: bool
) -> metrics.MetricState:
    """Return the state of a batch that suits a metric."""
    if isinstance(metric, metrics.Mean):
        batch = binary(random, size, weighted)
        return metric(batch.scores * 10.0 ** random.integers(-8, 9, size), batch.weights)
    if isinstance(metric, metrics.TopK):
        return metric(*classes(random, size, weighted))
    return metric(*binary(random, size, weighted))
