"""What the tests of the queue share: closures without Dask, and races that are forced."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from psnb import errors
from psnb._src.coordinator import queue as product
from psnb._src.coordinator.closures.call import NO_ARGUMENTS, Call, pack_call
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.coordinator.closures.options import Pin, ScheduleOptions
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.gates import ApplyRound, Flush, Gate
from psnb._src.coordinator.scheduling.instructions import CallBack, Dispatch, Instruction
from psnb._src.coordinator.scheduling.leases import EpochLeases
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import ClosureResult, Taken
from psnb._src.protocol.packing import dumps
from psnb._src.utils.threads import runs_here
from tests.conftest import DEADLINE, wait_until

FUNCTION = FunctionRegistry().register(len)
TIMEOUT = DEADLINE
UNRESPONSIVE = errors.ServerUnresponsiveError("server-0 says nothing")


class Inline:
    """Stands for an event loop: what is posted to it is done at once, by whichever thread posts.

    One at a time, as on a loop. Only what the code under test asks of a loop is here.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._later: deque[Callable[[], object]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._later.append(partial(callback, *args))

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        self.call_soon(callback, *args)
        if not runs_here(self):  # type: ignore[arg-type]
            self.do(bool)

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if runs_here(self):  # type: ignore[arg-type]
            return function(*args, **kwargs)
        with self._turn:
            before = asyncio._get_running_loop()
            asyncio._set_running_loop(self)  # type: ignore[arg-type]
            try:
                found = function(*args, **kwargs)
                while self._later:
                    self._later.popleft()()
                return found
            finally:
                asyncio._set_running_loop(before)

    def is_closed(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True


class LoopThread(asyncio.SelectorEventLoop):
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=self.run_forever, name="test-loop", daemon=True).start()

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(function(*args, **kwargs))
            except BaseException as error:
                answer.set_exception(error)

        self.call_soon_threadsafe(run)
        return answer.result(DEADLINE)


class ClosureQueue(product.ClosureQueue):
    """A queue with its scheduler; what the loop does with that, tests do by the queue's methods."""

    def __init__(self, max_size: int, *args: Any, loop: Any = None, **kwargs: Any) -> None:
        self.on: dict[type, Callable[..., object]] = {}
        self.instructions: list[Instruction] = []
        self.scheduler, self.loop = Scheduler(*args, **kwargs), loop or Inline()
        super().__init__(max_size, self.scheduler, self.loop)  # type: ignore[arg-type]
        self.scheduler.carry_out = self._carry_out

    def _carry_out(self, instructions: Sequence[Instruction]) -> bool:
        for each in instructions:
            self.instructions.append(each)
            if isinstance(each, CallBack):
                each.remote.tell()
            self.on.get(type(each), bool)(each)
        return self.inbox.look()

    def attach(self, on_work: Any = bool, on_step: Any = bool) -> None:
        """Call back when workers should look for work, and with the steps of the gate."""
        self.on[Dispatch] = lambda each: on_work()
        self.on[ApplyRound] = self.on[Flush] = on_step

    def failing(self) -> bool:
        return bool(self.scheduler.errors)

    def awaited(self) -> list[object]:
        return self.scheduler.waiting.awaited()

    def settled(self) -> tuple[int, ...]:
        return self.scheduler.in_flight.settled.bounds()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["scheduler"], name)
        return partial(self.loop.do, found) if callable(found) else found


def closure(queue: ClosureQueue, number: int = 0, retries: int = 0) -> Work:
    return make_work(queue, number, ScheduleOptions(retries))


def make_work(
    queue: ClosureQueue,
    number: int,
    options: ScheduleOptions,
    call: Call = NO_ARGUMENTS,
    remote: RemoteValue | None = None,
) -> Work:
    remote = RemoteValue(queue.inbox) if remote is None else remote
    return Work(number, number, FUNCTION, call, options, remote)


def commit_of(closure: Work) -> int:
    """Return the number of the commit of a closure's first step."""
    return closure.execution.commit - closure.execution.done


def done(
    each: Work,
    *values: bytes,
    steps: int = 1,
    ended: bool = True,
    pushed: bool = False,
    reported: bytes = b"",
) -> tuple[Work, ClosureResult]:
    """Return what its worker says when steps are done."""
    return each, ClosureResult(each.id, steps, ended, True, reported, values, 0.0, pushed, ())


def raised(each: Work, error: bytes) -> tuple[Work, ClosureResult]:
    return each, ClosureResult(each.id, 0, True, False, error, (), 0.0, False, ())


def put(queue: ClosureQueue, count: int, retries: int = 0) -> list[Work]:
    closures = [closure(queue, number, retries) for number in range(count)]
    for each in closures:
        queue.put(each)
    return closures


def succeed(queue: ClosureQueue, each: Work, value: object = None, *, pushed: bool = False) -> None:
    queue.settle([done(each, dumps(value, "value"), pushed=pushed)])


def fail(queue: ClosureQueue, each: Work, error: Exception) -> None:
    queue.settle([raised(each, pack_error(error))])


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


def wait_for_waiter(queue: ClosureQueue) -> None:
    """Return when a thread waits for something."""
    wait_until(lambda: any(not each.done() for _, each in queue.inbox._waiters), "somebody waits")


def up_to(limit: int) -> Callable[[Work], bool]:
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
) -> Work:
    made = ScheduleOptions(priority=priority, worker=pin, detached=detached, slot=slot)
    closure = make_work(queue, number, made, call)
    queue.put(closure)
    return closure


def call_with(queue: ClosureQueue, *args: object) -> Call:
    return pack_call("f", args, {}, queue.inbox)


def numbers(closures: list[Work]) -> list[int]:
    return [closure.id for closure in closures]


def put_back(queue: ClosureQueue, *closures: Work) -> None:
    queue.put_back(closures, executing=1, lost="worker 'a' was killed")


def opened(count: int = 1, gate: Gate | None = None) -> tuple[ClosureQueue, list[Work]]:
    """Return a queue, and closures that were lost and of which nobody knows what became."""
    queue = ClosureQueue(10, gate=gate)
    put(queue, count, retries=1)
    lost = queue.take(up_to(count))
    assert queue.lose(lost) == lost
    return queue, lost


def take(
    leases: EpochLeases,
    holder: Hashable,
    lease: int,
    closure: int,
    count: int,
    after: Any,
    ended: bool,
) -> None:
    """Note that a closure has taken the next elements of a lease."""
    known = leases._leases.get(lease)
    at = 0 if known is None else known.at
    leases.take(holder, Taken(1, lease, closure, at, count, after, ended))
