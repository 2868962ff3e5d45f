"""What workers hold of their own is sent before anybody hears that all is done. Without Dask."""

from __future__ import annotations

import pytest

from psnb._src.coordinator.scheduling.events import Blocked, Decided, Left
from psnb._src.coordinator.scheduling.gates import Flush, FlushGate, Step
from psnb._src.coordinator.scheduling.instructions import Resolve
from psnb._src.monitor.events import EventKind
from psnb.errors import ServerUnresponsiveError
from tests.coordinator.queues import (
    TIMEOUT,
    ClosureQueue,
    in_thread,
    put,
    succeed,
    wait_for_waiter,
)


def flushing() -> tuple[ClosureQueue, list[Step]]:
    steps: list[Step] = []
    queue = ClosureQueue(100, gate=FlushGate())
    queue.attach(on_step=steps.append)
    return queue, steps


def test_join_waits_for_what_workers_hold() -> None:
    queue, steps = flushing()
    put(queue, 1)
    (each,) = queue.take(9)
    succeed(queue, each)
    assert not steps
    joining = in_thread(queue.join)
    wait_for_waiter(queue)
    assert steps == [Flush()]
    assert not joining.done()
    queue.stepped(None)
    joining.result(TIMEOUT)


def test_there_is_nothing_to_send_where_nothing_has_begun_since() -> None:
    queue, steps = flushing()
    queue.join(TIMEOUT)
    put(queue, 1)
    succeed(queue, *queue.take(9))
    assert not queue.done()
    queue.stepped(None)
    assert queue.done()
    assert steps == [Flush()]


def test_a_closure_that_begins_meanwhile_is_waited_for_and_flushed_too() -> None:
    queue, steps = flushing()
    put(queue, 1)
    succeed(queue, *queue.take(9))
    assert not queue.done()
    put(queue, 1)
    (second,) = queue.take(9)
    queue.stepped(None)
    assert not queue.done()
    succeed(queue, second)
    assert not queue.done()
    assert steps == [Flush(), Flush()]
    queue.stepped(None)
    assert queue.done()


def test_one_that_begins_when_another_flush_is_wanted_already_is_flushed_too() -> None:
    queue, steps = flushing()
    for _ in range(2):  # the second one while the first one's is under way
        put(queue, 1)
        succeed(queue, *queue.take(9))
        assert not queue.done()
    put(queue, 1)
    (third,) = queue.take(9)
    queue.stepped(None)
    assert steps == [Flush()]  # not while it runs: it would be left out
    succeed(queue, third)
    assert not queue.done()
    assert steps == [Flush(), Flush()]


def test_asking_on_the_loop_whether_all_is_done_begins_what_is_left() -> None:
    queue, steps = ClosureQueue(10, gate=FlushGate()), list[Step]()
    queue.attach(on_step=steps.append)
    put(queue, 1)
    succeed(queue, *queue.take(1))
    steps.clear()
    assert not queue.loop.do(queue.done)
    assert steps == [Flush()]


def test_all_is_done_once_servers_have_said_what_a_lost_worker_had_sent_last() -> None:
    # It had no closure any more, and some servers only may have applied its exchange.
    queue, _ = flushing()
    worker = queue.joined()
    queue.handle(Left(worker, EventKind.WORKER_LOST, "was lost"))
    (doubt,) = (each.doubt for each in queue.instructions if isinstance(each, Resolve))
    assert doubt.open == []
    assert not queue.done()
    queue.handle(Blocked(ServerUnresponsiveError("server 1 does not respond")))
    with pytest.raises(ServerUnresponsiveError, match="server 1"):
        queue.join(TIMEOUT)
    queue.handle(Decided(doubt, {}))
    assert queue.done()
    queue.join(TIMEOUT)
