"""A queue that is paused, without Dask."""

from __future__ import annotations

import threading

import pytest

from psnb import errors
from psnb._src.monitor.events import EventKind, EventLog
from tests.coordinator.queues import (
    TIMEOUT,
    ClosureQueue,
    in_thread,
    put,
    put_one,
    succeed,
    wait_for_waiter,
    worker,
)


def test_nothing_is_taken_while_the_queue_is_paused() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 2)
    queue.pause()
    assert queue.take(2, worker) == []
    assert not queue.has_work()
    assert queue.statistics().paused
    queue.resume()
    assert queue.take(2, worker) == closures


def test_resuming_wakes_the_connections() -> None:
    woken = threading.Event()
    queue = ClosureQueue(10)
    queue.attach(woken.set)
    queue.pause()
    put(queue, 1)
    woken.clear()
    queue.resume()
    assert woken.is_set()


def test_what_comes_back_while_paused_runs_after_resuming() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 2)
    taken = queue.take(2)
    queue.pause()
    queue.give_back(taken[1:])
    assert queue.take(2) == []
    queue.resume()
    assert queue.take(2) == closures[1:]


def test_draining_waits_for_what_runs_and_not_for_what_waits() -> None:
    queue = ClosureQueue(10)
    first, _ = put(queue, 2)
    queue.take(1)
    queue.pause()
    drained = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
    wait_for_waiter(queue)
    assert not drained.done()
    succeed(queue, first)
    drained.result(TIMEOUT)


def test_draining_that_takes_too_long_says_what_runs() -> None:
    queue = ClosureQueue(10)
    put(queue, 1)
    queue.take(1)
    with pytest.raises(TimeoutError, match="1 closure in flight"):
        queue.wait_until_nothing_runs(0)


def test_join_waits_for_what_is_paused() -> None:
    queue = ClosureQueue(10)
    put(queue, 1)
    queue.pause()
    with pytest.raises(TimeoutError, match="1 closure queued"):
        queue.join(0)


def test_pausing_and_resuming_are_noted_once() -> None:
    log = EventLog()
    queue = ClosureQueue(10, events=log)
    for _ in range(2):
        queue.pause()
    for _ in range(2):
        queue.resume()
    assert [event.kind for event in log.all()] == [
        EventKind.COORDINATOR_PAUSED,
        EventKind.COORDINATOR_RESUMED,
    ]


def test_a_closed_queue_cannot_be_paused_or_resumed() -> None:
    queue = ClosureQueue(10)
    queue.close()
    for action in (queue.pause, queue.resume):
        with pytest.raises(errors.CoordinatorClosedError):
            action()


def test_a_function_that_chooses_a_worker_may_pause_all() -> None:
    queue = ClosureQueue(10)

    def chooser(worker: object) -> bool:
        queue.pause()
        return True

    each = put_one(queue, 0, pin=chooser)
    one = queue.joined()
    assert not queue.sent(one)
    queue.resume()
    assert not queue.sent(one)
    assert not each.remote.done()
