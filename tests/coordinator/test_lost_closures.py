"""Closures that were lost with their worker: open until it is known what became of them."""

from __future__ import annotations

import pytest

from psnb import errors
from psnb._src.coordinator.closures.failures import raise_failed
from psnb._src.coordinator.closures.remote_value import ClosureStatus
from tests.coordinator.queues import (
    TIMEOUT,
    UNRESPONSIVE,
    ClosureQueue,
    call_with,
    closure,
    fail,
    in_thread,
    opened,
    put,
    put_back,
    put_one,
    succeed,
    wait_for_waiter,
)


def test_one_that_is_open_counts_as_in_flight() -> None:
    queue, _ = opened()
    assert queue.statistics().in_flight == 1
    assert not queue.done()
    with pytest.raises(TimeoutError, match="1 in flight"):
        queue.join(0)
    with pytest.raises(TimeoutError, match="1 closure in flight"):
        queue.wait_until_nothing_runs(0)


def test_one_that_has_had_its_effect_has_completed() -> None:
    queue, (lost,) = opened()
    succeed(queue, lost, 5)
    assert queue.done()
    assert lost.remote.fetch() == 5
    assert queue.statistics().retried == 0


def test_one_that_has_not_runs_again_first() -> None:
    queue, lost = opened(2)
    put_one(queue, 9)
    put_back(queue, *lost)
    assert queue.take(9)[:2] == lost
    assert [each.execution.attempt for each in lost] == [2, 2]
    assert queue.statistics().retried == 2


def test_one_that_is_lost_too_often_fails() -> None:
    queue, (lost,) = opened()
    put_back(queue, lost)
    queue.lose(queue.take(1))
    put_back(queue, lost)
    with pytest.raises(errors.WorkerLostError, match="2 times in a row"):
        lost.remote.fetch()


def test_only_what_runs_can_be_lost() -> None:
    queue = ClosureQueue(10)
    (waits,) = put(queue, 1)
    assert queue.lose([waits]) == []
    assert waits.remote.status is ClosureStatus.QUEUED


def test_an_error_is_raised_once_it_is_known_what_became_of_the_others() -> None:
    queue, (lost,) = opened()
    failed = put_one(queue, 1)
    queue.take(1)
    fail(queue, failed, ValueError("boo"))
    assert not queue.done()
    succeed(queue, lost)
    with pytest.raises(ValueError, match="boo"):
        queue.done()


def test_one_that_is_to_run_again_while_another_has_failed_is_cancelled_like_all_that_waits() -> (
    None
):
    queue, (lost,) = opened()
    failed = put_one(queue, 1)
    queue.take(1)
    fail(queue, failed, ValueError("boo"))
    put_back(queue, lost)
    assert lost.remote.status is ClosureStatus.CANCELLED
    with pytest.raises(ValueError, match="boo"):
        queue.done()


def test_one_that_waits_to_run_again_is_like_any_other() -> None:
    queue, lost = opened(3)
    put_back(queue, *lost)
    assert queue.cancel_queued() == 3
    assert queue.done()


def test_emptying_the_queue_leaves_what_is_open() -> None:
    queue, (lost,) = opened()
    put(queue, 2)
    assert queue.cancel_queued() == 2
    assert lost.remote.status is ClosureStatus.RUNNING


def test_what_waits_for_the_result_of_an_open_one_waits() -> None:
    queue, (lost,) = opened()
    dependent = put_one(queue, 2, call=call_with(queue, lost.remote))
    put_back(queue, lost)
    queue.take(1)
    succeed(queue, lost, 3)
    assert queue.take(9) == [dependent]


def test_put_waits_for_an_open_one_before_it_raises() -> None:
    queue, (lost,) = opened()
    failed = put_one(queue, 1)
    queue.take(1)
    fail(queue, failed, ValueError("boo"))
    putting = in_thread(lambda: queue.put(closure(queue, 2)))
    wait_for_waiter(queue)
    assert not putting.done()
    succeed(queue, lost)
    with pytest.raises(ValueError, match="boo"):
        putting.result(TIMEOUT)


def test_who_waits_to_raise_goes_on_when_another_has_raised() -> None:
    queue, _ = opened()
    failed = put_one(queue, 1)
    queue.take(1)
    fail(queue, failed, ValueError("boo"))
    second = closure(queue, 2)
    putting = in_thread(lambda: queue.put(second))
    wait_for_waiter(queue)
    # As for a thread that comes first: it goes on with the queue at once.
    with pytest.raises(ValueError, match="boo"):
        raise_failed(queue.take_errors())
    putting.result(TIMEOUT)
    assert second.remote.status is ClosureStatus.QUEUED


def test_closing_cancels_what_is_open() -> None:
    queue, (lost,) = opened()
    queue.close()
    assert lost.remote.status is ClosureStatus.CANCELLED
    succeed(queue, lost)  # comes too late
    assert queue.lose([lost]) == []
    queue.block(UNRESPONSIVE)
    assert lost.remote.status is ClosureStatus.CANCELLED


def test_one_that_is_to_run_again_waits_while_the_queue_is_paused() -> None:
    queue, (lost,) = opened()
    queue.pause()
    put_back(queue, lost)
    assert queue.take(9) == []
    queue.wait_until_nothing_runs(0)
    queue.resume()
    assert queue.take(9) == [lost]


# A server says nothing.
