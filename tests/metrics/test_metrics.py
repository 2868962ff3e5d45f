"""What is particular to single metrics: edges, and what they refuse."""

from __future__ import annotations

import doctest
import importlib
import inspect
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from psnb import metrics
from psnb.errors import ConfigurationError
from tests.metrics.batches import BINARY, CLASSES

AUCS = [metrics.AUC(), metrics.AUC(buckets=None)]
CONCRETE = [
    getattr(metrics, name)
    for name in metrics.__all__
    if not name.startswith(("Mergeable", "MetricState", "Slice"))
]


def test_the_public_names_are_these() -> None:
    kinds = "AUC MAE MRR NDCG PRAUC RMSE Accuracy Calibration GroupAUC HitRate LogLoss Mean"
    kinds += " NormalizedEntropy TopK"
    bases = "MergeableMetric MetricState MetricStates SliceRow SliceTable"
    assert sorted(metrics.__all__) == sorted(f"{kinds} {bases}".split())


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)
def test_a_metric_is_documented_with_an_equation_and_an_example(kind: type) -> None:
    text = inspect.getdoc(kind) or ""
    assert ":math:" in text or ".. math::" in text
    assert ">>> " in text
    assert "Raises" in (kind.__call__.__doc__ or "") or "the arguments are those of" in (
        kind.__call__.__doc__ or ""
    )


@pytest.mark.parametrize(
    "kind",
    [*CONCRETE, metrics.MetricState, metrics.MetricStates, metrics.SliceTable],
    ids=lambda kind: kind.__name__,
)
def test_the_examples_in_docstrings_print_what_they_say(kind: type) -> None:
    module = importlib.import_module(kind.__module__)
    found = doctest.DocTestFinder(recurse=False).find(kind, kind.__name__, module)
    runner = doctest.DocTestRunner(verbose=False)
    for each in found:
        runner.run(each)
    assert runner.tries > 1
    assert runner.failures == 0


@pytest.mark.parametrize("metric", AUCS, ids=str)
@pytest.mark.parametrize(
    ("labels", "reason"), [([1, 1], "no negative"), ([0, 0], "no positive"), ([], "no examples")]
)
def test_an_auc_of_one_class_is_nan_and_says_why(
    metric: metrics.AUC, labels: list[int], reason: str
) -> None:
    state = metric(labels, [0.5] * len(labels))
    assert math.isnan(float(state))
    assert reason in state.reason
    assert math.isnan(metric.error_bound(state))


def test_normalized_entropy_of_one_class_is_nan_and_says_why() -> None:
    state = metrics.NormalizedEntropy()([1, 1], [0.5, 0.5])
    assert math.isnan(float(state))
    assert state.reason == "no negative examples"


def test_pr_auc_without_positives_is_nan_and_with_positives_only_is_1() -> None:
    pr_auc = metrics.PRAUC()
    assert pr_auc([0, 0], [0.5, 0.2]).reason == "no positive examples"
    assert float(pr_auc([1, 1], [0.5, 0.2])) == 1.0


def test_calibration_of_no_predicted_clicks_is_nan_and_says_why() -> None:
    state = metrics.Calibration()([1, 0], [0.0, 0.0])
    assert math.isnan(float(state))
    assert "predicted as 0" in state.reason


def test_buckets_are_those_of_paddle() -> None:
    scores = np.array([0.0, 0.2499, 0.25, 0.99, 1.0])
    state = metrics.AUC(buckets=5)([1, 1, 1, 1, 0], scores)
    negatives, positives = state.array[0] // 2**20
    assert positives.tolist() == [2, 1, 0, 1, 0]
    assert negatives.tolist() == [0, 0, 0, 0, 1]


def test_zeros_of_both_signs_are_one_score() -> None:
    auc = metrics.AUC(buckets=None)
    assert float(auc([0, 1], [-0.0, 0.0])) == 0.5


def test_an_exact_auc_takes_the_largest_scores_that_there_are() -> None:
    largest = np.finfo(np.float64).max
    assert float(metrics.AUC(buckets=None)([0, 1, 0], [-largest, largest, 5e-324])) == 1.0


def test_the_state_of_an_exact_auc_grows_with_its_scores_only() -> None:
    auc = metrics.AUC(buckets=None)
    state = auc([0, 1, 1], [3.0, -2.0, 3.0])
    assert state.array.size == 2
    assert (state + auc([1], [3.0])).array.size == 2
    assert (state + auc([1], [7.0])).array.size == 3


def test_an_example_of_weight_0_counts_nothing() -> None:
    for metric in BINARY:
        with_it = metric([0, 1, 1], [0.2, 0.7, 0.1], [1, 1, 0])
        assert with_it == metric([0, 1], [0.2, 0.7])


