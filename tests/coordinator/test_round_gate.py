"""Rounds of closures: which may begin, and when a round is applied. Without Dask."""

from __future__ import annotations

import pytest

from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.gates import ApplyRound, RoundGate, Step
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.monitor.statistics import WorkerStatistics
from psnb.errors import ServerLostError
from tests.coordinator.queues import (
    TIMEOUT,
    ClosureQueue,
    commit_of,
    fail,
    in_thread,
    numbers,
    put,
    put_one,
    succeed,
    wait_for_waiter,
    worker,
)


def rounds_of(closures: int) -> tuple[ClosureQueue, list[Step]]:
    steps: list[Step] = []
    queue = ClosureQueue(100, gate=RoundGate(closures))
    queue.attach(on_step=steps.append)
    return queue, steps


def take(queue: ClosureQueue, count: int = 100) -> list[Work]:
    return queue.take(count)


def commits(closures: list[Work]) -> tuple[int, ...]:
    return tuple(commit_of(closure) for closure in closures)


def test_no_closure_of_a_round_begins_before_the_round_before_it_was_applied() -> None:
    queue, steps = rounds_of(2)
    put(queue, 5)
    first = take(queue)
    assert numbers(first) == [0, 1]
    succeed(queue, first[0], pushed=True)
    assert take(queue) == []
    succeed(queue, first[1], pushed=True)
    assert steps == [ApplyRound(0, commits(first))]
    assert take(queue) == []
    assert not queue.has_work()
    queue.stepped(None)
    assert queue.has_work()
    second = take(queue)
    assert numbers(second) == [2, 3]
    assert [each.execution.round for each in (*first, *second)] == [0, 0, 1, 1]


def test_lanes_that_went_away_are_woken_when_the_next_round_may_begin() -> None:
    woken: list[None] = []
    queue = ClosureQueue(100, gate=RoundGate(1))
    queue.attach(lambda: woken.append(None))
    put(queue, 2)
    (first,) = take(queue)
    assert take(queue) == []
    woken.clear()
    succeed(queue, first, pushed=True)
    queue.stepped(None)
    assert woken


def test_closures_count_in_the_order_in_which_they_were_scheduled_however_they_begin_and_end() -> (
    None
):
    queue, steps = rounds_of(3)
    first = put_one(queue, 0, pin="b")
    others = [put_one(queue, number) for number in (1, 2)]
    taken = take(queue)  # by a worker that is not b
    assert taken == others
    taken += queue.take(9, lambda: worker("b"))
    for each in taken:
        succeed(queue, each, pushed=True)
    assert commits(taken) == (0, 1, 2)
    assert steps == [ApplyRound(0, commits([first, *others]))]


def test_of_each_lane_one_closure_runs_at_a_time() -> None:
    queue, _ = rounds_of(4)
    closures = [put_one(queue, number, slot=number % 2) for number in range(4)]
    assert take(queue) == closures[:2]
    assert take(queue) == []
    succeed(queue, closures[0])
    assert take(queue) == [closures[2]]
    queue.put_back([closures[2]], 0, "killed")
    assert take(queue) == [closures[2]]
    assert take(queue) == []
    fail(queue, closures[2], ValueError("boo"))
    assert queue.statistics().failing


def test_a_closure_that_failed_or_pushed_nothing_has_a_seat_and_no_vote() -> None:
    queue, steps = rounds_of(3)
    put(queue, 3)
    pushed, unresponsive, failed = take(queue)
    fail(queue, failed, ValueError("boo"))
    succeed(queue, unresponsive)
    succeed(queue, pushed, pushed=True)
    assert steps == [ApplyRound(0, (commit_of(pushed),))]


def test_a_round_in_which_nothing_was_pushed_needs_no_step() -> None:
    queue, steps = rounds_of(2)
    put(queue, 4)
    for each in take(queue):
        succeed(queue, each)
    assert not steps
    assert numbers(take(queue)) == [2, 3]


def test_a_lost_closure_runs_again_in_its_round() -> None:
    queue, steps = rounds_of(2)
    put(queue, 4, retries=1)
    ended, lost = take(queue)
    succeed(queue, ended, pushed=True)
    queue.put_back([lost], 1, "killed")
    assert take(queue) == [lost]
    assert take(queue) == []
    succeed(queue, lost, pushed=True)
    assert steps == [ApplyRound(0, commits([ended, lost]))]


