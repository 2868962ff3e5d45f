"""What the tests of the queue share: closures without Dask, and races that are forced."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from psnb import errors
from psnb._src.coordinator import queue as product
from psnb._src.coordinator.closures.call import NO_ARGUMENTS, Call, pack_call
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.coordinator.closures.options import Pin, ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.events import (
    Blocked,
    Cancel,
    Event,
    FailWaiting,
    Heard,
    Hold,
    Joined,
    Left,
    Release,
    Started,
    StepTaken,
    Withdraw,
)
from psnb._src.coordinator.scheduling.gates import ApplyRound, Flush, Gate
from psnb._src.coordinator.scheduling.instructions import (
    CallBack,
    Instruction,
    Resolve,
    Send,
    Tell,
)
from psnb._src.coordinator.scheduling.leases import EpochLeases
from psnb._src.coordinator.scheduling.load import Load
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.scheduling.work import NOT_TAKEN, Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.coordinator.workers.executor import Executor
from psnb._src.coordinator.workers.resolve import Resolver
from psnb._src.monitor.events import EventKind
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import ClosureResult, ClosureResults, RecallClosures, Taken
from psnb._src.protocol.packing import dumps
from psnb._src.utils.phases import PHASES
from psnb._src.utils.threads import runs_here
from tests.conftest import DEADLINE, wait_until

T = TypeVar("T")
FUNCTION = FunctionRegistry().register(len)
TIMEOUT = DEADLINE
NOBODY = WorkerStatistics("", "", -1, "ready", 0, 0, 0, 0.0)
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


class _Taking(Load):
    """The load of a worker that takes so many closures when it comes, and no more."""

    def __init__(self, limit: int, steps: int | None) -> None:
        super().__init__(limit)
        self._left, self._steps_granted = limit, steps

    def full(self) -> bool:
        self.refused = not self._left
        return self.refused

    def add(self, closure: Work) -> bool:
        if self.full():
            return False
        self._left -= 1
        if self._steps_granted and closure.execution is NOT_TAKEN:
            closure.granted = self._steps_granted
        self._closures[closure.id] = closure, math.inf
        self._long += 1
        return True

    def close(self) -> None:
        self._left = 0


class _Waking(Load):
    """The load of a worker that could do more, calls when there is more, and does not take it."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(1)
        self._call = call

    def full(self) -> bool:
        return False

    def add(self, closure: Work) -> bool:
        self.refused = True
        self._call()
        return False


