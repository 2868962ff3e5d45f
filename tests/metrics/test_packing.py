"""What arrays of states take on the wire, and that they come back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.metrics.metric import packed, unpacked


def same(array: np.ndarray) -> bool:
    again = unpacked(packed(array))
    return again.dtype == array.dtype and np.array_equal(again, array)


def size(array: np.ndarray) -> int:
    *_, places, values = packed(array)
    return len(places) + len(values)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=40), st.integers(0, 60))
def test_whole_numbers_come_back(numbers: list[int], zeros: int) -> None:
    assert same(np.array([*[0] * zeros, *numbers], "<i8"))
    assert same(np.array([*numbers, *[0] * zeros], "<u8") << 1)


@pytest.mark.parametrize("length", [1, 8, 9, 1 << 16, (1 << 16) + 1])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_arrays_of_any_density_come_back(length: int, step: int) -> None:
    array = np.zeros((1, length), "<i8")
    array[0, ::step] = 7 << 20
    assert same(array)


def test_an_array_with_fields_comes_back() -> None:
    assert same(np.array([(0.5, 3), (2.5, -4)], [("score", "<f8"), ("count", "<i8")]))


def test_few_counts_take_three_bytes_each_and_many_a_byte_and_a_bit() -> None:
    counts = np.zeros(8192, "<i8")
    counts[:4000:40] = 200 << 20
    assert size(counts) == 100 * 3
    counts[::2] = 1 << 20
    assert size(counts) == 4096 + 8192 // 8
