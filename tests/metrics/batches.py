"""Batches of random examples for all metrics, with ties and with weights."""

from __future__ import annotations

from dataclasses import dataclass
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

QUERIES: list[Any] = [metrics.NDCG(3), metrics.HitRate(2), metrics.MRR(None)]
"""Metrics of queries and their candidates."""


@dataclass(frozen=True)
class BySlice:
    """A metric taken by a key that follows from each example; a metric itself, for these tests."""

    metric: Any
    slices: int = 100

    def __call__(self, labels: Any, scores: Any, weights: Any = None) -> metrics.MetricState:
        return self.metric(labels, scores, weights, by=key_of(scores), slices=self.slices)

    def empty(self) -> metrics.MetricState:
        return self([], []).metric.empty()


@dataclass(frozen=True)
class ByGroup:
    """A metric of groups that follow from the examples."""

    metric: Any
    by: bool = False

    def __call__(self, labels: Any, scores: Any, weights: Any = None) -> metrics.MetricState:
        groups = np.asarray(np.asarray(scores) * 997, np.int64) % 11
        by = key_of(scores) if self.by else None
        return self.metric(labels, scores, weights, groups=groups, by=by)

    def empty(self) -> metrics.MetricState:
        return self([], []).metric.empty()


def key_of(scores: Any) -> np.ndarray:
    """Return one of five texts for each score."""
    return np.array(["A", "B", "C", "Ä", ""], object)[np.asarray(np.asarray(scores) * 89, int) % 5]


SLICED: list[Any] = [BySlice(each) for each in BINARY]
GROUPED: list[Any] = [ByGroup(metrics.GroupAUC()), ByGroup(metrics.GroupAUC(), by=True)]
COUNTED: list[Any] = [ByGroup(each, by) for each in QUERIES for by in (False, True)]
"""Metrics of queries in groups, which take no weights."""

ALL = [*BINARY, *CLASSES, *QUERIES, *SLICED, *GROUPED, *COUNTED, metrics.Mean()]


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
    if metric in QUERIES:
        scores, weights = random.integers(4, size=(size, 6)), random.random(size) + 0.01
        return metric(random.integers(3, size=(size, 6)), scores, weights if weighted else None)
    if metric in COUNTED:
        return metric(*binary(random, size))
    return metric(*binary(random, size, weighted))
