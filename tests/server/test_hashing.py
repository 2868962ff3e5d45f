"""Tests of what is made of ids that are there more than once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from psnb._src.server import hashing, kernels
from psnb._src.server.hashing import distinct, each_once, summed

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


@pytest.mark.parametrize("count", [0, 1, 33, 65_535, 65_536, 100_000])
@pytest.mark.parametrize("alike", [1, 2**32, 2**52])
def test_each_id_is_kept_once_in_any_order(count: int, alike: int) -> None:
    ids = np.arange(count, dtype=np.uint64) * np.uint64(alike)  # the last ones repeat
    several = np.concatenate([ids, ids[: count // 3], ids[-3:]])
    np.testing.assert_array_equal(np.sort(each_once(several)), np.unique(ids))
    assert several.tolist() == [*ids, *ids[: count // 3], *ids[-3:]]


def test_ids_whose_hashes_have_the_same_bits_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_DEALT", 4)
    ids, hashed = np.arange(4000, dtype=np.uint64), np.empty(4000, np.uint64)
    hashing.hash_ids(ids, hashed)
    alike = ids[hashed >> np.uint64(60) == 7]  # all in one of 64 buckets
    assert alike.size > 100
    assert sorted(each_once(np.concatenate([alike, alike]))) == alike.tolist()


class Shared:
    """Ids in memory that another process writes to, when all have been read once."""

    def __init__(self, before: np.ndarray, after: np.ndarray) -> None:
        self.size, self._read = before.size, 0
        self._before, self._after = before, after

    def __getitem__(self, at: int) -> np.uint64:
        self._read += 1
        found: np.uint64 = (self._before if self._read <= self.size else self._after)[at]
        return found


@pytest.mark.parametrize("order", [(0, 3), (3, 0), (2, 1), (1, 2)])
def test_ids_that_change_while_they_are_dealt_are_written_nowhere_else(
    order: tuple[int, int],
) -> None:
    # In Python, where numpy raises; compiled, they would be written into the memory of others.
    deal, keep_first = hashing._deal.py_func, hashing._keep_first.py_func
    ids, hashed = np.arange(999, dtype=np.uint64), np.empty(999, np.uint64)
    hashing.hash_ids(ids, hashed)
    before, after = (ids[hashed >> np.uint64(62) == each][:150] for each in order)
    mixed = np.concatenate([after[:75], before[:75]])
    out, stops = np.zeros(150, np.uint64), np.zeros(4, np.int64)
    most = deal(Shared(mixed, after), 2, stops, out)
    assert keep_first(out, stops, np.zeros(max(64, 4 * most), np.int32)) <= 150


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
