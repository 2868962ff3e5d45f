"""Exact sums: what a whole number of smallest units holds, and that nothing is rounded."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.metrics import exact_sums

FINITE = st.floats(allow_nan=False, allow_infinity=False)
UNITS = 2**exact_sums.FRACTION_BITS


@given(st.lists(FINITE))
def test_a_sum_is_exact(values: list[float]) -> None:
    total = exact_sums.exact_total(np.array(values, np.float64))
    assert Fraction(total, UNITS) == sum(map(Fraction, values), Fraction(0))


@given(st.lists(st.floats(-1e300, 1e300)))
def test_it_is_rounded_once_as_that_of_fsum(values: list[float]) -> None:
    total = exact_sums.exact_total(np.array(values, np.float64))
    assert exact_sums.rounded(total) == math.fsum(values)


def test_more_numbers_than_are_summed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sums, "_MOST", 3)
    values = np.array([1e16, 1.0, -1e16, 1.0, 1e-300, 5e-324, -1.0])
    expected = sum(map(Fraction, values.tolist()), Fraction(0))
    assert Fraction(exact_sums.exact_total(values), UNITS) == expected


def test_as_many_large_halves_as_are_summed_at_once_stay_exact() -> None:
    # All bits of the fractions are set; the halves' sums are the largest that occur.
    value = np.nextafter(2.0, 0.0)
    values = np.full(exact_sums._MOST, value)
    assert exact_sums.exact_total(values) == exact_sums._MOST * int(Fraction(value) * UNITS)


@given(st.lists(FINITE, min_size=1, max_size=4))
def test_words_hold_sums_of_either_sign(values: list[float]) -> None:
    totals = [exact_sums.exact_total(np.array([each])) for each in values]
    words = exact_sums.to_words(totals)
    assert words.shape == (len(values), 34)
    assert words.dtype == np.uint64
    assert exact_sums.to_totals(words) == totals


def test_words_hold_very_many_of_the_largest_number() -> None:
    largest = exact_sums.exact_total(np.array([np.finfo(np.float64).max]))
    totals = [largest * 2**76, -largest * 2**76]
    assert exact_sums.to_totals(exact_sums.to_words(totals)) == totals


def test_what_is_too_large_for_a_float_is_infinite() -> None:
    largest = exact_sums.exact_total(np.array([np.finfo(np.float64).max]))
    assert exact_sums.rounded(2 * largest) == math.inf
    assert exact_sums.rounded(-2 * largest) == -math.inf
