"""Counts of updates by their staleness."""

from __future__ import annotations

import math

from psnb._src.monitor.counters import Staleness


def test_nothing_is_known_before_the_first_update() -> None:
    found = Staleness().statistics()
    assert (found.count, found.max, found.histogram) == (0, 0, ())
    assert math.isnan(found.mean)


def test_updates_are_counted_by_powers_of_two() -> None:
    staleness = Staleness()
    for each in (0, 0, 1, 2, 3, 4, 7, 8):
        staleness.add(each)
    found = staleness.statistics()
    assert found.histogram == (2, 1, 2, 2, 1)
    assert (found.count, found.max, found.mean) == (8, 8, 25 / 8)
