"""In which order closures are taken, and by whom: without Dask."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from psnb import errors
from psnb._src.coordinator.closures.call import NO_ARGUMENTS
from psnb._src.coordinator.closures.options import Pin, ScheduleOptions, options
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.coordinator.scheduling.gates import RoundGate
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.coordinator.timeouts import StartDelay
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.messages import CancelClosures
from tests.coordinator.queues import (
    FUNCTION,
    ClosureQueue,
    commit_of,
    fail,
    numbers,
    put_one,
    succeed,
    worker,
)

# Priorities


def test_higher_priorities_are_taken_first_and_each_in_order() -> None:
    queue = ClosureQueue(10)
    for number, priority in enumerate([0, 5, -1, 5, 0]):
        put_one(queue, number, priority)
    assert numbers(queue.take(10)) == [1, 3, 0, 4, 2]


def test_a_batch_may_end_within_a_priority() -> None:
    queue = ClosureQueue(10)
    for number, priority in enumerate([0, 5, 5, 0]):
        put_one(queue, number, priority)
    assert [numbers(queue.take(n)) for n in (1, 2, 1)] == [[1], [2, 0], [3]]


def test_a_lost_closure_goes_first_within_its_priority_only() -> None:
    queue = ClosureQueue(10)
    put_one(queue, 0)
    put_one(queue, 1)
    lost = queue.take(1)
    put_one(queue, 2, priority=1)
    queue.put_back(lost, executing=1, lost="gone")
    assert numbers(queue.take(10)) == [2, 0, 1]


# Pins


@pytest.mark.parametrize("pin", ["b", 1, lambda w: w.name == "b"])
def test_a_pinned_closure_waits_for_its_worker_and_blocks_no_other(pin: Pin) -> None:
    queue = ClosureQueue(10)
    put_one(queue, 0, pin=pin)
    put_one(queue, 1)
    assert numbers(queue.take(10, lambda: worker("a", 0))) == [1]
    assert queue.statistics().queued == 1
    assert numbers(queue.take(10, lambda: worker("b", 1))) == [0]


def test_pinned_and_other_closures_are_taken_in_one_order() -> None:
    queue = ClosureQueue(10)
    for number, (priority, pin) in enumerate([(0, None), (0, "a"), (1, 0), (0, None), (1, None)]):
        put_one(queue, number, priority, pin)
    assert numbers(queue.take(10, lambda: worker("a", 0))) == [2, 4, 0, 1, 3]


def test_a_choosing_function_is_asked_each_time() -> None:
    queue = ClosureQueue(10)
    put_one(queue, 0, pin=lambda w: w.completed > 3)
    assert queue.take(1, lambda: worker(completed=3)) == []
    assert numbers(queue.take(1, lambda: worker(completed=4))) == [0]


def test_a_function_that_chooses_may_use_the_queue() -> None:
    queue = ClosureQueue(10)
    put_one(queue, 0, pin=lambda w: queue.statistics().queued == 1)
    assert numbers(queue.take(1, worker)) == [0]


def test_a_choosing_function_whose_repr_raises_too_fails_its_closures() -> None:
    class Chooser:
        def __call__(self, worker: WorkerStatistics) -> bool:
            raise KeyboardInterrupt  # whatever it is: this is no thread of the user's

        def __repr__(self) -> str:
            raise ValueError("no name")

    queue = ClosureQueue(10)
    bad = put_one(queue, 0, pin=Chooser())
    assert queue.take(1, worker) == []
    assert bad.remote.status is ClosureStatus.FAILED


def test_what_a_choosing_function_raises_fails_its_closures() -> None:
    queue = ClosureQueue(10)
    bad = put_one(queue, 0, pin=lambda w: 1 / 0)  # type: ignore[arg-type, return-value]
    assert queue.take(1, worker) == []
    with pytest.raises(ZeroDivisionError):
        bad.remote.fetch()
    with pytest.raises(ZeroDivisionError):
        queue.join(0)


def test_a_pinned_closure_whose_worker_was_lost_waits_for_the_next_of_that_name() -> None:
    queue = ClosureQueue(10)
    put_one(queue, 0, pin="b")
    queue.put_back(queue.take(1, lambda: worker("b")), executing=1, lost="gone")
    assert queue.take(1, lambda: worker("a")) == []
    assert numbers(queue.take(1, lambda: worker("b"))) == [0]


def test_pinned_closures_are_cancelled_as_all_others_are() -> None:
    queue = ClosureQueue(10)
    running = put_one(queue, 0)
    queue.take(1)
    pinned = put_one(queue, 1, pin="nobody")
    fail(queue, running, ValueError("boo"))
    assert pinned.remote.status is ClosureStatus.CANCELLED


def test_withdrawing_cancels_only_what_that_function_would_choose() -> None:
    queue = ClosureQueue(10)

    def chooser(w: WorkerStatistics) -> bool:
        return w.name == "a"

    withdrawn, other = put_one(queue, 0, pin=chooser), put_one(queue, 1, pin="a")
    queue.withdraw(chooser, "not needed")
    with pytest.raises(errors.ClosureCancelledError, match="not needed"):
        withdrawn.remote.fetch()
    assert queue.take(5, lambda: worker("a")) == [other]


def test_what_waits_for_a_slot_holds_up_nothing_that_waits_for_none() -> None:
    queue = ClosureQueue(10, gate=RoundGate(3))
    put_one(queue, 0, slot=0)
    (first,) = queue.take(1)
    waits = put_one(queue, 1, pin=lambda worker: True, slot=0)
    other, idle = put_one(queue, 2), queue.joined(threads=2)
    assert queue.sent(idle) == [other]
    succeed(queue, first)
    assert queue.sent(idle) == [other, waits]


def test_the_failure_of_a_detached_closure_is_its_own_alone() -> None:
    queue = ClosureQueue(10)
    detached = put_one(queue, 0, detached=True)
    queue.take(1)
    waiting = put_one(queue, 1)
    fail(queue, detached, ValueError("boo"))
    with pytest.raises(ValueError, match="boo"):
        detached.remote.fetch()
    assert queue.take(1) == [waiting]
    assert not queue.done()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"priority": 0.5}, "priority"),
        ({"worker": -1}, "worker"),
        ({"worker": 1.0}, "worker"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=named):
        ScheduleOptions(**given)  # type: ignore[arg-type]


# Cancelling what runs, and the rest


def test_the_first_failure_asks_what_runs_to_stop() -> None:
    queue = ClosureQueue(10)
    closures = [put_one(queue, number) for number in range(3)]
    queue.take(3)
    for closure in closures[:2]:
        fail(queue, closure, ValueError("boo"))
    assert [asked.closures for _, asked in queue.told(CancelClosures)] == [[1, 2]]
    succeed(queue, closures[2])
    with pytest.raises(ValueError, match="boo"):
        queue.join(0)
    assert not queue.failing()


@pytest.mark.parametrize(("index", "seconds"), [(0, 0.0), (2, 3.0), (9, 4.0)])
def test_workers_start_one_after_the_other_up_to_a_bound(index: int, seconds: float) -> None:
    assert StartDelay(1.5, 4.0).seconds(index) == seconds


@pytest.mark.parametrize("given", [(-1.0, 0.0), (0.0, -1.0), ("a", 1.0), (float("inf"), 1.0)])
def test_a_start_delay_that_makes_no_sense_is_refused(given: tuple[float, float]) -> None:
    with pytest.raises(errors.ConfigurationError, match="start_delay"):
        StartDelay(*given)


def test_a_queued_closure_without_arguments_costs_about_250_bytes() -> None:
    queue = ClosureQueue(100_000)
    count = 20_000

    def fill() -> None:
        for number in range(1000, 1000 + count):
            made = options(5, 0, None)
            remote = RemoteValue(queue.inbox)
            queue.put(Work(number, 7_000_000 + number, FUNCTION, NO_ARGUMENTS, made, remote))

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        fill()
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < 260


def test_a_closure_that_waits_does_not_make_servers_remember_those_that_ended() -> None:
    queue = ClosureQueue(100)
    put_one(queue, 0, pin="absent")
    for number in range(1, 20):
        closure = put_one(queue, number)
        assert queue.take(1) == [closure]
        succeed(queue, closure)
    assert queue.settled() == (0, 19)


def test_a_closure_that_runs_again_keeps_its_commit_number() -> None:
    queue = ClosureQueue(100)
    closure = put_one(queue, 0)
    queue.take(1)
    before = commit_of(closure)
    queue.put_back([closure], executing=1, lost="gone")
    queue.take(1)
    assert commit_of(closure) == before == 0
    assert queue.settled() == ()


def test_what_waits_for_an_absent_worker_has_no_other_one_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, tried = ClosureQueue(10), list[str]()
    take = queue.scheduler.dispatcher.take_for
    for index in range(5):
        queue.joined(f"w{index}", index)

    def counting(worker: WorkerState) -> Any:
        tried.append(worker.name)
        return take(worker)

    monkeypatch.setattr(queue.scheduler.dispatcher, "take_for", counting)
    put_one(queue, 0, pin="absent")
    assert not tried
    put_one(queue, 1)
    put_one(queue, 2, pin=3)
    assert tried == ["w4", "w3"]
