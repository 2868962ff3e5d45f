"""Curves as checkpoints keep them, and of a run that goes on."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from psnb._src.monitor.charts.curves import (
    MOST_POINTS,
    Curves,
    SavedCurve,
    SavedCurves,
    curves_of,
    joined,
    loaded_curves,
    saved_curves,
)
from psnb._src.monitor.history import History, Rewind
from psnb._src.utils.sealed_json import plain_json, typed


def reported(count: int, batch: float = 10.0) -> History:
    history = History()
    for step in range(1, count + 1):
        history.add(float(step), {"loss": 1.0 / step, "examples": batch})
    return history


def kept(curves: Curves) -> Curves:
    """Return what JSON makes of curves."""
    return loaded_curves(typed(plain_json(msgspec.to_builtins(saved_curves(curves))), SavedCurves))


def test_curves_come_back_as_they_were() -> None:
    history = reported(5)
    history.add(6.0, {"loss": math.nan})
    history.add(7.0, {"loss": math.inf})
    before = curves_of(history)
    after = kept(before)
    assert after.examples == 50.0
    for name, curve in before.named.items():
        assert after.named[name].count == curve.count
        assert after.named[name].points.tobytes() == curve.points.tobytes()


def test_points_have_the_examples_that_were_reported_with_them() -> None:
    history = reported(3)
    history.add_validation(9.0, {"loss": 0.5})
    named = curves_of(history).named
    assert named["loss"].points["examples"].tolist() == [10.0, 20.0, 30.0]
    assert named["val_loss"].points["examples"].tolist() == [30.0]


def test_long_curves_are_thinned_evenly_to_their_last_point() -> None:
    points = kept(curves_of(reported(5_000))).named["loss"].points
    assert len(points) == MOST_POINTS
    assert points["step"][-1] == 5_000
    assert np.diff(points["step"]).max() <= 6


def test_a_run_that_goes_on_counts_on() -> None:
    later = reported(2, batch=5.0)
    later.add_validation(3.0, {"loss": 0.5})
    later.add(4.0, {"auc": 0.75})
    curves = joined(kept(curves_of(reported(3))), curves_of(later))
    steps = {name: curve.points["step"].tolist() for name, curve in curves.named.items()}
    assert steps["loss"] == [1, 2, 3, 4, 5]
    assert steps["val_loss"] == [5]  # where its metric was then
    assert steps["auc"] == [5]  # reported for the first time, at the step of all
    assert curves.named["loss"].points["examples"].tolist() == [10.0, 20.0, 30.0, 35.0, 40.0]
    assert (curves.named["loss"].count, curves.examples) == (5, 40.0)


def test_rewinds_are_kept_and_count_on() -> None:
    earlier, later = reported(3), reported(2, batch=5.0)
    earlier.cut(4.0, 2.0)
    later.cut(6.0, 1.0)
    curves = joined(kept(curves_of(earlier)), curves_of(later))
    assert curves.rewinds == ((3, 4.0, 30.0, 2.0), (5, 6.0, 40.0, 1.0))
    assert kept(curves).cuts == curves.cuts


@pytest.mark.parametrize(
    "rewinds",
    [
        [(0, math.nan, 0.0, 0.0)],
        [(-1, 1.0, 0.0, 0.0)],
        [(0, 1.0, math.inf, 0.0)],
        [(0, 1.0, 0.0, 2.0)],
        [(0, 2.0, 0.0, 0.0), (0, 1.0, 0.0, 0.0)],
    ],
)
def test_rewinds_that_cannot_be_are_refused(rewinds: list[tuple[int, float, float, float]]) -> None:
    with pytest.raises(ValueError, match="went back"):
        loaded_curves(SavedCurves(rewinds=tuple(Rewind(*each) for each in rewinds)))


@pytest.mark.parametrize("points", ["", "AAAA", "no base64!", "/" * 56])
def test_what_is_no_curve_is_refused(points: str) -> None:
    with pytest.raises(ValueError, match=r"points of|base64"):
        loaded_curves(SavedCurves({"loss": SavedCurve(1, points)}))
