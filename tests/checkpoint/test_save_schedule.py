"""Tests of when saves are due, with times of no clock."""

from __future__ import annotations

from psnb._src.checkpoint.save_schedule import SaveSchedule


def test_a_save_is_due_so_many_seconds_after_the_last() -> None:
    schedule = SaveSchedule(10.0, None, now=100.0)
    assert [schedule.due(now, 10**6) for now in (100.0, 109.9, 110.0)] == [False, False, True]
    schedule.saved(115.0, 0)
    assert [schedule.due(now, 0) for now in (124.9, 125.0)] == [False, True]


def test_a_save_is_due_so_many_steps_after_the_last() -> None:
    schedule = SaveSchedule(None, 5, now=0.0, step=20)
    assert [schedule.due(1e9, step) for step in (24, 25)] == [False, True]
    schedule.saved(0.0, 27)
    assert [schedule.due(1e9, step) for step in (31, 32)] == [False, True]
    schedule.count_from(0)
    assert [schedule.due(1e9, step) for step in (4, 5)] == [False, True]


def test_steps_count_from_where_training_has_gone_back_to() -> None:
    schedule = SaveSchedule(None, 5, now=0.0, step=20)
    assert [schedule.due(1e9, step) for step in (24, 3, 7, 8)] == [False, False, False, True]


def test_with_both_a_save_is_due_at_whichever_comes_first() -> None:
    schedule = SaveSchedule(10.0, 5, now=0.0)
    assert schedule.due(10.0, 0)
    assert schedule.due(0.0, 5)
    assert not schedule.due(9.0, 4)


def test_without_either_no_save_is_ever_due() -> None:
    schedule = SaveSchedule(None, None, now=0.0)
    assert not schedule.wanted
    assert not schedule.due(1e12, 10**12)
    assert SaveSchedule(1.0, None, 0.0).wanted
    assert SaveSchedule(None, 1, 0.0).wanted


def test_after_failures_it_is_due_again_after_pauses_that_grow_to_five_minutes() -> None:
    schedule = SaveSchedule(10.0, None, now=0.0)
    pauses = []
    for _ in range(2000):  # no power of two is too large
        pauses.append(schedule.failed(50.0))
        assert not schedule.due(49.9 + pauses[-1], 0)
        assert schedule.due(50.0 + pauses[-1], 0)
    assert pauses[:4] == [1, 2, 4, 8]
    assert set(pauses[9:]) == {300}


def test_a_save_that_succeeds_ends_the_pauses() -> None:
    schedule = SaveSchedule(None, 1, now=0.0)
    schedule.failed(0.0)
    schedule.failed(0.0)
    assert schedule.failures == 2
    schedule.saved(0.1, 0)
    assert schedule.failures == 0
    assert schedule.due(0.1, 1)
    assert schedule.failed(0.1) == 1
