"""Which closures have ended for good."""

from __future__ import annotations

import random

from psnb._src.utils.profiling import Watermark


def test_the_mark_stands_before_the_first_that_has_not_ended() -> None:
    mark = Watermark()
    for number, low in [(1, 0), (2, 0), (0, 3), (4, 3), (3, 5)]:
        mark.end(number)
        assert mark.low == low


def test_nothing_is_kept_once_all_have_ended() -> None:
    mark = Watermark()
    numbers = list(range(1000))
    random.Random(0).shuffle(numbers)
    for number in numbers:
        mark.end(number)
    assert (mark.low, len(mark._ended)) == (1000, 0)
