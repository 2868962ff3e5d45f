"""Tests of rounding to half width: exact numbers stay, others move to a neighbour by chance."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.server import stored
from psnb._src.server.stored import merge_rows, put_rows, seed_of
from psnb._src.transport.half_width import codes, computed, rounded, widened

HALF = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def put(
    numbers: np.ndarray, dtype: str, seed: int = 1, ids: np.ndarray | None = None
) -> np.ndarray:
    """Return numbers, ``(n, columns)``, as they are stored."""
    made = np.zeros(numbers.shape, dtype)
    rows = np.arange(len(made))
    put_rows(codes(made), rows, rows.view(np.uint64) if ids is None else ids, numbers, seed, 0)
    return widened(made)


def every(dtype: str) -> np.ndarray:
    """Return all numbers of a dtype, ``(256, 256)``."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(256, 256)


@HALF
def test_numbers_are_widened_exactly(dtype: str) -> None:
    numbers = every(dtype)
    expected = numbers.astype(np.float32)
    np.testing.assert_array_equal(widened(numbers), expected)
    np.testing.assert_array_equal(stored.widened(numbers[:, ::3]), expected[:, ::3])


@HALF
@pytest.mark.parametrize("seed", [1, 2])
def test_a_number_that_half_width_has_stays(dtype: str, seed: int) -> None:
    numbers = widened(every(dtype))
    np.testing.assert_array_equal(put(numbers, dtype, seed), numbers)


@HALF
@pytest.mark.parametrize("size", [1.0, 3e-3, 3e-6])
def test_the_mean_of_rounded_numbers_is_right(dtype: str, size: float) -> None:
    numbers = np.full((1000, 16), size * 1.000_37, np.float32)
    found = put(numbers, dtype)
    near = np.unique(found)
    assert near.size == 2  # the neighbours
    assert near[0] <= numbers[0, 0] <= near[1]
    apart = near[1] - near[0]
    # Of a mean of 16,000 coin flips, the deviation is below 0.004 of what they are apart.
    assert abs(found.mean(dtype=np.float64) - numbers[0, 0]) < 0.02 * apart


@HALF
def test_signs_and_what_is_not_finite_stay(dtype: str) -> None:
    numbers = np.array([[-0.0, np.inf, -np.inf, np.nan, -1.5]], np.float32)
    found = put(numbers, dtype)
    np.testing.assert_array_equal(found, numbers)
    assert np.signbit(found[0, 0])


def test_what_is_too_large_for_float16_is_infinite_as_numpy_has_it() -> None:
    numbers = np.array([[65_504.0, 65_519.0, 65_520.0, -1e6, 1e38]], np.float32)
    np.testing.assert_array_equal(
        put(numbers, "float16"), widened(rounded(numbers, np.dtype(np.float16)))
    )


def test_numbers_of_a_row_are_rounded_independently() -> None:
    numbers = np.full((20_000, 16), 1 + 2.0**-8, np.float32)  # in the middle of two of bfloat16
    two_updates = np.hstack([put(numbers, "bfloat16", seed) for seed in (1, 2)])
    apart = np.corrcoef(two_updates, rowvar=False) - np.eye(32)
    assert np.abs(apart).max() < 0.04  # of so many coin flips, the deviation is 0.007


def test_rounding_follows_from_seed_and_id() -> None:
    numbers = np.full((64, 8), 1.001, np.float32)
    ids = np.arange(64, dtype=np.uint64)
    first = put(numbers, "bfloat16", 5, ids)
    again = put(numbers, "bfloat16", 5, ids[::-1].copy())
    np.testing.assert_array_equal(first, again[::-1])
    assert (first != put(numbers, "bfloat16", 6, ids)).any()
    assert len({seed_of(5, step) for step in range(100)}) == 100


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize(("slot", "expected"), [(0, 2.5), (1, 1.25)])
def test_values_add_what_was_learned_and_slots_approach_it(
    dtype: str, slot: int, expected: float
) -> None:
    stored = np.full((3, 2), 2.0, dtype)
    learned = np.full((2, 2), 0.5, computed(stored.dtype))
    share = learned.dtype.type(1.0 if slot == 0 else 0.5)
    rows, ids = np.array([2, -1]), np.array([7, 8], np.uint64)
    merge_rows(codes(stored), rows, ids, learned, share, 1, slot)
    np.testing.assert_array_equal(widened(stored), [[2.0] * 2, [2.0] * 2, [expected] * 2])