def test_a_lost_closure_does_not_hold_up_the_round_if_one_of_higher_priority_is_there() -> None:
    queue, steps = rounds_of(2)
    put(queue, 2, retries=1)
    ended, lost = take(queue)
    succeed(queue, ended, pushed=True)
    queue.put_back([lost], 1, "killed")
    urgent = put_one(queue, 9, priority=1)
    assert take(queue) == [urgent]
    succeed(queue, urgent, pushed=True)
    assert steps == [ApplyRound(0, commits([ended, urgent]))]
    queue.stepped(None)
    assert take(queue) == [lost]
    assert lost.execution.round == 1


def test_join_has_the_last_smaller_round_applied_first() -> None:
    queue, steps = rounds_of(3)
    put(queue, 1)
    (each,) = take(queue)
    succeed(queue, each, pushed=True)
    assert not steps
    joining = in_thread(queue.join)
    wait_for_waiter(queue)
    assert steps == [ApplyRound(0, (commit_of(each),))]
    assert not joining.done()
    queue.stepped(None)
    joining.result(TIMEOUT)


def test_done_is_false_until_the_last_round_was_applied() -> None:
    queue, steps = rounds_of(3)
    put(queue, 1)
    (each,) = take(queue)
    succeed(queue, each, pushed=True)
    assert [queue.done(), queue.done()] == [False, False]
    assert len(steps) == 1
    queue.stepped(None)
    assert queue.done()


def test_draining_applies_what_has_ended_and_leaves_the_rest_for_later_rounds() -> None:
    queue, steps = rounds_of(3)
    put(queue, 4, retries=1)
    first, second = take(queue, 2)
    succeed(queue, first, pushed=True)
    queue.put_back([second], 1, "killed")
    queue.pause()
    draining = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
    wait_for_waiter(queue)
    assert steps == [ApplyRound(0, (commit_of(first),))]
    queue.stepped(None)
    draining.result(TIMEOUT)
    queue.resume()
    assert numbers(take(queue)) == [1, 2, 3]


def test_a_round_that_cannot_be_applied_is_an_error_of_its_own() -> None:
    queue, _ = rounds_of(1)
    put(queue, 3)
    (each,) = take(queue)
    succeed(queue, each, pushed=True)
    queue.stepped(ServerLostError("gone"))
    assert queue.statistics().queued == 0
    with pytest.raises(ServerLostError, match="gone"):
        queue.join(TIMEOUT)
    put(queue, 1)
    assert len(take(queue)) == 1


def test_no_idle_worker_is_tried_for_a_slot_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, tried, asked = rounds_of(3)[0], list[str](), list[str]()

    def chooser(worker: WorkerStatistics) -> bool:
        asked.append(worker.name)
        return True

    take_for = queue.scheduler.dispatcher.take_for
    for index in range(5):
        queue.joined(f"w{index}", index)
    monkeypatch.setattr(
        queue.scheduler.dispatcher,
        "take_for",
        lambda worker: tried.append(worker.name) or take_for(worker),  # type: ignore[func-returns-value]
    )
    first, second = (put_one(queue, number, pin=chooser, slot=0) for number in range(2))
    assert tried == asked == ["w4"]
    put_one(queue, 2, slot=1)
    assert tried == ["w4", "w4", "w3"]
    assert asked == ["w4"]  # not for what cannot begin
    succeed(queue, first)
    assert second.remote.status is ClosureStatus.RUNNING


def test_a_closed_queue_applies_nothing_more() -> None:
    queue, steps = rounds_of(2)
    put(queue, 2)
    first, _ = take(queue)
    succeed(queue, first, pushed=True)
    queue.close()
    assert not steps


def test_what_is_detached_begins_at_any_time_and_takes_no_seat() -> None:
    queue, steps = rounds_of(1)
    put(queue, 2)
    (first,) = take(queue)
    detached = put_one(queue, 9, priority=1, pin="a", detached=True)
    assert queue.has_work()
    assert queue.take(9, worker) == [detached]
    succeed(queue, first, pushed=True)
    succeed(queue, detached)
    assert steps == [ApplyRound(0, (commit_of(first),))]
    queue.stepped(None)
    assert numbers(take(queue)) == [1]
