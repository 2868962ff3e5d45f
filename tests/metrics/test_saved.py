"""States of metrics in checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from psnb import metrics
from psnb._src.metrics.metric import MergeableMetric
from psnb._src.metrics.saved import loaded_states, saved_states

LABELS, SCORES = np.arange(100) % 2, np.random.default_rng(0).random(100)

ALL: list[Any] = [
    *(metrics.AUC(), metrics.AUC(buckets=None), metrics.PRAUC(64), metrics.LogLoss()),
    *(metrics.NormalizedEntropy(), metrics.Calibration(), metrics.RMSE(), metrics.MAE()),
    metrics.Accuracy(threshold=0.25),
]


def through_json(content: Any) -> Any:
    return json.loads(json.dumps(content, allow_nan=False))


def test_states_are_the_same_to_the_bit_after_they_were_saved() -> None:
    states = {str(number): metric(LABELS, SCORES) for number, metric in enumerate(ALL)}
    states["mean"] = metrics.Mean()(SCORES)
    states["top"] = metrics.TopK(2)(LABELS, np.stack([SCORES, 1 - SCORES, SCORES], 1))
    states["by"] = metrics.AUC()(LABELS, SCORES, by=LABELS + 7)
    states["by text"] = metrics.LogLoss()(
        LABELS, SCORES, by=np.array(["x", "yy"])[LABELS], slices=1
    )
    states["groups"] = metrics.GroupAUC(20)(LABELS, SCORES, groups=np.arange(100) % 9)
    both = {"groups": np.arange(100) % 9, "by": LABELS == 0}
    states["groups by"] = metrics.GroupAUC()(LABELS, SCORES, **both)
    states["ndcg"] = metrics.NDCG()(LABELS, SCORES, **both)
    states["hit"] = metrics.HitRate(k=None)(LABELS.reshape(10, 10), SCORES.reshape(10, 10))
    states["mrr"] = metrics.MRR()(LABELS, SCORES, groups=LABELS)
    states["empty by"] = states["by"].metric.empty()
    states["empty"] = metrics.AUC(buckets=None).empty()
    found = loaded_states(through_json(saved_states(states)))
    assert dict(found) == states
    assert found["0"] + states["0"] == states["0"] + states["0"]


def test_each_metric_of_psnb_can_be_saved() -> None:
    kinds = {each for each in vars(metrics).values() if isinstance(each, type)}
    own = {each for each in kinds if issubclass(each, MergeableMetric)} - {MergeableMetric}
    assert own == {type(each) for each in ALL} | {
        *(metrics.Mean, metrics.TopK, metrics.GroupAUC),
        *(metrics.NDCG, metrics.HitRate, metrics.MRR),
    }


def test_a_users_own_and_a_large_one_are_left_out() -> None:
    @dataclass(frozen=True)
    class Mine(metrics.Mean):
        pass

    many = np.random.default_rng(1).random(310_000)
    states = {
        "mine": Mine()(SCORES),
        "mine by": Mine()(SCORES, by=LABELS),
        "large": metrics.AUC(buckets=None)(many > 0.5, many),
        "small": metrics.Mean()(SCORES),
    }
    assert [*saved_states(states)] == ["small"]


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no metric": lambda saved: saved.pop("metric"),
    "another metric": lambda saved: saved.update(metric={"name": "Mean"}),
    "no base64": lambda saved: saved.update(array="?"),
    "no text": lambda saved: saved.update(array=3),
    "not packed": lambda saved: saved.update(array="AAAA"),
    "cut off": lambda saved: saved.update(array=saved["array"][:8]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    saved = saved_states({"auc": metrics.AUC()(LABELS, SCORES)})
    damage(saved["auc"])
    with pytest.raises(ValueError, match=r"."):
        loaded_states(saved)
