"""Metrics of groups and queries: beside scikit-learn and all orders, merged exactly, bounded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb import metrics
from psnb.errors import ConfigurationError

GROUP_AUC = metrics.GroupAUC()
QUERIES: list[Any] = [metrics.NDCG(3), metrics.HitRate(3), metrics.MRR(3)]


def expected_group_auc(labels: Any, scores: Any, groups: Any, weights: Any) -> float:
    values, sizes = [], []
    for group in np.unique(groups):
        own = groups == group
        if len(set(labels[own])) == 2:
            values.append(sk.roc_auc_score(labels[own], scores[own], sample_weight=weights[own]))
            sizes.append(weights[own].sum())
    return float(np.average(values, weights=sizes)) if values else math.nan


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 300),
    distinct=st.sampled_from([2, 9, 10**9]),
    weighted=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_group_auc_is_the_weighted_mean_of_scikit_learns(
    seed: int, size: int, distinct: int, weighted: bool
) -> None:
    random = np.random.default_rng(seed)
    labels, groups = random.integers(0, 2, size), random.integers(0, 9, size)
    scores = random.integers(-distinct, distinct, size) / 7
    weights = random.random(size) + 0.01 if weighted else np.ones(size)
    found = float(GROUP_AUC(labels, scores, weights if weighted else None, groups=groups))
    expected = expected_group_auc(labels, scores, groups, weights)
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_weights_of_one_group_do_not_round_those_of_another() -> None:
    labels, scores = [0, 1, 0, 1], [0.3, 0.7, 0.3, 0.3]
    weights = [2.0**31, 2.0**31 - 1, 2.0**-42, 2.0**-42]
    first = GROUP_AUC(labels[:2], scores[:2], weights[:2], groups=[1, 1])
    second = GROUP_AUC(labels[2:], scores[2:], weights[2:], groups=[2, 2])
    both = first + second
    assert both - first == second
    assert float(both - first) == 0.5


def test_groups_of_one_class_are_left_out() -> None:
    state = GROUP_AUC([1, 1, 0, 1], [0.1, 0.2, 0.3, 0.4], groups=["a", "a", "b", "b"])
    assert float(state) == 1.0
    alone = GROUP_AUC([1, 0], [0.1, 0.2], groups=["a", "b"])
    assert alone.reason == "no group has both positive and negative examples"
    assert GROUP_AUC.empty().reason == "no examples, or all of weight 0"


def test_a_group_may_be_spread_over_batches() -> None:
    first = GROUP_AUC([1, 0], [0.9, 0.1], groups=["a", "b"])
    second = GROUP_AUC([0, 1], [0.2, 0.7], groups=["a", "b"])
    assert math.isnan(float(first))
    assert float(first + second) == 1.0
    for metric in QUERIES:
        whole = metric([1, 0, 2, 0], [0.1, 0.3, 0.2, 0.2], groups=[5, 5, 5, 5])
        parts = [
            metric([1, 0], [0.1, 0.3], groups=[5, 5]),
            metric([2, 0], [0.2] * 2, groups=[5] * 2),
        ]
        assert reduce(add, parts) == whole


@given(
    seed=st.integers(0, 2**32),
    capacity=st.sampled_from([1, 7, 30, 1000]),
    parts=st.integers(2, 6),
    by=st.booleans(),
    metric=st.sampled_from([metrics.GroupAUC, metrics.NDCG, metrics.HitRate, metrics.MRR]),
)
@settings(deadline=None, max_examples=50)
def test_which_groups_are_held_does_not_depend_on_the_order(
    seed: int, capacity: int, parts: int, by: bool, metric: Any
) -> None:
    random = np.random.default_rng(seed)
    labels, groups = random.integers(0, 2, 150), random.integers(0, random.integers(1, 60), 150)
    scores = random.integers(0, 50, 150) / 50

    def state(chosen: np.ndarray) -> metrics.MetricState:
        more = {"by": groups[chosen] % 4, "slices": 2} if by else {}
        return metric(capacity=capacity)(
            labels[chosen], scores[chosen], groups=groups[chosen], **more
        )

    whole = state(np.arange(150))
    pieces = [state(each) for each in np.array_split(random.permutation(150), parts)]
    random.shuffle(pieces)  # type: ignore[arg-type]
    first, rest = pieces[0], reduce(add, pieces[1:])
    assert rest + first == first + rest == whole
    assert (whole - first) + first == whole
    assert whole - whole == whole.metric.empty()
    held = whole.array["rows"][0]
    assert np.isfinite(held["score"]).sum() <= max(capacity, 3)
    assert held["count"][:, 0].sum() == 150 << 20


def test_a_sample_of_groups_is_exact_for_them_and_says_of_how_much_it_is() -> None:
    random = np.random.default_rng(0)
    labels, groups, scores = random.integers(0, 2, 900), np.arange(900) % 90, random.random(900)
    state = metrics.GroupAUC(300)(labels, scores, groups=groups)
    assert 0.2 < state.coverage <= 300 / 900
    held = np.isin(groups, groups_with_lowest_hashes(groups, round(state.coverage * 90)))
    assert float(state) == float(GROUP_AUC(labels[held], scores[held], groups=groups[held]))
    assert "of the examples" in repr(state)
    assert GROUP_AUC(labels, scores, groups=groups).coverage == 1


def groups_with_lowest_hashes(groups: np.ndarray, count: int) -> np.ndarray:
    from psnb._src.metrics.keys import mixed

    different = np.unique(groups)
    return different[np.argsort(mixed(different.astype(np.uint64)))[:count]]


def test_a_group_that_does_not_fit_says_so() -> None:
    state = metrics.GroupAUC(2)([0, 1, 1], [0.1, 0.2, 0.3], groups=[1, 1, 1])
    assert "capacity=2" in state.reason
    assert state.coverage == 0


def expected_in_any_order(
    labels: np.ndarray, scores: np.ndarray, value: Callable[[list[int]], float]
) -> float:
    """Return the mean of a value over all orders of the candidates, sorted by their scores."""
    found = []
    for order in itertools.permutations(range(labels.size)):
        ranked = sorted(order, key=lambda place: -scores[place])  # keeps the order of equal ones
        found.append(value([int(labels[place]) for place in ranked]))
    return float(np.mean(found))


@given(seed=st.integers(0, 2**32), k=st.integers(1, 6), levels=st.sampled_from([1, 2, 3, 100]))
@settings(deadline=None, max_examples=15)
def test_metrics_of_queries_are_those_of_scikit_learn_and_of_all_orders(
    seed: int, k: int, levels: int
) -> None:
    random = np.random.default_rng(seed)
    labels, scores = random.integers(0, 3, (3, 5)), random.integers(0, levels, (3, 5))
    relevant = labels.max(axis=1) > 0
    if not relevant.any():
        return

    def hit(ranked: list[int]) -> float:
        return float(any(ranked[:k]))

    def reciprocal(ranked: list[int]) -> float:
        return next((1 / place for place, each in enumerate(ranked[:k], 1) if each), 0.0)

    own = [*zip(labels[relevant], scores[relevant], strict=True)]
    expected = {
        metrics.NDCG(k): sk.ndcg_score(labels[relevant], scores[relevant], k=k),
        metrics.HitRate(k): np.mean([expected_in_any_order(*each, hit) for each in own]),
        metrics.MRR(k): np.mean([expected_in_any_order(*each, reciprocal) for each in own]),
    }
    groups, shuffled = np.repeat([-5, 3, 8], 5), random.permutation(15)
    for metric, value in expected.items():
        state = metric(labels, scores)
        assert float(state) == pytest.approx(value, rel=1e-9)
        columns = (each.ravel()[shuffled] for each in (labels, scores))
        assert float(metric(*columns, groups=groups[shuffled])) == pytest.approx(value, rel=1e-9)


def test_values_by_hand() -> None:
    labels, scores = [[0, 1, 0, 0], [3, 0, 0, 1]], [[0.9, 0.8, 0.1, 0.2], [0.1, 0.9, 0.8, 0.7]]
    assert float(metrics.HitRate(1)(labels, scores)) == 0.0
    assert float(metrics.HitRate(2)(labels, scores)) == 0.5
    assert float(metrics.MRR()(labels, scores)) == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert float(metrics.MRR(2)(labels, scores)) == 0.25
    second = (1 / 2 + 3 / math.log2(5)) / (3 + 1 / math.log2(3))
    assert float(metrics.NDCG()(labels, scores)) == pytest.approx((1 / math.log2(3) + second) / 2)


def test_ten_thousand_equal_scores_gain_what_chance_does() -> None:
    labels = np.zeros((1, 10_000))
    labels[0, 0] = 1
    equal = np.ones_like(labels)
    assert float(metrics.HitRate(10)(labels, equal)) == pytest.approx(1e-3)
    harmonic = (1 / np.arange(1, 10_001)).mean()
    assert float(metrics.MRR(None)(labels, equal)) == pytest.approx(harmonic)


@pytest.mark.parametrize("metric", QUERIES, ids=str)
def test_queries_without_a_relevant_candidate_are_left_out(metric: Any) -> None:
    labels, scores = [[0, 1], [0, 0]], [[0.1, 0.2], [0.3, 0.4]]
    assert metric(labels, scores) == metric(labels[:1], scores[:1])
    assert "above 0" in metric(labels[1:], scores[1:]).reason
    assert "above 0" in metric([0, 0], [0.1, 0.2], groups=[1, 1]).reason
    assert metric(np.zeros((0, 3)), np.zeros((0, 3))) == metric.empty()
    assert metric(np.zeros((2, 0)), np.zeros((2, 0))) == metric.empty()


def test_queries_are_weighted() -> None:
    labels, scores = [[1, 0], [0, 1]], [[0.9, 0.1], [0.9, 0.1]]
    assert float(metrics.HitRate(1)(labels, scores, [3, 1])) == 0.75


@pytest.mark.parametrize(
    "groups",
    [
        pd.Series(["u", "v", "u"], dtype="category"),
        *(pa.array(["u", "v", "u"]), np.array([3, 2**63, 3], np.uint64), torch.tensor([1, 2, 1])),
        [True, False, True],
    ],
    ids=lambda each: type(each).__name__,
)
def test_groups_of_any_kind_are_taken(groups: Any) -> None:
    assert float(GROUP_AUC([0, 1, 1], [0.1, 0.5, 0.2], groups=groups)) == 1.0


@pytest.mark.parametrize(
    "groups", [[1, None, 1], [1.0, math.nan, 1.0], ["u", "v"], [[1, 2, 3]], 7, [0.5, 1, 2]]
)
@pytest.mark.parametrize("metric", [GROUP_AUC, *QUERIES], ids=str)
def test_what_are_no_groups_is_refused(metric: Any, groups: Any) -> None:
    with pytest.raises(ConfigurationError, match="groups"):
        metric([0, 1, 1], [0.1, 0.5, 0.2], groups=groups)


@pytest.mark.parametrize("metric", QUERIES, ids=str)
@pytest.mark.parametrize(
    ("labels", "scores", "more"),
    [
        ([1, 0], [0.1, 0.2], {}),
        ([[1, 0]], [[0.1, 0.2, 0.3]], {}),
        ([[-1, 0]], [[0.1, 0.2]], {}),
        ([[1, math.nan]], [[0.1, 0.2]], {}),
        ([[1, 0]], [[0.1, math.inf]], {}),
        ([[1, 0]], [[0.1, 0.2]], {"weights": [1, 2]}),
        ([[1, 0]], [[0.1, 0.2]], {"weights": [-1]}),
        ([[1, 0]], [[0.1, 0.2]], {"groups": [1]}),
        ([1, 0], [0.1, 0.2], {"groups": [1, 1], "weights": [1, 1]}),
        ([1, 0], [0.1], {"groups": [1, 1]}),
        ([-1, 0], [0.1, 0.2], {"groups": [1, 1]}),
        ([[1, 0]], [[0.1, 0.2]], {"by": ["a", "b"]}),
        (["a", "b"], [0.1, 0.2], {"groups": [1, 1]}),
    ],
)
def test_bad_queries_are_refused(metric: Any, labels: Any, scores: Any, more: Any) -> None:
    with pytest.raises(ConfigurationError):
        metric(labels, scores, **more)


@pytest.mark.parametrize("kind", [metrics.NDCG, metrics.HitRate, metrics.MRR])
@pytest.mark.parametrize("given", [{"k": 0}, {"k": 2.5}, {"capacity": 0}, {"capacity": None}])
def test_settings_of_queries_that_make_no_sense_are_refused(kind: Any, given: Any) -> None:
    with pytest.raises(ConfigurationError):
        kind(**given)
