"""What is said of a name that is not there."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.monitor.charts.plot import plot
from psnb._src.training.whole_splits import Results
from psnb._src.utils.text import Named, unknown
from psnb.errors import ConfigurationError


def test_near_names_are_said_else_all() -> None:
    known = ["loss", "auc"]
    assert unknown("metric", "los", known) == "there is no metric 'los': did you mean 'loss'?"
    assert unknown("metric", "x", known) == "there is no metric 'x'; there are loss, auc"
    assert unknown("metric", 3, []) == "there is no metric 3; there are none"


def test_a_dict_says_what_it_has() -> None:
    found = pickle.loads(pickle.dumps(Named({"loss": 1}, "metric")))
    assert found == {"loss": 1}
    with pytest.raises(KeyError, match="auc") as error:
        found["auc"]
    assert error.value.__notes__ == ["there is no metric 'auc'; there are loss"]


ROW = psnb.EpochRow(1, {"loss": 0.5}, 100, 10, 1.5)
RESULTS = Results({"loss": 0.5}, "metric")
HELD = {
    "evaluate": RESULTS,
    "copied": copy.copy(pickle.loads(pickle.dumps(RESULTS))),
    "its slices": RESULTS.slices,
    "row": ROW.metrics,
    "slices of a row": ROW.slices,
    "slices of a history": psnb.TrainingHistory((ROW,)).slices,
}


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_what_training_returns_says_what_it_has(held: Any) -> None:
    with pytest.raises(KeyError) as error:
        held["auc"]
    assert error.value.__notes__[0].startswith("there is no metric")


def test_a_copy_of_results_has_their_slices() -> None:
    results = Results({"loss": 0.5}, "metric")
    results.slices = {"loss": psnb.metrics.Mean()([1.0], by=[1]).slices}
    assert copy.copy(pickle.loads(pickle.dumps(results))).slices.keys() == {"loss"}


def test_metrics_say_which_there_are() -> None:
    states = psnb.metrics.MetricStates({"loss": psnb.metrics.Mean()(1.0)})
    with pytest.raises(KeyError) as error:
        states["accuracy"]
    assert error.value.__notes__ == ["there is no metric 'accuracy'; there are loss"]
    with pytest.raises(KeyError) as error:
        states.results()["accuracy"]
    assert error.value.__notes__ == ["there is no metric 'accuracy'; there are loss"]


def test_a_plot_of_a_name_alone_is_of_that_metric() -> None:
    points = np.arange(3.0)
    history = {"loss": dict.fromkeys(("step", "time", "value", "smoothed"), points)}
    assert len(plot(history, "loss").axes) == 1
    with pytest.raises(ConfigurationError, match="no metric 'los': did you mean 'loss'"):
        plot(history, "los")


def test_another_is_made_of_its_class_as_of_a_dict() -> None:
    # Libraries do so with batches.
    assert type(Named({"x": 1}, "feature"))([("x", 2)]) == {"x": 2}