class ClosureQueue(product.ClosureQueue):
    """A queue with its scheduler; what servers and workers would do, tests do by its methods."""

    def __init__(self, max_size: int, *args: Any, loop: Any = None, **kwargs: Any) -> None:
        self.on: dict[type, Callable[..., object]] = {}
        self.instructions: list[Instruction] = []
        self.scheduler, self.loop = Scheduler(*args, **kwargs), loop or Inline()
        self._sessions = itertools.count()
        self._woken: WorkerState | None = None
        self.function = FunctionRegistry().register(len)
        self.executor = _Executor(self)
        super().__init__(max_size, self.scheduler, self.executor.handle, self.loop)
        self.executor.attach(None, None, bool, self.inbox.look)  # type: ignore[arg-type]

    def handle(self, *events: Event) -> None:
        """Have the scheduler take events in."""
        self.loop.do(self.executor.handle, *events)

    def joined(
        self,
        name: str = "a",
        index: int = 0,
        threads: int = 1,
        load: Load | None = None,
        completed: int = 0,
    ) -> WorkerState:
        """Let a worker join, which gets closures from now on."""
        worker = WorkerState(name, f"tcp://{name}", index, next(self._sessions), 1)
        worker.threads = threads
        worker.figures.add([], completed, 0)

        def join() -> None:
            self.executor.handle(Joined(worker))
            worker.load = worker.load if load is None else load
            self.executor.handle(Started(worker))

        self.loop.do(join)
        return worker

    def sent(self, worker: WorkerState, since: int = 0) -> list[Work]:
        """Return all closures that were sent to a worker, by which instructions."""
        sends = [each for each in self.instructions[since:] if isinstance(each, Send)]
        return [each for send in sends if send.worker is worker for each in send.closures]

    def told(self, kind: type[T]) -> list[tuple[str, T]]:
        """Return the messages of a kind that were sent, with the names of the workers."""
        tells = [each for each in self.instructions if isinstance(each, Tell)]
        return [(e.worker.name, e.message) for e in tells if isinstance(e.message, kind)]

    def recalled(self) -> list[str]:
        """Return the names of the workers that were asked to return closures."""
        return [name for name, _ in self.told(RecallClosures)]

    def take(
        self,
        limit: int,
        worker: Callable[[], WorkerStatistics] | None = None,
        steps: int | None = None,
    ) -> list[Work]:
        """Have a new worker take closures, each with so many steps; it takes no more later."""
        seen = NOBODY if worker is None else worker()
        load = _Taking(limit, steps)
        before = len(self.instructions)
        one = self.joined(seen.name, seen.index, limit, load, seen.completed)
        taken = self.sent(one, before)
        load.close()
        if not taken:
            self.scheduler.dispatcher.leave(one)
        if self._woken is not None:
            self.handle(Started(self._woken))
        return taken

    def settle(
        self,
        results: Sequence[tuple[Work, ClosureResult]],
        worker: str = "",
        *,
        certain: bool = True,
    ) -> None:
        """Record what became of closures, with those that were lost."""

        def run() -> None:
            for closure, result in results:
                self._scheduler._settle(closure, result, worker, certain=certain)
                if result.ended:
                    self.forget([closure])
            self.executor.handle()

        self.loop.do(run)

    def _then(self, function: Callable[..., T], *args: Any) -> T:
        def run() -> T:
            found = function(*args)
            self.executor.handle()
            return found

        return self.loop.do(run)

    def worker_of(self, closure: Work) -> WorkerState:
        """Return the worker that has a closure."""
        return next(each for each in self.scheduler.dispatcher.workers if closure in each.load)

    def heard(self, closure: Work, *results: ClosureResult) -> None:
        """Have the worker of a closure send results."""
        message = ClosureResults([], [], [0.0] * len(PHASES), list(results))
        self.handle(Heard(self.worker_of(closure), message))

    def lose_worker(self, closure: Work) -> None:
        """Have the session end in which a closure is."""
        self.handle(Left(self.worker_of(closure), EventKind.WORKER_LOST, "was lost"))

    def forget(self, closures: Sequence[Work]) -> None:
        """Have no worker have closures any more; one that has none is gone."""
        for worker in list(self.scheduler.dispatcher.workers):
            for closure in closures:
                if closure in worker.load:
                    worker.load.remove(closure.id)
            if isinstance(worker.load, _Taking) and not worker.load:
                self.scheduler.dispatcher.leave(worker)

    def lose(self, closures: Sequence[Work]) -> list[Work]:
        self.forget(closures)
        return self._then(self.scheduler.in_flight.lose, closures)

    def put_back(
        self, closures: Sequence[Work], executing: int, lost: str, worker: str = ""
    ) -> None:
        for doubt in [each for each in self.scheduler._undecided if {*each.open} & {*closures}]:
            del self.scheduler._undecided[doubt]
        self._then(self.scheduler._put_back, closures, executing, lost, worker)

    def give_back(self, closures: Sequence[Work]) -> None:
        self.forget(closures)
        self._then(self.scheduler._give_back, closures)

    def skip_step(self, closure: Work) -> None:
        self._then(self.scheduler._advance, closure, 1)

    def cancel_one(self, remote: RemoteValue, in_flight: bool = True) -> Work | None:
        """Cancel a closure; return it if servers must say whether it had its effect."""
        before = len(self.instructions)
        self.handle(Cancel(remote, in_flight))
        doubts = [each for each in self.instructions[before:] if isinstance(each, Resolve)]
        return doubts[0].doubt.open[0] if doubts else None

    def stepped(self, error: Exception | None) -> None:
        self.handle(StepTaken(error))

    def block(self, error: Exception) -> None:
        self.handle(Blocked(error))

    def hold(self) -> None:
        self.handle(Hold())

    def let_go(self) -> None:
        self.handle(Release())

    def fail_waiting(self, error: errors.PsnbError) -> None:
        self.handle(FailWaiting(error))

    def withdraw(self, chooser: WorkerPredicate, reason: str) -> None:
        self.inbox.post(Withdraw(chooser, reason))

    def has_work(self) -> bool:
        return self.scheduler.dispatcher.has_work()

    def attach(self, on_work: Any = None, on_step: Any = bool) -> None:
        """Call back when a worker that could do more finds work, and with the steps of the gate."""
        if on_work is not None:
            self._woken = self.joined("idle", 99, load=_Waking(on_work))
        self.on[ApplyRound] = self.on[Flush] = on_step

    def failing(self) -> bool:
        return bool(self.scheduler.errors)

    def awaited(self) -> list[object]:
        return self.scheduler.dispatcher.waiting.awaited()

    def settled(self) -> tuple[int, ...]:
        return self.scheduler.in_flight.settled.bounds()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["scheduler"], name)
        return partial(self._then, found) if callable(found) else found


class _Executor(Executor):
    """Calls what a test wants to hear of instructions, and carries out what needs no cluster."""

    def __init__(self, queue: ClosureQueue) -> None:
        loop: Any = queue.loop
        super().__init__(queue.scheduler, None, None, loop)  # type: ignore[arg-type]
        self._queue = queue

    def _carry_out(self) -> None:
        while self._pending:
            each = self._pending.popleft()
            self._queue.instructions.append(each)
            if isinstance(each, CallBack):
                each.remote.tell()
            self._queue.on.get(type(each), bool)(each)


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
    return Work(number, number, queue.function, call, options, remote)


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


def resolve(queue: ClosureQueue, strategy: Any, begin: Callable[[], object]) -> None:
    """Ask servers about what comes in doubt by what is begun, until all of it is known."""

    async def run() -> None:
        resolver = Resolver(queue.scheduler, strategy, queue.handle)
        before = len(queue.instructions)
        begin()
        for each in queue.instructions[before:]:
            if isinstance(each, Resolve):
                resolver.resolve(each.doubt)
        await asyncio.gather(*resolver._tasks)

    asyncio.run(run())


def opened(count: int = 1, gate: Gate | None = None) -> tuple[ClosureQueue, list[Work]]:
    """Return a queue, and closures that were lost and of which nobody knows what became."""
    queue = ClosureQueue(10, gate=gate)
    put(queue, count, retries=1)
    lost = queue.take(count)
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
    known = leases._leases.get(lease) or leases._again.get(lease)
    at = 0 if known is None else known.at
    leases.take(holder, Taken(1, lease, closure, at, count, after, ended))
