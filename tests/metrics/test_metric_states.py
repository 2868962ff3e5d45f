"""The states of several metrics at one moment."""

from __future__ import annotations

import math

import pytest

from psnb import metrics

AUC, MEAN = metrics.AUC(), metrics.Mean()
FIRST = AUC([0, 1], [0.2, 0.9])
MORE = AUC([0, 1], [0.6, 0.1])


def test_since_a_mark_is_what_came_after_it_exactly() -> None:
    mark = metrics.MetricStates({"auc": FIRST, "loss": MEAN([0.1])})
    now = metrics.MetricStates({"auc": FIRST + MORE, "loss": MEAN([0.1]) + MEAN([0.2, 0.3])})
    assert dict(now.since(mark)) == {"auc": MORE, "loss": MEAN([0.2, 0.3])}


def test_names_without_news_are_left_out() -> None:
    mark = metrics.MetricStates({"auc": FIRST, "loss": MEAN([0.1])})
    now = metrics.MetricStates({"auc": FIRST + MORE, "loss": MEAN([0.1])})
    assert list(now.since(mark)) == ["auc"]
    assert not now.since(now)


def test_names_that_are_new_or_mean_another_metric_count_from_their_start() -> None:
    mark = metrics.MetricStates({"auc": MEAN([0.1])})
    now = metrics.MetricStates({"auc": FIRST, "loss": MEAN([0.2])})
    assert dict(now.since(mark)) == dict(now)


def test_a_mark_does_not_change_with_what_it_was_made_of() -> None:
    states = {"auc": FIRST}
    mark = metrics.MetricStates(states)
    states["auc"] = MORE
    assert mark["auc"] == FIRST
    with pytest.raises(TypeError):
        mark["auc"] = MORE  # type: ignore[index]


def test_it_shows_results() -> None:
    now = metrics.MetricStates({"auc": FIRST, "loss": MEAN.empty()})
    assert now.results()["auc"] == 1.0
    assert math.isnan(now.results()["loss"])
    assert repr(now) == "<psnb.MetricStates auc 1, loss nan>"
    assert repr(metrics.MetricStates({})) == "<psnb.MetricStates nothing reported>"
