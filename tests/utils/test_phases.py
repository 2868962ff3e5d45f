"""What the time of a closure goes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psnb._src.utils import phases
from psnb._src.utils.phases import (
    COMMIT,
    COMPUTE,
    PULL,
    READ,
    PhaseStatistics,
    counted_as,
    start_clock,
    stop_clock,
)


class _Time:
    """A clock that goes forward when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Time]:
    time = _Time()
    monkeypatch.setattr(phases, "perf_counter", time)
    yield time
    stop_clock()


def test_each_moment_counts_for_one_phase(time: _Time) -> None:
    clock = start_clock(READ)
    time.now += 1
    clock.turn(COMPUTE)
    time.now += 2
    clock.turn(COMMIT)
    time.now += 4
    clock.turn(COMMIT)
    assert clock.seconds == [1, 0, 2, 0, 4]


def test_a_door_counts_as_its_phase_and_then_the_phase_before_goes_on(time: _Time) -> None:
    @counted_as(PULL)
    def door(fails: bool = False) -> str:
        time.now += 8
        if fails:
            raise KeyError
        return "value"

    clock = start_clock(COMPUTE)
    assert door() == "value"
    time.now += 1
    with pytest.raises(KeyError):
        door(fails=True)
    time.now += 1
    clock.turn(COMPUTE)
    assert clock.seconds == [0, 16, 2, 0, 0]


def test_a_door_within_a_door_counts_as_the_inner_one(time: _Time) -> None:
    @counted_as(PULL)
    def inner() -> None:
        time.now += 2

    @counted_as(READ)
    def outer() -> None:
        time.now += 1
        inner()
        time.now += 1

    clock = start_clock(COMPUTE)
    outer()
    clock.turn(COMPUTE)
    assert clock.seconds == [2, 2, 0, 0, 0]


def test_doors_count_nothing_where_no_closure_runs() -> None:
    @counted_as(PULL)
    def door() -> int:
        return 3

    clock = start_clock(COMPUTE)
    stop_clock()
    assert door() == 3
    assert clock.seconds == [0.0] * 5


def test_shares_are_of_the_total_and_zero_for_nothing() -> None:
    found = PhaseStatistics(1.0, 0.0, 2.0, 0.0, 1.0)
    assert found.total == 4.0
    assert found.shares == {"read": 0.25, "pull": 0, "compute": 0.5, "push": 0, "commit": 0.25}
    assert set(PhaseStatistics().shares.values()) == {0.0}


def test_statistics_add_up() -> None:
    several = [PhaseStatistics(1.0, 2.0), PhaseStatistics(compute=3.0, read=1.0)]
    assert PhaseStatistics.sum(several) == PhaseStatistics(2.0, 2.0, 3.0)
    assert PhaseStatistics.sum([]) == PhaseStatistics()
