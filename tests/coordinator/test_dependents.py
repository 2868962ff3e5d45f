"""Closures that wait for the results of others: without Dask."""

from __future__ import annotations

import threading

import pytest

from psnb import errors
from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.protocol.packing import loads
from tests.coordinator.queues import TIMEOUT, ClosureQueue, call_with, fail, put_one, succeed


def test_a_closure_waits_for_its_inputs_and_blocks_no_other() -> None:
    queue = ClosureQueue(10)
    first, second = put_one(queue, 0), put_one(queue, 1)
    queue.take(2)
    dependent = put_one(queue, 2, call=call_with(queue, {"x": [first.remote]}, second.remote))
    other = put_one(queue, 3)
    assert queue.take(9) == [other]
    succeed(queue, first, "one")
    assert queue.take(9) == []
    assert dependent.remote.status is ClosureStatus.QUEUED
    succeed(queue, second, "two")
    assert queue.take(9) == [dependent]
    args, _ = loads(dependent.call.payload, inputs=dependent.call.inputs)  # type: ignore[arg-type]
    assert args == ({"x": ["one"]}, "two")


def test_an_input_that_occurs_twice_is_one_object_in_the_closure() -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    dependent = put_one(queue, 1, call=call_with(queue, first.remote, [first.remote]))
    succeed(queue, first, ["a list"])
    (a, (b,)), _ = loads(dependent.call.payload, inputs=dependent.call.inputs)  # type: ignore[arg-type]
    assert a is b
    assert a == ["a list"]


@pytest.mark.parametrize("fetched", [False, True])
def test_an_input_that_has_completed_is_there_at_once(fetched: bool) -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    succeed(queue, first, {"a": 1})
    if fetched:
        first.remote.fetch()
    dependent = put_one(queue, 1, call=call_with(queue, first.remote))
    assert queue.take(1) == [dependent]
    args, _ = loads(dependent.call.payload, inputs=dependent.call.inputs)  # type: ignore[arg-type]
    assert args == ({"a": 1},)


def test_fetching_an_input_does_not_take_it_from_those_who_wait() -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    dependent = put_one(queue, 1, call=call_with(queue, first.remote))
    succeed(queue, first, [1])
    first.remote.fetch().append(2)
    args, _ = loads(dependent.call.payload, inputs=dependent.call.inputs)  # type: ignore[arg-type]
    assert args == ([1],)


def test_a_completed_input_wakes_a_hungry_lane() -> None:
    calls: list[int] = []
    queue = ClosureQueue(10)
    queue.attach(lambda: calls.append(1))
    first = put_one(queue, 0)
    queue.take(2)
    calls.clear()
    put_one(queue, 1, call=call_with(queue, first.remote))
    assert not calls
    succeed(queue, first)
    assert len(calls) == 1


def test_a_failed_input_fails_its_dependents_and_theirs_with_its_error_as_cause() -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    second = put_one(queue, 1, call=call_with(queue, first.remote))
    third = put_one(queue, 2, call=call_with(queue, second.remote))
    fail(queue, first, ValueError("boo"))
    with pytest.raises(errors.ClosureInputError, match="ValueError: boo") as raised:
        second.remote.fetch()
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(errors.ClosureInputError) as raised:
        third.remote.fetch()
    assert isinstance(raised.value.__cause__, errors.ClosureInputError)
    assert isinstance(raised.value.__cause__.__cause__, ValueError)


def test_dependents_add_no_errors_of_their_own_to_the_generation() -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    put_one(queue, 1, call=call_with(queue, first.remote))
    fail(queue, first, ValueError("boo"))
    with pytest.raises(ValueError, match="boo") as raised:
        queue.join(0)
    assert raised.value.other_errors == ()  # type: ignore[attr-defined]
    assert queue.statistics().failed == 2
    assert queue.done()


