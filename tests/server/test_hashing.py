"""Tests of what is made of ids that are there more than once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from psnb._src.server import hashing, kernels
from psnb._src.server.hashing import distinct, summed

IDS = st.integers(0, 9) | st.integers(0, 2**64 - 1)


@settings(max_examples=60)
@given(ids=hnp.arrays(np.uint64, st.integers(0, 40), elements=IDS))
def test_each_id_is_there_once_in_the_order_of_first_appearance(ids: np.ndarray) -> None:
    found, position = distinct(ids)
    assert found.tolist() == list(dict.fromkeys(ids.tolist()))
    np.testing.assert_array_equal(found[position], ids)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 16_384, 16_385, 100_000])
@pytest.mark.parametrize("shift", [0, 40])
def test_any_number_of_distinct_ids_is_found(count: int, shift: int) -> None:
    ids = np.arange(count, dtype=np.uint64) << np.uint64(shift)
    twice = np.concatenate([ids, ids[::-1]])
    found, position = distinct(twice)
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_array_equal(found[position], twice)


@settings(max_examples=60)
@given(
    ids=hnp.arrays(np.uint64, st.integers(0, 40), elements=IDS),
    dim=st.integers(1, 3),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_gradients_of_equal_ids_are_summed(ids: np.ndarray, dim: int, dtype: str) -> None:
    # Whole numbers, so sums are exact in any order.
    gradients = np.random.default_rng(0).integers(-9, 9, (ids.size, dim)).astype(dtype)
    before = gradients.copy()
    found, sums = summed(ids, gradients)
    expected = [gradients[ids == each].sum(0) for each in found]
    np.testing.assert_array_equal(sums, np.reshape(expected, (found.size, dim)))
    np.testing.assert_array_equal(gradients, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (3, 1), (5, 2)])
def test_adding_up_tells_whether_all_numbers_are_finite(bad: float, at: tuple[int, int]) -> None:
    gradients, position = np.full((6, 3), np.finfo("f4").max), np.array([0, 1, 1, 0, 2, 0], "i4")
    gradients = gradients.astype("f4")
    gradients[::2] *= -1  # sums of finite numbers may be infinite, which is not the question
    out, one = np.empty((3, 3), "f4"), np.float32(1)
    assert hashing.add_up(kernels.read_only(gradients), position, out, 0, one) == (0, 3)
    gradients[at] = bad
    assert np.isnan(hashing.add_up(kernels.read_only(gradients), position, out, 0, one)[0])
