"""Tests of the sizes to which arrays are padded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psnb._src.models.jax.row_layout import SizeBuckets, padded_size


@given(st.integers(0, 10**7))
def test_a_size_is_large_enough_and_at_most_a_quarter_larger(count: int) -> None:
    size = padded_size(count)
    assert count <= size <= max(8, 1.25 * count + 1)
    assert padded_size(size) == size


@given(st.lists(st.integers(900, 1000), min_size=1))
def test_counts_that_are_about_the_same_have_two_sizes_at_most(counts: list[int]) -> None:
    sizes = SizeBuckets()
    assert len({sizes.at_least(count) for count in counts}) <= 2


def test_a_few_rows_are_not_padded_to_many() -> None:
    sizes = SizeBuckets()
    assert sizes.at_least(100_000) >= 100_000
    assert sizes.at_least(10) < 20


@given(st.lists(st.integers(0, 10**6)))
def test_what_was_chosen_holds_the_count(counts: list[int]) -> None:
    sizes = SizeBuckets()
    assert all(sizes.at_least(count) >= count for count in counts)
