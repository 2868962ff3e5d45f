"""A queue whose dispatch is held for a moment, without Dask."""

from __future__ import annotations

import threading

import pytest

from psnb._src.coordinator.scheduling.gates import FlushGate, RoundGate, Step
from psnb.errors import ServerUnresponsiveError
from tests.conftest import wait_until
from tests.coordinator.queues import (
    TIMEOUT,
    ClosureQueue,
    in_thread,
    put,
    put_one,
    succeed,
    wait_for_waiter,
)


def test_nothing_is_taken_while_dispatch_is_held() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 2)
    with queue.barrier():
        assert queue.take(2) == []
        assert not queue.has_work()
        assert not queue.statistics().paused
    assert queue.take(2) == closures


def test_the_last_hold_that_ends_wakes_the_connections() -> None:
    queue, woken = ClosureQueue(10), threading.Event()
    queue.attach(woken.set)
    with queue.barrier():
        with queue.barrier():
            put(queue, 1)
            woken.clear()
        assert not woken.is_set()
        assert queue.take(1) == []
    assert woken.is_set()


def test_an_error_in_the_block_ends_the_hold() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 1)
    with pytest.raises(OSError, match="disk"), queue.barrier():
        raise OSError("disk is full")
    assert queue.take(1) == closures


def test_who_pauses_meanwhile_finds_the_queue_paused_after() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 1)
    with queue.barrier():
        queue.pause()
    assert queue.take(1) == []
    with queue.barrier():
        queue.resume()
        assert queue.take(1) == []
    assert queue.take(1) == closures


def test_who_holds_waits_for_what_runs() -> None:
    queue = ClosureQueue(10)
    put(queue, 2)
    (first,) = queue.take(1)
    with queue.barrier():
        at_rest = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
        wait_for_waiter(queue)
        assert not at_rest.done()
        succeed(queue, first)
        at_rest.result(TIMEOUT)


def test_a_round_that_has_begun_is_filled_first_and_applied_as_a_whole() -> None:
    queue, steps = ClosureQueue(10, gate=RoundGate(2)), list[Step]()
    queue.attach(on_step=steps.append)
    closures = put(queue, 4)
    (first,) = queue.take(1)
    with queue.barrier():
        at_rest = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
        wait_for_waiter(queue)
        succeed(queue, first, pushed=True)
        wait_for_waiter(queue)
        assert (steps, at_rest.done()) == ([], False)
        assert queue.has_work()
        (second,) = queue.take(4)
        succeed(queue, second, pushed=True)
        (step,) = steps
        assert step.closures == (0, 1)  # type: ignore[union-attr]
        queue.stepped(None)
        at_rest.result(TIMEOUT)
        assert queue.take(4) == []
    assert queue.take(4) == closures[2:]


def check_that_a_hold_waits_for_a_step(queue: ClosureQueue, steps: list[Step]) -> None:
    with queue.barrier():
        at_rest = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
        wait_for_waiter(queue)
        assert len(steps) == 1
        queue.stepped(None)
        at_rest.result(TIMEOUT)


@pytest.mark.parametrize("paused", [False, True])
def test_a_round_that_nothing_can_fill_is_applied_as_it_is(paused: bool) -> None:
    queue, steps = ClosureQueue(10, gate=RoundGate(2)), list[Step]()
    queue.attach(on_step=steps.append)
    put(queue, 2 if paused else 1)
    (first,) = queue.take(1)
    succeed(queue, first, pushed=True)
    if paused:
        queue.pause()
    check_that_a_hold_waits_for_a_step(queue, steps)


def test_what_workers_keep_for_a_while_is_flushed() -> None:
    queue, steps = ClosureQueue(10, gate=FlushGate()), list[Step]()
    queue.attach(on_step=steps.append)
    put(queue, 2)
    (first,) = queue.take(1)
    succeed(queue, first)
    check_that_a_hold_waits_for_a_step(queue, steps)


def test_an_unresponsive_server_is_an_error_to_who_holds_and_not_to_who_joins() -> None:
    queue = ClosureQueue(10)
    put(queue, 2)
    (first,) = queue.take(1)
    queue.lose([first])
    with queue.barrier():
        joining = in_thread(queue.join)
        wait_for_waiter(queue)
        queue.block(ServerUnresponsiveError("a server does not respond"))
        with pytest.raises(ServerUnresponsiveError):
            queue.wait_until_nothing_runs(TIMEOUT)
        assert not joining.done()
    succeed(queue, first)
    (second,) = queue.take(1)
    succeed(queue, second)
    joining.result(TIMEOUT)


def test_who_joins_looks_after_something_else_at_once_and_again_and_again() -> None:
    queue, looks = ClosureQueue(10), threading.Semaphore(0)
    queue.join(look=looks.release)
    assert looks.acquire(timeout=0)
    put(queue, 1)
    (first,) = queue.take(1)
    joining = in_thread(lambda: queue.join(look=looks.release))
    assert all(looks.acquire(timeout=TIMEOUT) for _ in range(3))
    assert not joining.done()
    succeed(queue, first)
    joining.result(TIMEOUT)


def test_a_round_whose_closures_are_being_put_is_filled_first() -> None:
    queue, steps = ClosureQueue(10, gate=RoundGate(2)), list[Step]()
    queue.attach(on_step=steps.append)
    with queue.barrier(), queue.filling():
        at_rest = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
        at_rest.result(TIMEOUT)  # none has begun: the round waits for the end of the hold
    with queue.filling():
        first = put_one(queue, 0)
        assert queue.take(4) == [first]
        succeed(queue, first, pushed=True)
        with queue.barrier():
            at_rest = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
            wait_for_waiter(queue)
            assert (steps, queue.done()) == ([], False)
            second = put_one(queue, 1)
            assert queue.take(4) == [second]
            succeed(queue, second, pushed=True)
            assert len(steps) == 1
            queue.stepped(None)
            at_rest.result(TIMEOUT)


def test_a_round_that_is_not_filled_after_all_is_applied_as_it_is() -> None:
    queue, steps = ClosureQueue(10, gate=RoundGate(2)), list[Step]()
    queue.attach(on_step=steps.append)
    with queue.filling():
        first = put_one(queue, 0)
        assert queue.take(4) == [first]
        succeed(queue, first, pushed=True)
        at_rest = in_thread(lambda: queue.wait_until_nothing_runs(TIMEOUT))
        wait_for_waiter(queue)
        assert steps == []
    wait_until(lambda: bool(steps), "the round is applied")
    queue.stepped(None)
    at_rest.result(TIMEOUT)


def test_a_round_that_is_being_put_while_the_queue_is_paused_is_applied_as_it_is() -> None:
    queue, steps = ClosureQueue(10, gate=RoundGate(2)), list[Step]()
    queue.attach(on_step=steps.append)
    with queue.filling():
        first = put_one(queue, 0)
        assert queue.take(4) == [first]
        succeed(queue, first, pushed=True)
        queue.pause()
        check_that_a_hold_waits_for_a_step(queue, steps)


def test_who_has_fetched_why_a_round_was_not_applied_can_put_again() -> None:
    queue = ClosureQueue(10, gate=RoundGate(1))
    queue.attach(on_step=lambda step: None)
    (pushed,) = put(queue, 1)
    queue.take(1)
    succeed(queue, pushed, pushed=True)
    queue.stepped(ValueError("not applied"))
    with pytest.raises(ValueError, match="not applied"):
        pushed.remote.fetch(TIMEOUT)
    put(queue, 1)  # it is not raised again
