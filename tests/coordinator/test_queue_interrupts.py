"""Interrupts wherever they may strike in what the main thread does with a queue."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.monitor.events import EventKind, EventLog
from psnb.errors import ClosureCancelledError
from tests.conftest import DEADLINE, wait_until
from tests.coordinator.queues import (
    ClosureQueue,
    LoopThread,
    call_with,
    closure,
    fail,
    in_thread,
    put,
    put_one,
    succeed,
    worker,
)
from tests.interrupting import (
    Scene,
    interrupt_when,
    interrupted_everywhere,
    sleeping,
    when_it_sleeps,
)


@pytest.fixture(autouse=True)
def _loop() -> Iterator[None]:
    """Run the loop in a thread of its own: interrupts strike the main thread only."""
    LOOPS.append(LoopThread())
    yield
    loop = LOOPS.pop()
    loop.call_soon_threadsafe(loop.stop)
    wait_until(lambda: not loop.is_running(), "it has stopped")
    loop.close()


LOOPS: list[LoopThread] = []


def made_queue(size: int, **options: Any) -> ClosureQueue:
    return ClosureQueue(size, loop=LOOPS[-1], **options)


def assert_usable(queue: ClosureQueue) -> None:
    """Check that another thread, as the event loop's, gets the lock."""
    wait_until(lambda: not queue.inbox, "nothing is left to do")
    queue.loop.do(queue.inbox.look)
    assert not queue.inbox._waiters


class Connections:
    """What is woken when there is work."""

    def __init__(self) -> None:
        self.woken = 0
        self.events = EventLog()

    def wake(self) -> None:
        self.woken += 1

    def queue(self, size: int = 10) -> ClosureQueue:
        """Return a queue whose connections have gone away hungry."""
        made = made_queue(size, events=self.events)
        made.attach(self.wake)
        assert not made.has_work()
        return made


def test_put_queues_a_closure_once_and_wakes_the_lanes_or_has_done_nothing() -> None:
    def make() -> Scene:
        connections = Connections()
        queue = connections.queue()
        new = closure(queue)

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            taken = queue.take(100)
            assert taken in ([], [new])
            assert error is not None or taken
            assert connections.woken == len(taken)

        return lambda: queue.put(new), check

    interrupted_everywhere(make)


def test_put_into_a_full_queue_waits_and_loses_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: list[ClosureQueue] = []
    when_it_sleeps(monkeypatch, lambda: queues[-1].take(1))

    def make() -> Scene:
        queue = made_queue(1)
        queues.append(queue)
        put(queue, 1)
        second = closure(queue, 2)

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            found = queue.statistics()
            if second.remote in (each.remote for each in queue.take(100)):
                assert found.in_flight == 1
            else:
                assert error is not None
                assert found.queued + found.in_flight == 1

        return lambda: queue.put(second), check

    interrupted_everywhere(make)


class Failing:
    """A queue with two closures, of which one fails, the other may have ended or not."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.queue = made_queue(10)
        put(self.queue, 2)
        self._failed, self._other = self.queue.take(2)
        self._error = ValueError(f"number {next(self.numbers)}")

    def fail(self) -> None:
        fail(self.queue, self._failed, self._error)

    def end(self) -> None:
        """Have all ended; any thread."""
        for each in (self._failed, self._other):
            if each.remote.status is ClosureStatus.RUNNING:
                self.fail() if each is self._failed else succeed(self.queue, each)

    def check(self, error: BaseException | None) -> None:
        """Check that the error was raised, as the interrupt's context perhaps, or will be."""
        assert_usable(self.queue)
        self.end()
        text = str(self._error)
        chain = (error, error.__context__ if error is not None else None)
        if not any(text in str(each) for each in chain):
            assert error is not None
            with pytest.raises(ValueError, match=text):
                self.queue.join(0)
        self.queue.join(0)


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> list[Failing]:
    """Of which the last one ends whenever the main thread is about to sleep."""
    made: list[Failing] = []
    when_it_sleeps(monkeypatch, lambda: made[-1].end())
    return made


def test_put_that_is_to_raise_an_error_raises_it_once(scenes: list[Failing]) -> None:
    def make() -> Scene:
        scene = Failing()
        scenes.append(scene)
        scene.fail()
        return lambda: scene.queue.put(closure(scene.queue, 3)), scene.check

    interrupted_everywhere(make)


def test_join_raises_an_error_once(scenes: list[Failing]) -> None:
    def make() -> Scene:
        scene = Failing()
        scenes.append(scene)
        return scene.queue.join, scene.check

    interrupted_everywhere(make)


def test_done_raises_an_error_once() -> None:
    def make() -> Scene:
        scene = Failing()
        scene.end()
        return scene.queue.done, scene.check

    interrupted_everywhere(make)


