"""States: merging is exact, to the bit, and they travel."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from psnb import metrics
from psnb.errors import ConfigurationError
from tests.metrics.batches import ALL, BINARY, COUNTED, GROUPED, SLICED, binary, call

EVERY = pytest.mark.parametrize("metric", ALL, ids=str)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["counted", "weighted"])


def merged(states: list[metrics.MetricState]) -> metrics.MetricState:
    whole = states[0].metric.empty()
    for each in states:
        whole = whole + each
    return whole


@EVERY
@WEIGHTED
def test_merging_gives_the_same_bits_in_any_order(metric: Any, weighted: bool) -> None:
    random = np.random.default_rng(1)
    states = [call(metric, random, size, weighted) for size in (40, 1, 7, 300, 0, 13)]
    forward = merged(states)
    for _ in range(5):
        random.shuffle(states)  # type: ignore[arg-type]
        half = merged(states[:3]) + merged(states[3:])
        assert merged(states) == half == forward
        assert float(half) == float(forward)


@EVERY
@WEIGHTED
def test_a_merged_state_less_a_part_is_the_rest(metric: Any, weighted: bool) -> None:
    random = np.random.default_rng(2)
    first, second = (call(metric, random, size, weighted) for size in (50, 60))
    assert first + second - first == second


@pytest.mark.parametrize("metric", [*BINARY, *SLICED, *GROUPED, *COUNTED], ids=str)
def test_states_of_batches_are_the_state_of_all_examples(metric: Any) -> None:
    labels, scores, _ = binary(np.random.default_rng(3), 200)
    parts = [metric(labels[cut], scores[cut]) for cut in (slice(0, 70), slice(70, 200))]
    assert parts[0] + parts[1] == metric(labels, scores)


@EVERY
def test_the_empty_state_changes_nothing_and_has_no_value(metric: Any) -> None:
    state = call(metric, np.random.default_rng(4), 20, weighted=True)
    assert state + metric.empty() == metric.empty() + state == state
    assert math.isnan(metric.empty().result())
    assert metric.empty().reason


@EVERY
@WEIGHTED
def test_a_state_survives_pickling(metric: Any, weighted: bool) -> None:
    random = np.random.default_rng(5)
    for state in (call(metric, random, 100, weighted), metric.empty()):
        again = pickle.loads(pickle.dumps(state))
        assert again == state
        assert again.array.dtype == state.array.dtype
        with pytest.raises(ValueError, match="read-only"):
            again.array[...] = 0


def test_a_negative_sum_survives_pickling() -> None:
    state = metrics.Mean()([-1.5, -1e-300, 5e-324])
    assert pickle.loads(pickle.dumps(state)) == state


def test_a_state_of_an_auc_is_small_on_the_wire() -> None:
    labels, scores, _ = binary(np.random.default_rng(6), 512)
    assert len(pickle.dumps(metrics.AUC()(labels, scores))) < 4 * 512


def test_a_state_cannot_be_changed() -> None:
    state = metrics.AUC().empty()
    with pytest.raises(ValueError, match="read-only"):
        state.array[0] = 1
    with pytest.raises(AttributeError):
        state.array = np.zeros(3)  # type: ignore[misc]


def test_states_of_different_metrics_are_not_merged() -> None:
    with pytest.raises(ConfigurationError, match="AUC"):
        metrics.AUC().empty() + metrics.AUC(buckets=100).empty()
    with pytest.raises(ConfigurationError, match="PRAUC"):
        metrics.AUC().empty() - metrics.PRAUC().empty()
    with pytest.raises(TypeError):
        metrics.AUC().empty() + 1  # type: ignore[operator]


def test_an_array_of_another_shape_is_no_state() -> None:
    with pytest.raises(ConfigurationError, match="not a state of"):
        metrics.MetricState(metrics.AUC(), np.zeros((2, 100), np.int64))
    with pytest.raises(ConfigurationError, match="not a state of"):
        metrics.MetricState(metrics.Mean(), np.zeros((2, 34)))


@pytest.mark.parametrize("buckets", [4, None])
def test_more_cannot_be_subtracted_than_there_is(buckets: int | None) -> None:
    auc = metrics.AUC(buckets)
    with pytest.raises(ConfigurationError, match="negative"):
        auc([1], [0.5]) - auc([1, 1], [0.5, 0.5])


@pytest.mark.parametrize("buckets", [4, None])
def test_counts_that_are_too_large_are_refused_and_not_wrong(buckets: int | None) -> None:
    auc = metrics.AUC(buckets)
    state = auc([1], [0.5], [2**31])
    for _ in range(11):
        state = state + state
    with pytest.raises(ConfigurationError, match="2\\*\\*43"):
        state + state


def test_a_state_shows_its_value_or_why_it_has_none() -> None:
    accuracy = metrics.Accuracy()
    assert repr(accuracy([1], [0.9])) == "<psnb.MetricState Accuracy(threshold=0.5): 1>"
    assert "no examples" in repr(accuracy.empty())
