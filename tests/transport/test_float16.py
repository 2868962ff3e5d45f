"""Tests of arrays that travel with 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.transport.message import as_float32, halved

RELATIVE, ABSOLUTE = 2.0**-11, 2.0**-39


def numbers(scale: float) -> np.ndarray:
    spread = np.random.default_rng(0).normal(size=(1000, 4)) * 10.0 ** np.arange(-8, 0, 2)
    return (spread * scale).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e30])
def test_numbers_of_any_size_arrive_with_the_error_that_is_stated(scale: float) -> None:
    array = numbers(scale)
    found = halved(array)
    assert found.halves.dtype == np.float16
    error = np.abs(as_float32(found).astype(float) - array)
    limit = np.maximum(np.abs(array) * RELATIVE, np.abs(array).max() * ABSOLUTE)
    assert (error <= limit).all()


@pytest.mark.parametrize("scale", [1e-38, 1.0, 3e38])
def test_what_is_rounded_stays_as_it_is_when_it_travels_on(scale: float) -> None:
    once = as_float32(halved(np.array([1.0, -0.3, 0.0007], np.float32) * np.float32(scale)))
    np.testing.assert_array_equal(as_float32(halved(once)), once)


def test_nan_and_infinities_arrive_and_do_not_change_the_others() -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1e-6, 0.0], np.float32)
    np.testing.assert_array_equal(as_float32(halved(array))[:3], array[:3])
    np.testing.assert_allclose(as_float32(halved(array))[3:], array[3:], rtol=RELATIVE)


@pytest.mark.parametrize("array", [np.zeros((3, 2), np.float32), np.empty((0, 4), np.float32)])
def test_zeros_and_nothing_arrive(array: np.ndarray) -> None:
    found = as_float32(halved(array))
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.float32


def test_other_things_are_left_alone() -> None:
    array = np.arange(3)
    assert as_float32(array) is array
