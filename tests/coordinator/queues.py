"""What the tests of the queue share: closures without Dask, and races that are forced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from psnb import errors
from psnb._src.coordinator.closures import (
    NO_ARGUMENTS,
    Call,
    Closure,
    FunctionRegistry,
    Pin,
    ScheduleOptions,
    pack_call,
)
from psnb._src.coordinator.in_flight import Gate
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.coordinator.remote_value import RemoteValue
from psnb._src.monitor.history import WorkerStatistics
from psnb._src.protocol.packing import dumps, pack_error
from psnb._src.utils.threads import Condition
from tests.conftest import DEADLINE, wait_until

FUNCTION = FunctionRegistry().register(len)
TIMEOUT = DEADLINE
UNRESPONSIVE = errors.ServerUnresponsiveError("server-0 says nothing")


def closure(queue: ClosureQueue, number: int = 0, retries: int = 0) -> Closure:
    return Closure(
        number, FUNCTION, NO_ARGUMENTS, ScheduleOptions(retries), RemoteValue(queue.settled)
    )


def put(queue: ClosureQueue, count: int, retries: int = 0) -> list[Closure]:
    closures = [closure(queue, number, retries) for number in range(count)]
    for each in closures:
        queue.put(each)
    return closures


def succeed(
    queue: ClosureQueue, each: Closure, value: object = None, *, pushed: bool = False
) -> None:
    queue.settle([(each, True, dumps(value, "value"), pushed)])


def fail(queue: ClosureQueue, each: Closure, error: Exception) -> None:
    queue.settle([(each, False, pack_error(error), False)])


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Run in a thread of its own; the future tells how it ended."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def wait_for_waiter(condition: Condition) -> None:
    """Return when a thread waits on a condition: it has given the lock up by then."""

    def waited_for() -> bool:
        with condition:
            return bool(condition._waiters)

    wait_until(waited_for, "somebody waits")


def up_to(limit: int) -> Callable[[Closure], bool]:
    """Admit so many closures."""
    left = iter(range(limit))
    return lambda closure: next(left, None) is not None


def worker(name: str = "a", index: int = 0, completed: int = 0) -> WorkerStatistics:
    return WorkerStatistics(name, f"tcp://{name}", index, "ready", 0, completed, 0, 0.0)


def put_one(
    queue: ClosureQueue,
    number: int,
    priority: int = 0,
    pin: Pin | None = None,
    call: Call = NO_ARGUMENTS,
    detached: bool = False,
    slot: int | None = None,
) -> Closure:
    made = ScheduleOptions(priority=priority, worker=pin, detached=detached, slot=slot)
    closure = Closure(number, FUNCTION, call, made, RemoteValue(queue.settled))
    queue.put(closure)
    return closure


def call_with(queue: ClosureQueue, *args: object) -> Call:
    return pack_call("f", args, {}, queue.settled)


def numbers(closures: list[Closure]) -> list[int]:
    return [closure.id for closure in closures]


def put_back(queue: ClosureQueue, *closures: Closure) -> None:
    queue.put_back(closures, executing=1, lost="worker 'a' was killed")


def opened(count: int = 1, gate: Gate | None = None) -> tuple[ClosureQueue, list[Closure]]:
    """Return a queue, and closures that were lost and of which nobody knows what became."""
    queue = ClosureQueue(10, gate=gate)
    put(queue, count, retries=1)
    lost = queue.take(up_to(count))
    assert queue.lose(lost) == lost
    return queue, lost
