"""What sets the scale of a chart, and what does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnb._src.monitor.charts.value_range import FEW, shown_range


def shown(*lines: object, begins: tuple[float, ...] = ()) -> tuple[float, float] | None:
    """Return the range of lines of values at 1, 2, 3, ..., which are no means over an epoch."""
    arrays = [np.asarray(values, float) for values in lines]
    return shown_range([(np.arange(1.0, len(a) + 1), a, a - 1) for a in arrays], begins)


def test_all_is_shown_of_a_line_that_goes_down() -> None:
    steps = np.arange(1200)
    assert shown(0.2 + 0.5 * np.exp(-steps / 200)) == pytest.approx((0.2, 0.7), abs=2e-3)


def test_an_outlier_does_not_set_the_scale() -> None:
    assert shown([*np.linspace(0.0, 1.0, 100), 50.0, -50.0]) == (0.0, 1.0)


def test_of_a_few_values_none_is_an_outlier() -> None:
    assert shown(np.linspace(0.0, 1.0, 100), [7.0]) == (0.0, 7.0)
    assert shown([*np.linspace(0.0, 1.0, FEW - 1), 9.0]) == (0.0, 9.0)


def test_exceptions_of_a_constant_are_shown() -> None:
    assert shown([*np.zeros(100), 1.0]) == (0.0, 1.0)


def test_what_is_not_finite_sets_no_scale() -> None:
    assert shown([1.0, math.nan, math.inf, 2.0]) == (1.0, 2.0)
    assert shown([math.nan]) is None
    assert shown([]) is None


def jumping() -> np.ndarray:
    values = 0.7 + np.arange(1.0, 61.0) / 1000
    values[[0, 1, 20, 21, 40, 41]] = 0.0  # the first tenth of each epoch
    return values


def test_the_first_batches_of_an_epoch_do_not_set_the_scale_of_a_mean_over_it() -> None:
    places, values, begins = np.arange(1.0, 61.0), jumping(), [0.5, 20.5, 40.5]
    assert shown_range([(places, values, values)]) == (0.0, 0.76)  # too many to be outliers
    assert shown_range([(places, values, values)], begins) == (0.703, 0.76)


def test_what_came_before_the_first_epoch_counts_and_what_is_all_that_there_is() -> None:
    places = np.arange(1.0, 61.0)
    assert shown_range([(places, places, places)], [58.0]) == (1.0, 60.0)
    assert shown_range([(places, places, places)], [1.0, 1000.0]) == (1.0, 60.0)


def test_of_what_is_no_mean_over_the_epoch_the_first_batches_count() -> None:
    assert shown(jumping(), begins=(0.5, 20.5, 40.5)) == (0.0, 0.76)
