"""Rates over a sliding window."""

from __future__ import annotations

import pytest

from psnb._src.monitor.counters import SECONDS, Rate


def test_nothing_was_counted_yet() -> None:
    assert Rate().value(10.0) == 0.0


@pytest.mark.parametrize("every", [0.01, 0.5, 1.0])
def test_a_steady_stream_has_its_rate(every: float) -> None:
    rate = Rate()
    for step in range(int(20 / every)):
        rate.add(3.0, step * every)
    assert rate.value(20.0) == pytest.approx(3.0 / every, rel=0.05)


def test_the_rate_is_there_after_a_second_not_only_after_the_window() -> None:
    rate = Rate()
    for step in range(10):
        rate.add(1.0, 100 + step / 10)
    assert rate.value(101.0) == pytest.approx(10.0, rel=0.05)


def test_it_falls_to_nothing_when_nothing_comes_any_more() -> None:
    rate = Rate()
    for step in range(100):
        rate.add(1.0, step / 10)
    assert rate.value(10.0 + SECONDS + 1) == 0.0


def test_what_was_long_ago_does_not_come_back() -> None:
    rate = Rate()
    rate.add(1000.0, 1.0)
    rate.add(1.0, 1000.0)
    assert rate.value(1000.5) < 1.0
