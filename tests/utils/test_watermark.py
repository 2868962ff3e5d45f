"""Which closures have ended for good."""

from __future__ import annotations

import random

from psnb._src.utils.profiling import Watermark


def test_the_mark_stands_before_the_first_that_has_not_ended() -> None:
    mark = Watermark()
    for number, low in [(1, 0), (2, 0), (0, 3), (4, 3), (3, 5)]:
        mark.end(number)
        assert mark.low == low


def test_numbers_in_a_row_end_together() -> None:
    mark = Watermark()
    for numbers, low in [
        (range(2), 2),
        (range(5, 7), 2),
        (range(2, 2), 2),
        (range(2, 4), 4),
        (range(4, 5), 7),
        (range(7, 9), 9),
    ]:
        mark.end_all(numbers)
        assert mark.low == low
    assert not mark.ended()


def test_nothing_is_kept_once_all_have_ended() -> None:
    mark = Watermark()
    numbers = list(range(1000))
    random.Random(0).shuffle(numbers)
    for number in numbers:
        mark.end(number)
    assert (mark.low, len(mark._ended)) == (1000, 0)