def test_fetch_returns_the_same_value_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: list[tuple[ClosureQueue, Work]] = []

    def end() -> None:
        queue, running = queues[-1]
        if queue.statistics().in_flight:
            succeed(queue, running, ["value"])

    when_it_sleeps(monkeypatch, end)

    def make() -> Scene:
        queue = made_queue(10)
        put(queue, 1)
        (running,) = queue.take(1)
        queues.append((queue, running))
        remote = running.remote

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            end()
            value = remote.fetch(0)
            assert value == ["value"]
            assert remote.fetch(0) is value
            # As an argument it must have either its pickle or its value.
            packed = remote.packed()
            assert packed is None
            assert remote.pack_again()

        return remote.fetch, check

    interrupted_everywhere(make)


def test_a_closure_with_a_fetched_input_is_put_once_or_not_at_all() -> None:
    def make() -> Scene:
        connections = Connections()
        queue = connections.queue()
        first = put_one(queue, 1)
        queue.take(1)
        succeed(queue, first, "value")
        first.remote.fetch(0)
        woken = connections.woken
        assert not queue.has_work()
        second = closure(queue, 2)
        second.call = call_with(queue, first.remote)

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            taken = queue.take(100)
            assert taken in ([], [second])
            assert error is not None or taken
            assert connections.woken - woken == len(taken)

        return lambda: queue.put(second), check

    interrupted_everywhere(make)


def test_pause_is_wholly_done_or_not_at_all() -> None:
    def make() -> Scene:
        connections = Connections()
        queue = connections.queue()

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            paused = [EventKind.COORDINATOR_PAUSED] if queue.statistics().paused else []
            kinds = [event.kind for event in connections.events.all()]
            assert [each for each in kinds if each is not EventKind.WORKER_JOINED] == paused

        return queue.pause, check

    interrupted_everywhere(make)


def test_resume_wakes_the_lanes_or_has_done_nothing() -> None:
    def make() -> Scene:
        connections = Connections()
        queue = connections.queue()
        queue.pause()
        put_one(queue, 1)

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            assert connections.woken == (not queue.statistics().paused)

        return queue.resume, check

    interrupted_everywhere(make)


@pytest.mark.parametrize("how", ["cancel_queued", "close", "withdraw"])
def test_what_cancels_does_so_with_all_or_none(how: str) -> None:
    def make() -> Scene:
        events = EventLog()
        queue = made_queue(10, events=events)

        def choose(one: object) -> bool:
            return True

        waiting = [put_one(queue, number, pin=choose) for number in range(3)]
        calls: dict[str, Callable[[], object]] = {
            "cancel_queued": queue.cancel_queued,
            "close": queue.close,
            "withdraw": lambda: queue.withdraw(choose, "not wanted"),
        }

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            (status,) = {each.remote.status for each in waiting}
            if status is ClosureStatus.CANCELLED:
                with pytest.raises(ClosureCancelledError):
                    waiting[0].remote.fetch(0)
                assert queue.statistics().queued == 0
                told = {event.kind for event in events.all()}
                assert EventKind.CLOSURES_CANCELLED in told or how == "withdraw"
            else:
                assert error is not None
                assert len(queue.take(100, worker)) == 3

        return calls[how], check

    interrupted_everywhere(make)


def test_an_interrupt_that_comes_while_join_waits_ends_it_and_nothing_else() -> None:
    queue = made_queue(10)
    put(queue, 1)
    (running,) = queue.take(1)
    with interrupt_when(sleeping), pytest.raises(KeyboardInterrupt):
        queue.join()
    assert_usable(queue)
    joining = in_thread(queue.join)
    succeed(queue, running)
    joining.result(DEADLINE)


def test_callbacks_are_added_once_or_not_at_all() -> None:
    def make() -> Scene:
        queue = made_queue(10)
        put(queue, 1)
        (running,) = queue.take(1)
        ended: list[object] = []

        def check(error: BaseException | None) -> None:
            assert_usable(queue)
            succeed(queue, running)
            assert len(ended) <= 1
            assert error is not None or ended

        return lambda: running.remote.call_back(ended.append), check

    interrupted_everywhere(make)


def test_what_was_put_by_a_thread_that_is_interrupted_runs_on_others_meanwhile() -> None:
    queue, stop, numbers = made_queue(4), threading.Event(), itertools.count()

    def serve() -> int:
        done = 0
        while not stop.is_set():
            for each in queue.take(2):
                succeed(queue, each)
                done += 1
        return done

    serving = [in_thread(serve) for _ in range(2)]

    def make() -> Scene:
        new = closure(queue, next(numbers))
        return lambda: queue.put(new), lambda error: None

    interrupted_everywhere(make)
    queue.join(DEADLINE)
    stop.set()
    assert sum(each.result(DEADLINE) for each in serving) == queue.statistics().completed > 0
