"""How much a worker is sent, by how long closures take."""

from __future__ import annotations

import itertools
from itertools import islice

import pytest

from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.load import (
    AHEAD_SECONDS,
    MOST_AHEAD,
    RECALL_SECONDS,
    SPREAD_SECONDS,
    Load,
)
from psnb._src.coordinator.scheduling.work import Work
from tests.coordinator.queues import NO_ARGUMENTS, ClosureQueue

SHORT, LONG = AHEAD_SECONDS / 8, AHEAD_SECONDS * 10
_numbers = itertools.count()


def closures(count: int, *seconds: float) -> list[Work]:
    """Return closures of one new function, of which others have taken so long."""
    function = FunctionRegistry().register(lambda: None)
    for each in seconds:
        function.duration.add(each)
    queue = ClosureQueue(1)
    return [
        Work(each, each, function, NO_ARGUMENTS, ScheduleOptions(0), RemoteValue(queue.inbox))
        for each in islice(_numbers, count)
    ]


def test_closures_of_unknown_duration_are_sent_one_a_thread() -> None:
    load = Load(threads=2)
    assert [load.add(each) for each in closures(3)] == [True, True, False]
    assert load.refused


def test_long_closures_are_sent_one_a_thread() -> None:
    load = Load(threads=2)
    assert [load.add(each) for each in closures(3, LONG)] == [True, True, False]


def test_short_closures_are_sent_ahead_for_so_many_seconds() -> None:
    load = Load(threads=1)
    assert sum(load.add(each) for each in closures(20, SHORT)) == 1 + 8


def test_one_closure_that_takes_almost_as_long_waits_behind_another() -> None:
    load = Load(threads=1)
    assert [load.add(each) for each in closures(3, 0.9 * AHEAD_SECONDS)] == [True, True, False]


def test_no_more_than_so_many_closures_are_sent_ahead() -> None:
    load = Load(threads=1)
    assert sum(load.add(each) for each in closures(1000, 0.0)) == 1 + MOST_AHEAD


def test_a_short_closure_is_not_sent_behind_a_long_one() -> None:
    load = Load(threads=1)
    assert load.add(closures(1, LONG)[0])
    assert not load.add(closures(1, SHORT)[0])


def test_one_long_closure_leaves_the_other_threads_their_work_ahead() -> None:
    load = Load(threads=2)
    assert load.add(closures(1, LONG)[0])
    assert sum(load.add(each) for each in closures(20, SHORT)) == 1 + 8


def test_a_long_closure_is_not_sent_behind_short_ones() -> None:
    load = Load(threads=1)
    assert load.add(closures(1, SHORT)[0])
    assert not load.add(closures(1, LONG)[0])


def test_less_is_sent_ahead_while_others_have_nothing() -> None:
    load = Load(threads=1)
    load.ahead = SPREAD_SECONDS
    assert sum(load.add(each) for each in closures(1000, SPREAD_SECONDS / 4)) == 1 + 4
    assert [load.add(each) for each in closures(1, SHORT)] == [False]


def test_nothing_waits_behind_what_takes_longer_while_others_have_nothing() -> None:
    load = Load(threads=1)
    load.ahead = SPREAD_SECONDS
    assert load.add(closures(1, SHORT)[0])
    assert not load.add(closures(1, SPREAD_SECONDS / 4)[0])


def test_what_has_ended_makes_room() -> None:
    load = Load(threads=1)
    first, second = closures(2, LONG)
    assert load.add(first)
    assert not load.add(second)
    assert load.remove(first.id) is first
    assert load.add(second)


def test_an_estimate_that_changes_meanwhile_does_not_unbalance_the_books() -> None:
    load = Load(threads=1)
    sent = closures(5, SHORT)
    assert all(load.add(each) for each in sent)
    sent[0].function.duration.add(1000.0)
    for each in sent:
        load.remove(each.id)
    assert sum(load.add(each) for each in closures(20, SHORT)) == 1 + 8


def test_a_worker_that_is_stuck_is_sent_nothing_ahead() -> None:
    load = Load(threads=1)
    load.stuck = True
    assert [load.add(each) for each in closures(2, SHORT)] == [True, False]


def _waiting(threads: int, count: int) -> tuple[Load, list[int]]:
    """Return a load to which closures were sent at 10 seconds, and their ids."""
    load = Load(threads)
    sent = closures(count, SHORT)
    for each in sent:
        load.add(each)
    load.sent(10.0)
    return load, [each.id for each in sent]


def test_half_of_what_waits_is_overdue_at_first_and_then_all_of_it() -> None:
    load, ids = _waiting(threads=1, count=5)
    assert load.overdue(10.0 + RECALL_SECONDS / 2) == []
    assert load.overdue(10.0 + RECALL_SECONDS * 1.1) == ids[3:]
    assert load.stuck
    assert load.overdue(10.0 + RECALL_SECONDS * 1.9) == []
    assert load.overdue(10.0 + RECALL_SECONDS * 2.1) == ids[1:]


def test_nothing_is_overdue_soon_after_an_answer() -> None:
    load, _ = _waiting(threads=1, count=5)
    load.overdue(10.0 + RECALL_SECONDS * 1.1)
    load.answered(11.0, 1.0)
    assert not load.stuck
    assert load.overdue(11.0 + RECALL_SECONDS / 2) == []


def test_a_worker_whose_answers_take_long_is_asked_later() -> None:
    load, ids = _waiting(threads=1, count=2)
    load.answered(10.0 + RECALL_SECONDS, 0.0)
    load.sent(20.0)
    assert load.overdue(20.0 + 3.9 * RECALL_SECONDS) == []
    assert load.overdue(20.0 + 4.1 * RECALL_SECONDS) == ids[1:]


def test_a_worker_that_holds_reports_of_runs_back_is_not_taken_for_slow() -> None:
    load, ids = _waiting(threads=1, count=2)
    load.answered(15.0, 0.0, held=True)
    load.sent(20.0)
    assert load.overdue(20.0 + 1.1 * RECALL_SECONDS) == ids[1:]


def test_what_waits_behind_a_run_is_overdue_when_no_report_of_it_comes() -> None:
    load = Load(threads=1)
    (later,) = closures(1, SHORT)
    how, number = ScheduleOptions(worker="w", steps=5), next(_numbers)
    load.add(Work(number, number, later.function, NO_ARGUMENTS, how, later.remote))
    load.add(later)
    load.sent(10.0)
    assert load.overdue(10.0 + 0.9 * load.long_seconds) == []
    assert load.overdue(10.0 + 1.1 * load.long_seconds) == [later.id]


def test_those_beyond_the_threads_wait_in_the_order_of_their_sending() -> None:
    load = Load(threads=2)
    sent = closures(4, SHORT)
    for each in sent:
        load.add(each)
    assert load.waiting() == [sent[2].id, sent[3].id]
    load.remove(sent[0].id)
    assert load.waiting() == [sent[3].id]


def test_clearing_returns_all_in_the_order_of_their_sending() -> None:
    load = Load(threads=1)
    sent = closures(3, SHORT)
    for each in sent:
        load.add(each)
    assert load.clear() == sent
    assert len(load) == 0


@pytest.mark.parametrize("durations", [(1.0, 0.0), (0.0, 1.0)])
def test_the_mean_forgets_slowly(durations: tuple[float, float]) -> None:
    (closure,) = closures(1, *durations)
    assert closure.function.duration.mean == pytest.approx(0.8 if durations[0] else 0.2)
