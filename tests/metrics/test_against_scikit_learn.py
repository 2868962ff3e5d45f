"""Every metric beside scikit-learn's, on random examples with ties and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb import metrics
from tests.metrics.batches import binary, classes


def normalized_entropy(labels: Any, scores: Any, sample_weight: Any) -> float:
    rate = np.full(len(labels), np.average(labels, weights=sample_weight))
    loss: float = sk.log_loss(labels, scores, sample_weight=sample_weight)
    return loss / sk.log_loss(labels, rate, sample_weight=sample_weight)


def copc(labels: Any, scores: Any, sample_weight: Any) -> float:
    # The quotient of two averages of scikit-learn's own weighting.
    return np.average(labels, weights=sample_weight) / np.average(scores, weights=sample_weight)


def accuracy(labels: Any, scores: Any, sample_weight: Any) -> float:
    return sk.accuracy_score(labels, scores > 0.5, sample_weight=sample_weight)


PEERS: list[tuple[Any, Callable[..., float]]] = [
    (metrics.AUC(buckets=None), sk.roc_auc_score),
    (metrics.PRAUC(buckets=None), sk.average_precision_score),
    (metrics.LogLoss(), sk.log_loss),
    (metrics.NormalizedEntropy(), normalized_entropy),
    (metrics.Calibration(), copc),
    (metrics.Accuracy(), accuracy),
    (metrics.RMSE(), sk.root_mean_squared_error),
    (metrics.MAE(), sk.mean_absolute_error),
]


@pytest.mark.parametrize(("metric", "peer"), PEERS, ids=lambda each: getattr(each, "__name__", ""))
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 200),
    weighted=st.booleans(),
    distinct=st.sampled_from([None, 2, 9]),
)
@settings(deadline=None, max_examples=60)
def test_a_value_is_that_of_scikit_learn(
    metric: Any,
    peer: Callable[..., float],
    seed: int,
    size: int,
    weighted: bool,
    distinct: int | None,
) -> None:
    labels, scores, weights = binary(np.random.default_rng(seed), size, weighted, distinct)
    labels[:2] = 0, 1  # with one class only, scikit-learn warns or refuses
    scores[:2] = 0.25, 0.125
    expected = peer(labels, scores, sample_weight=weights)
    assert float(metric(labels, scores, weights)) == pytest.approx(expected, rel=1e-9)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 100), weighted=st.booleans())
@settings(deadline=None, max_examples=60)
def test_metrics_of_classes_are_those_of_scikit_learn(seed: int, size: int, weighted: bool) -> None:
    labels, scores, weights = classes(np.random.default_rng(seed), size, weighted)
    predicted = scores.argmax(axis=1)
    expected = sk.accuracy_score(labels, predicted, sample_weight=weights)
    assert float(metrics.Accuracy()(labels, scores, weights)) == pytest.approx(expected)
    assert float(metrics.TopK(1)(labels, scores, weights)) == pytest.approx(expected)
    for k in (2, 3):
        expected = sk.top_k_accuracy_score(
            labels, scores, k=k, sample_weight=weights, labels=range(5)
        )
        assert float(metrics.TopK(k)(labels, scores, weights)) == pytest.approx(expected)


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 300),
    buckets=st.sampled_from([2, 3, 10, 100, 4096]),
    weighted=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_areas_in_buckets_are_within_their_error_bounds(
    seed: int, size: int, buckets: int, weighted: bool
) -> None:
    labels, scores, weights = binary(np.random.default_rng(seed), size, weighted)
    labels[:2] = 0, 1
    for kind in (metrics.AUC, metrics.PRAUC):
        exact = float(kind(buckets=None)(labels, scores, weights))
        metric = kind(buckets)
        state = metric(labels, scores, weights)
        assert abs(float(state) - exact) <= metric.error_bound(state) + 1e-12


@pytest.mark.parametrize(
    ("kind", "peer"),
    [(metrics.AUC, sk.roc_auc_score), (metrics.PRAUC, sk.average_precision_score)],
)
@pytest.mark.parametrize("total", [1.0, 1e-6, 1e6])
def test_a_common_factor_of_weights_changes_nothing(
    kind: Any, peer: Callable[..., float], total: float
) -> None:
    random = np.random.default_rng(0)
    labels, scores, _ = binary(random, 50_000)
    weights = np.where(scores > 0.5, 1.45, 1.0) * np.where(labels == 1, 1, 1.4)
    weights *= total / weights.sum()
    exact, expected = kind(None), peer(labels, scores, sample_weight=weights)
    first, second = slice(20_000), slice(20_000, None)
    state = exact(labels[first], scores[first], weights[first])
    state += exact(labels[second], scores[second], weights[second])
    assert abs(float(state) - expected) <= exact.error_bound(state) + 1e-12
    assert exact.error_bound(state) < 1e-8
    inexact = kind(512)
    state = inexact(labels, scores, weights)
    assert abs(float(state) - expected) <= inexact.error_bound(state) + 1e-12


def test_the_error_bound_of_the_default_is_small_for_real_scores() -> None:
    labels, scores, _ = binary(np.random.default_rng(1), 100_000)
    scores = scores**4  # most are small, as rates of clicks are
    auc = metrics.AUC()
    state = auc(labels, scores)
    exact = sk.roc_auc_score(labels, scores)
    assert auc.error_bound(state) < 0.005
    assert abs(float(state) - exact) < 0.001


def test_log_loss_clips_float32_as_scikit_learn() -> None:
    labels, scores = np.array([0, 1, 1]), np.array([1.0, 0.0, 0.5], np.float32)
    expected = sk.log_loss(labels, scores)
    assert float(metrics.LogLoss()(labels, scores)) == pytest.approx(expected, rel=1e-6)
