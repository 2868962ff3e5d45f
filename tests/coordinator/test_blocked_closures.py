"""Closures that were lost, and servers that do not say what became of them."""

from __future__ import annotations

import asyncio

import pytest

from psnb import errors
from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.gates import RoundGate, Step
from psnb._src.coordinator.scheduling.work import Work
from tests.conftest import wait_until
from tests.coordinator.queues import (
    TIMEOUT,
    UNRESPONSIVE,
    ClosureQueue,
    fail,
    in_thread,
    opened,
    put,
    put_back,
    put_one,
    succeed,
    wait_for_waiter,
)


def test_who_waits_hears_of_a_server_that_holds_an_open_one_up() -> None:
    queue, (lost,) = opened()
    joining = in_thread(queue.join)
    wait_for_waiter(queue)
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError, match="server-0"):
        joining.result(TIMEOUT)
    assert lost.remote.status is ClosureStatus.RUNNING
    assert queue.statistics().in_flight == 1


def test_so_does_who_asks_whether_all_is_done_and_who_awaits_it() -> None:
    queue, _ = opened()
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.done()
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError):
        asyncio.run(queue.join_async(TIMEOUT))


def test_so_does_who_fetches_it_as_often_as_he_likes_until_it_is_known() -> None:
    queue, (lost,) = opened()
    fetching = in_thread(lost.remote.fetch)
    wait_for_waiter(queue)
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError, match="server-0"):
        fetching.result(TIMEOUT)
    with pytest.raises(errors.ServerUnresponsiveError, match="server-0"):
        asyncio.run(_awaited(lost))
    put_back(queue, lost)
    with pytest.raises(TimeoutError):
        lost.remote.fetch(0)


async def _awaited(each: Work) -> object:
    return await each.remote


def test_what_is_held_up_ends_as_soon_as_it_can() -> None:
    queue, (lost,) = opened()
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.done()
    assert not queue.done()  # it was told, and nothing is known yet
    succeed(queue, lost, 7)
    assert queue.done()
    assert lost.remote.fetch() == 7


def test_what_runs_is_waited_for_before_it_is_reported() -> None:
    queue, _ = opened()
    running = put_one(queue, 5)
    queue.take(1)
    queue.block(UNRESPONSIVE)
    assert not queue.done()
    succeed(queue, running)
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.done()


def test_what_waits_goes_on_before_it_is_reported() -> None:
    queue, _ = opened()
    queue.block(UNRESPONSIVE)
    queued = put_one(queue, 5)
    assert not queue.done()
    assert queue.take(1) == [queued]
    succeed(queue, queued)
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.done()


def test_what_cannot_go_on_is_reported_all_the_same() -> None:
    queue, _ = opened(gate=RoundGate(1))
    put_one(queue, 5)
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.done()
    queue, _ = opened()
    put_one(queue, 5)
    queue.pause()
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.done()


def test_it_is_reported_once_though_it_comes_again_and_again() -> None:
    queue, _ = opened()
    for _ in range(3):
        queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError, match="1 closure waiting for its answer"):
        queue.done()
    assert not queue.done()


def test_an_error_of_another_closure_comes_first() -> None:
    queue, _ = opened()
    failed = put_one(queue, 5)
    queue.take(1)
    fail(queue, failed, ValueError("boo"))
    assert not queue.done()
    queue.block(UNRESPONSIVE)
    with pytest.raises(ValueError, match="boo"):
        queue.done()
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.done()


def test_what_is_not_held_up_any_more_is_not_reported() -> None:
    queue, (lost,) = opened()
    queue.block(UNRESPONSIVE)
    put_back(queue, lost)
    assert queue.take(1) == [lost]
    assert not queue.done()
    succeed(queue, lost)
    assert queue.done()


def test_draining_tells_it_and_takes_nothing_away() -> None:
    queue, (lost,) = opened()
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError, match="server-0"):
        queue.wait_until_nothing_runs(TIMEOUT)
    succeed(queue, lost)
    queue.wait_until_nothing_runs(TIMEOUT)


def test_so_does_a_round_that_a_server_has_not_applied() -> None:
    queue = ClosureQueue(10, gate=RoundGate(1))
    (each,) = put(queue, 1)
    queue.take(1)
    succeed(queue, each, pushed=True)
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError):
        queue.join(TIMEOUT)
    queue.stepped(None)
    assert queue.done()


# Update modes.


def test_fetch_waits_for_its_round_and_tells_what_holds_it_up() -> None:
    queue, steps = ClosureQueue(10, gate=RoundGate(2)), list[Step]()
    queue.attach(on_step=steps.append)
    each, other = put(queue, 2)
    queue.take(2)
    succeed(queue, each, 7, pushed=True)
    with pytest.raises(TimeoutError, match="not had its effect"):
        each.remote.fetch(0.01)
    assert not steps  # another one of the round runs
    succeed(queue, other, pushed=True)
    assert len(steps) == 1
    queue.block(UNRESPONSIVE)
    with pytest.raises(errors.ServerUnresponsiveError, match="says nothing"):
        each.remote.fetch(TIMEOUT)
    queue.stepped(None)
    assert each.remote.fetch(TIMEOUT) == 7


def test_fetch_has_a_round_applied_that_nothing_would_fill_and_raises_why_it_was_not() -> None:
    queue, steps = ClosureQueue(10, gate=RoundGate(3)), list[Step]()
    queue.attach(on_step=steps.append)
    (each,) = put(queue, 1)
    queue.take(1)
    succeed(queue, each, 7, pushed=True)
    assert each.remote.done()
    assert not steps
    fetched = in_thread(each.remote.fetch)
    wait_until(lambda: bool(steps), "the round ends")
    assert not fetched.done()
    queue.stepped(ValueError("no room"))
    with pytest.raises(ValueError, match="no room"):
        fetched.result(TIMEOUT)
    with pytest.raises(ValueError, match="no room"):
        queue.join(TIMEOUT)


def test_fetch_of_a_queue_that_is_closed_waits_for_no_round() -> None:
    queue = ClosureQueue(10, gate=RoundGate(1))
    (each,) = put(queue, 1)
    queue.take(1)
    succeed(queue, each, 7, pushed=True)
    queue.close()
    assert each.remote.fetch(TIMEOUT) == 7