def test_ties_of_classes_go_to_the_first() -> None:
    scores = [[0.5, 0.5, 0.5]] * 3
    assert float(metrics.Accuracy()([0, 1, 2], scores)) == pytest.approx(1 / 3)
    assert float(metrics.TopK(2)([0, 1, 2], scores)) == pytest.approx(2 / 3)


def test_the_threshold_of_accuracy_suits_logits() -> None:
    assert float(metrics.Accuracy(threshold=0)([1, 0], [0.2, -0.2])) == 1.0


def test_integers_bools_and_float32_are_taken() -> None:
    scores = np.array([0.25, 0.75], np.float32)
    for labels in ([0, 1], [False, True], np.array([0.0, 1.0], np.float32)):
        for metric in BINARY:
            if not isinstance(metric, metrics.RMSE | metrics.MAE):
                assert metric(labels, scores) == metric([0, 1], [0.25, 0.75]) or isinstance(
                    metric, metrics.LogLoss
                )


@pytest.mark.parametrize("metric", BINARY, ids=str)
@pytest.mark.parametrize(
    ("labels", "scores", "weights"),
    [
        ([0, 1], [0.5], None),
        ([0, 1], [0.5, math.nan], None),
        ([0, 1], [0.5, math.inf], None),
        ([0, 1], [[0.5], [0.5]], None),
        ([0, 1], ["a", "b"], None),
        ([0, 1], [None, 0.5], None),
        ([0, math.nan], [0.5, 0.5], None),
        ([0, 1], [0.5, 0.5], [1.0]),
        ([0, 1], [0.5, 0.5], [1.0, -1.0]),
        ([0, 1], [0.5, 0.5], [1.0, math.nan]),
        ([0, 1], [0.5, 0.5j], None),
        ([0, 1], np.array([0.5, 0.5], np.longdouble), None),
        ([0, 1], [[0.5], [0.5, 0.5]], None),
    ],
)
def test_bad_arrays_are_refused(metric: Any, labels: Any, scores: Any, weights: Any) -> None:
    with pytest.raises(ConfigurationError):
        metric(labels, scores, weights)


@pytest.mark.parametrize(
    "metric",
    [metrics.AUC(), metrics.PRAUC(), metrics.LogLoss(), metrics.Calibration()],
    ids=str,
)
def test_what_is_no_probability_is_refused(metric: Any) -> None:
    for bad in ([-0.1, 0.5], [0.5, 1.5]):
        with pytest.raises(ConfigurationError, match="between 0 and 1"):
            metric([0, 1], bad)


@pytest.mark.parametrize("metric", [metrics.AUC(), metrics.Accuracy()], ids=str)
def test_an_error_for_one_column_says_to_take_it(metric: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"take \[:, 0\]"):
        metric([0, 1], [[0.1], [0.9]])


def test_labels_other_than_0_and_1_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 or 1, found 2"):
        metrics.AUC()([0, 2], [0.1, 0.2])


@pytest.mark.parametrize("metric", CLASSES, ids=str)
@pytest.mark.parametrize("labels", [[0, 3], [0, -1], [0, 0.5], [0, 1e300], [0], [[0], [1]]])
def test_labels_that_are_no_classes_are_refused(metric: Any, labels: Any) -> None:
    with pytest.raises(ConfigurationError, match="labels must"):
        metric(labels, np.zeros((2, 3)))


@pytest.mark.parametrize("weight", [2.0**-43, 2.0**33])
def test_weights_that_would_not_be_counted_rightly_are_refused(weight: float) -> None:
    with pytest.raises(ConfigurationError, match="weights"):
        metrics.AUC()([0, 1], [0.1, 0.2], [1, weight])


def test_errors_too_large_to_square_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="finite"):
        metrics.RMSE()([1e200], [-1e200])
    with pytest.raises(ConfigurationError, match="finite"):
        metrics.MAE()([1.5e308], [-1.5e308])
    with pytest.raises(ConfigurationError, match="finite"):
        metrics.Mean()([1e300], [1e300])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (metrics.AUC, 1),
        (metrics.AUC, 2.5),
        (metrics.PRAUC, True),
        (metrics.PRAUC, 2**25),
        (metrics.TopK, 0),
        (metrics.Accuracy, "0.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: Any, value: Any) -> None:
    with pytest.raises(ConfigurationError):
        kind(value)


def test_a_bfloat16_array_is_taken() -> None:
    assert float(metrics.Mean()(np.array([1.0, 2.0], ml_dtypes.bfloat16))) == 1.5


def test_a_tensor_with_gradients_is_its_values() -> None:
    import torch

    assert float(metrics.Mean()(torch.ones(2, requires_grad=True))) == 1.0
