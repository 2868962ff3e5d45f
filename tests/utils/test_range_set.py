"""Sets of ranges, beside plain sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from psnb._src.utils.range_set import RangeSet

RANGES = st.lists(st.tuples(st.integers(-5, 30), st.integers(-2, 8)).map(lambda r: (r[0], sum(r))))


def made(ranges: list[tuple[int, int]]) -> tuple[RangeSet, set[int]]:
    found, plain = RangeSet(), set[int]()
    for start, stop in ranges:
        found.add(start, stop)
        plain |= set(range(start, stop))
    return found, plain


def numbers(of: RangeSet) -> set[int]:
    return {number for each in of for number in each}


@given(RANGES)
def test_it_has_what_was_added(ranges: list[tuple[int, int]]) -> None:
    found, plain = made(ranges)
    assert numbers(found) == plain
    for number in range(-10, 50):
        assert (number in found) == (number in plain)


@given(RANGES)
def test_its_ranges_are_in_order_and_as_few_as_can_be(ranges: list[tuple[int, int]]) -> None:
    found, plain = made(ranges)
    assert all(before.stop < after.start for before, after in pairwise(found))
    assert all(found)
    assert len(found) == sum(number - 1 not in plain for number in plain)


@given(RANGES, RANGES)
def test_two_are_one_in_either_order(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    first, second = made(one)[0], made(other)[0]
    before = second.bounds()
    second.update(first.bounds())
    first.update(before)
    assert first.bounds() == second.bounds() == made(one + other)[0].bounds()


@given(RANGES)
def test_it_travels_as_its_bounds(ranges: list[tuple[int, int]]) -> None:
    found, _ = made(ranges)
    again = RangeSet(found.bounds())
    again.add(-100, -99)
    assert numbers(again) - numbers(found) == {-100}


@given(RANGES, st.integers(0, 40), st.integers(0, 10))
def test_the_first_gap_in_a_range_is_found(
    ranges: list[tuple[int, int]], start: int, size: int
) -> None:
    (among, _), lacking = made(ranges), list[int]()
    for number in range(start, start + size):
        if number not in among:
            lacking.append(number)
        elif lacking:
            break
    found = range(*among.gap(start, start + size))
    assert list(found) == lacking
    assert found.stop <= start + size
