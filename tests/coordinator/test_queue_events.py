"""What the queue notes, and what it does when nobody is there to run anything."""

from __future__ import annotations

import pytest

from psnb import errors
from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.instructions import RecordFailure
from psnb._src.monitor.events import Event, EventKind, EventLog
from psnb._src.protocol.errors import pack_error
from tests.conftest import DEADLINE
from tests.coordinator.queues import (
    ClosureQueue,
    fail,
    in_thread,
    put,
    raised,
    succeed,
    wait_for_waiter,
)


def noted(log: EventLog) -> list[Event]:
    """Return the events but for the coming of workers."""
    return [event for event in log.all() if event.kind is not EventKind.WORKER_JOINED]


def kinds(log: EventLog) -> list[EventKind]:
    return [event.kind for event in noted(log)]


def test_closures_that_run_again_are_noted_with_the_reason() -> None:
    log = EventLog()
    queue = ClosureQueue(10, events=log)
    closures = put(queue, 2, retries=1)
    queue.put_back(queue.take(2), 1, "worker 'bob' was lost")
    (event,) = noted(log)
    assert event.kind is EventKind.CLOSURES_RETRIED
    assert event.closures == tuple(map(str, closures))
    assert "bob" in event.message


def test_a_failure_and_what_it_cancels_are_noted() -> None:
    log = EventLog()
    queue = ClosureQueue(10, events=log)
    put(queue, 3)
    fail(queue, queue.take(1)[0], ValueError("x"))
    assert kinds(log) == [EventKind.CLOSURE_FAILED, EventKind.CLOSURES_CANCELLED]
    assert [len(event.closures) for event in noted(log)] == [1, 2]


def test_a_failure_is_logged_as_a_warning_with_worker_and_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = ClosureQueue(10, events=EventLog())
    (running,) = put(queue, 1)
    queue.take(1)
    queue.settle([raised(running, pack_error(ValueError("x")))], "bob")
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.getMessage() == f"closure {running} failed on worker 'bob': ValueError: x"


def test_who_waits_finds_noted_what_is_raised() -> None:
    noted: list[str] = []
    queue = ClosureQueue(10)
    queue.on[RecordFailure] = lambda each: noted.append(str(each.closure))
    (running,) = put(queue, 1)
    queue.take(1)

    def join() -> list[str]:
        with pytest.raises(ValueError, match="x"):
            queue.join(DEADLINE)
        return noted.copy()

    joining = in_thread(join)
    wait_for_waiter(queue)
    fail(queue, running, ValueError("x"))
    assert joining.result(DEADLINE) == [str(running)]


def test_a_queue_may_be_closed_while_a_failure_is_noted() -> None:
    log = EventLog()

    queue = ClosureQueue(10, events=log)
    # As a finalizer does that the garbage collector calls.
    queue.on[RecordFailure] = lambda each: queue.close()
    put(queue, 1)
    fail(queue, queue.take(1)[0], ValueError("x"))
    assert kinds(log) == [EventKind.CLOSURE_FAILED, EventKind.COORDINATOR_CLOSED]


def test_success_is_not_noted() -> None:
    log = EventLog()
    queue = ClosureQueue(10, events=log)
    put(queue, 1)
    succeed(queue, queue.take(1)[0])
    assert noted(log) == []


def test_closing_is_noted_once() -> None:
    log = EventLog()
    queue = ClosureQueue(10, events=log)
    queue.close()
    queue.close()
    assert kinds(log) == [EventKind.COORDINATOR_CLOSED]


def test_what_waits_without_a_worker_fails_and_the_queue_goes_on() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 3)
    (running,) = queue.take(1)
    queue.fail_waiting(errors.WorkerLostError("nobody is there"))
    assert [c.remote.status for c in closures] == [
        ClosureStatus.RUNNING,
        ClosureStatus.FAILED,
        ClosureStatus.FAILED,
    ]
    succeed(queue, running)
    with pytest.raises(errors.WorkerLostError, match="nobody is there") as raised:
        queue.join(0)
    assert raised.value.other_errors == ()  # type: ignore[attr-defined]
    with pytest.raises(errors.WorkerLostError):
        closures[2].remote.fetch(0)
    put(queue, 1)
    succeed(queue, queue.take(1)[0])
    queue.join(0)


def test_an_empty_queue_without_a_worker_does_not_fail() -> None:
    queue = ClosureQueue(10)
    queue.fail_waiting(errors.WorkerLostError("nobody is there"))
    assert queue.done()
