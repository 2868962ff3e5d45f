"""What is said of a name that is not there."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import psnb
from psnb._src.monitor.charts.plot import plot
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
    history = {"loss": {"step": points, "value": points, "smoothed": points}}
    assert len(plot(history, "loss").axes) == 1
    with pytest.raises(ConfigurationError, match="no metric 'los': did you mean 'loss'"):
        plot(history, "los")


def test_another_is_made_of_its_class_as_of_a_dict() -> None:
    # Libraries do so with batches.
    assert type(Named({"x": 1}, "feature"))([("x", 2)]) == {"x": 2}
