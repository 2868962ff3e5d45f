"""`await`, `join_async` and `as_completed`, without Dask; other threads are threads of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from psnb import as_completed, errors
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.core import CoordinatorCore
from psnb._src.coordinator.scheduling.events import Close
from psnb._src.coordinator.scheduling.gates import RoundGate
from psnb._src.coordinator.scheduling.work import Work
from psnb.errors import ClosureCancelledError
from tests.coordinator.queues import (
    TIMEOUT,
    UNRESPONSIVE,
    ClosureQueue,
    fail,
    in_thread,
    put,
    succeed,
    wait_for_waiter,
)


def running(queue: ClosureQueue, count: int = 1) -> list[Work]:
    closures = put(queue, count)
    queue.take(count)
    return closures


def elsewhere(function: Callable[[], object]) -> None:
    """Run in another thread and wait for it."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


async def one_round() -> None:
    """Let every task that is ready go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_await_returns_what_another_thread_brings() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)

    async def main() -> object:
        task = asyncio.ensure_future(_value(each.remote))
        await one_round()
        assert not task.done()
        elsewhere(lambda: succeed(queue, each, 7))
        return await asyncio.wait_for(task, TIMEOUT)

    assert asyncio.run(main()) == 7


async def _value(remote: RemoteValue) -> object:
    return await remote


def test_await_of_an_ended_closure_does_not_wait() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)
    succeed(queue, each, 7)
    assert asyncio.run(_value(each.remote)) == 7


def test_await_raises_what_the_closure_raised() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)
    fail(queue, each, KeyError("k"))
    with pytest.raises(KeyError, match="k"):
        asyncio.run(_value(each.remote))


def test_an_await_that_is_cancelled_leaves_nothing_behind() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_value(each.remote), 0.01)

    asyncio.run(main())
    assert each.remote._callbacks is None
    succeed(queue, each, 7)
    assert each.remote.fetch() == 7


def test_many_may_await_one_value() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)

    async def main() -> list[object]:
        tasks = [asyncio.ensure_future(_value(each.remote)) for _ in range(3)]
        await one_round()
        elsewhere(lambda: succeed(queue, each, 7))
        return list(await asyncio.gather(*tasks))

    assert asyncio.run(main()) == [7, 7, 7]


def test_a_closure_that_ends_after_the_loop_was_closed_does_no_harm() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)
    loop = asyncio.new_event_loop()
    waiting = _value(each.remote)
    task = loop.create_task(waiting)
    loop.run_until_complete(one_round())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    succeed(queue, each, 7)
    assert each.remote.fetch() == 7
    waiting.close()


def test_join_async_waits_for_the_last_closure() -> None:
    queue = ClosureQueue(10)
    first, second = running(queue, 2)

    async def main() -> None:
        task = asyncio.ensure_future(queue.join_async(TIMEOUT))
        elsewhere(lambda: succeed(queue, first))
        await one_round()
        assert not task.done()
        elsewhere(lambda: succeed(queue, second))
        await task

    asyncio.run(main())


def test_join_async_of_an_idle_queue_returns_at_once() -> None:
    asyncio.run(ClosureQueue(10).join_async())


def test_join_async_raises_the_error_of_the_generation_once() -> None:
    queue = ClosureQueue(10)
    first, second = running(queue, 2)

    async def main() -> None:
        task = asyncio.ensure_future(queue.join_async())
        elsewhere(lambda: fail(queue, first, TimeoutError("the closure's own")))
        await one_round()
        assert not task.done()
        elsewhere(lambda: succeed(queue, second))
        with pytest.raises(TimeoutError, match="the closure's own"):
            await task

    asyncio.run(main())
    assert queue.done()


def test_join_async_times_out_and_everything_goes_on() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)
    with pytest.raises(TimeoutError, match="1 in flight; all goes on"):
        asyncio.run(queue.join_async(0.01))
    succeed(queue, each)
    assert queue.done()


def test_join_async_ends_when_the_coordinator_is_closed() -> None:
    queue = ClosureQueue(10)
    put(queue, 1)

    async def main() -> None:
        task = asyncio.ensure_future(queue.join_async())
        await one_round()
        elsewhere(queue.close)
        with pytest.raises(errors.CoordinatorClosedError):
            await task

    asyncio.run(main())


def test_as_completed_yields_in_the_order_in_which_closures_end() -> None:
    queue = ClosureQueue(10)
    closures = running(queue, 4)
    succeed(queue, closures[3])
    remotes = as_completed([each.remote for each in closures], TIMEOUT)
    order = [next(remotes)]
    for each in (closures[2], closures[0]):
        elsewhere(lambda each=each: succeed(queue, each))  # type: ignore[misc]
        order.append(next(remotes))
    elsewhere(lambda: fail(queue, closures[1], ValueError("boo")))
    order += remotes
    assert order == [closures[i].remote for i in (3, 2, 0, 1)]


def test_as_completed_spans_coordinators_and_yields_each_value_once() -> None:
    queues = [ClosureQueue(10), ClosureQueue(10)]
    closures = [running(queue)[0] for queue in queues]
    remotes = [each.remote for each in closures]
    iterator = as_completed([*remotes, *remotes], TIMEOUT)
    for queue, each in zip(queues, closures, strict=True):
        succeed(queue, each)
    assert list(iterator) == remotes


def test_as_completed_times_out_and_leaves_nothing_behind() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)
    with pytest.raises(TimeoutError, match="1 of 1 closures have not ended"):
        next(as_completed([each.remote], 0.01))
    assert each.remote._callbacks is None


def test_as_completed_may_be_left_early() -> None:
    queue = ClosureQueue(10)
    first, second = running(queue, 2)
    succeed(queue, first)
    for remote in as_completed([first.remote, second.remote]):
        assert remote is first.remote
        break
    assert second.remote._callbacks is None


def test_as_completed_of_nothing_ends_at_once() -> None:
    assert list(as_completed([])) == []


def test_as_completed_refuses_what_is_no_remote_value() -> None:
    with pytest.raises(errors.ConfigurationError, match="remote values"):
        as_completed([3])  # type: ignore[list-item]


def test_join_async_leaves_nothing_behind() -> None:
    queue = ClosureQueue(10)
    (each,) = running(queue)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            asyncio.run(queue.join_async(0.01))
    succeed(queue, each)
    queue.inbox.post(queue.inbox.look)
    assert not queue.inbox._waiters


def test_await_of_one_whose_round_is_blocked_raises() -> None:
    queue = ClosureQueue(10, gate=RoundGate(1))
    (each,) = running(queue)
    succeed(queue, each, pushed=True)
    queue.block(UNRESPONSIVE)
    with pytest.raises(type(UNRESPONSIVE)):
        asyncio.run(_value(each.remote))


def test_who_waits_for_a_closure_is_woken_by_closing_on_the_loop() -> None:
    queue = ClosureQueue(10)
    waiting_for = put(queue, 1)[0].remote
    fetching = in_thread(waiting_for.fetch)
    wait_for_waiter(queue)
    queue.handle(Close())
    with pytest.raises(ClosureCancelledError):
        fetching.result(TIMEOUT)
    assert queue.scheduler.statistics.closed


def test_a_wait_that_takes_too_long_names_what_runs() -> None:
    workers = [SimpleNamespace(name="worker-0", activity="running forever")]
    core: Any = SimpleNamespace(statistics=lambda: SimpleNamespace(workers=workers))
    with pytest.raises(TimeoutError) as error, CoordinatorCore.naming_what_runs(core):
        raise TimeoutError
    assert error.value.__notes__[0].startswith("worker-0 is running forever. ")
    workers.clear()
    with pytest.raises(TimeoutError) as error, CoordinatorCore.naming_what_runs(core):
        raise TimeoutError
    assert not hasattr(error.value, "__notes__")