def test_a_dependent_of_something_else_is_cancelled_with_the_generation() -> None:
    queue = ClosureQueue(10)
    first, second = put_one(queue, 0), put_one(queue, 1)
    queue.take(2)
    dependent = put_one(queue, 2, call=call_with(queue, second.remote))
    fail(queue, first, ValueError("boo"))
    assert dependent.remote.status is ClosureStatus.CANCELLED
    succeed(queue, second)
    assert queue.statistics().queued == 0


def test_a_dependent_of_a_cancelled_closure_is_cancelled_with_it() -> None:
    queue = ClosureQueue(10)
    running = put_one(queue, 0)
    queue.take(1)
    waiting = put_one(queue, 1)
    dependent = put_one(queue, 2, call=call_with(queue, waiting.remote))
    fail(queue, running, ValueError("boo"))
    assert dependent.remote.status is ClosureStatus.CANCELLED


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_input_of_an_earlier_generation_without_value_fails_the_closure(cancelled: bool) -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    second = put_one(queue, 1)
    fail(queue, first, ValueError("boo"))
    with pytest.raises(ValueError, match="boo"):
        queue.join(0)
    remote = second.remote if cancelled else first.remote
    dependent = put_one(queue, 2, call=call_with(queue, remote))
    assert dependent.remote.status is ClosureStatus.FAILED
    with pytest.raises(errors.ClosureInputError) as raised:
        queue.join(0)
    cause = errors.ClosureCancelledError if cancelled else ValueError
    assert isinstance(raised.value.__cause__, cause)


def test_the_inputs_of_a_lost_closure_are_still_there() -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    dependent = put_one(queue, 1, call=call_with(queue, first.remote))
    succeed(queue, first, 5)
    queue.put_back(queue.take(1), executing=1, lost="gone")
    assert queue.take(1) == [dependent]
    args, _ = loads(dependent.call.payload, inputs=dependent.call.inputs)  # type: ignore[arg-type]
    assert args == (5,)


def test_a_lost_input_goes_on_being_waited_for() -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    lost = queue.take(1)
    dependent = put_one(queue, 1, call=call_with(queue, first.remote))
    queue.put_back(lost, executing=1, lost="gone")
    assert queue.take(9) == [first]
    succeed(queue, first)
    assert queue.take(9) == [dependent]


def test_closing_cancels_dependents() -> None:
    queue = ClosureQueue(10)
    first = put_one(queue, 0)
    queue.take(1)
    dependent = put_one(queue, 1, call=call_with(queue, first.remote))
    queue.close()
    with pytest.raises(errors.ClosureCancelledError, match="closed"):
        dependent.remote.fetch()


def test_dependents_count_as_queued_and_a_small_queue_does_not_deadlock() -> None:
    queue = ClosureQueue(2)
    remote = put_one(queue, 0).remote
    done = threading.Event()

    def connection() -> None:
        while not done.is_set():
            for closure in queue.take(1) if queue.has_work() else ():
                succeed(queue, closure, closure.id)

    thread = threading.Thread(target=connection)
    thread.start()
    try:
        for number in range(1, 200):
            remote = put_one(queue, number, call=call_with(queue, remote)).remote
        queue.join(TIMEOUT)
    finally:
        done.set()
        thread.join()
    assert remote.fetch() == 199


def test_a_long_chain_of_dependents_tells_its_error() -> None:
    queue = ClosureQueue(10_000)
    first = put_one(queue, 0)
    queue.take(1)
    remote = first.remote
    for number in range(1, 5000):
        remote = put_one(queue, number, call=call_with(queue, remote)).remote
    fail(queue, first, ValueError("boo"))
    with pytest.raises(errors.ClosureInputError, match="ValueError: boo"):
        remote.fetch()


def test_a_remote_value_of_another_coordinator_is_refused() -> None:
    queue, other = ClosureQueue(10), ClosureQueue(10)
    with pytest.raises(errors.ConfigurationError, match="another coordinator"):
        call_with(queue, put_one(other, 0).remote)
