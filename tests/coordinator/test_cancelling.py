"""One closure that is cancelled, wherever it is."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

import pytest

from psnb import errors
from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.doubts import Doubt, LostWorker
from psnb._src.coordinator.scheduling.events import Cancel, Decided
from psnb._src.coordinator.scheduling.gates import RoundGate
from psnb._src.coordinator.scheduling.instructions import Resolve
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.work import Execution, Work
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import AskLease, Taken
from tests.coordinator.queues import (
    TIMEOUT,
    ClosureQueue,
    call_with,
    fail,
    numbers,
    put,
    put_one,
    raised,
    succeed,
    worker,
)
from tests.coordinator.queues import closure as waiting


def cancel(queue: ClosureQueue, closure: Work) -> Work | None:
    return queue.cancel_one(closure.remote, in_flight=True)


def put_back(queue: ClosureQueue, closure: Work) -> None:
    queue.put_back([closure], 0, "it has had no effect")


def test_a_queued_one_never_runs_and_the_others_do() -> None:
    queue = ClosureQueue(10)
    _, second, _ = put(queue, 3)
    assert cancel(queue, second) is None
    assert second.remote.status is ClosureStatus.CANCELLED
    assert numbers(queue.take(10)) == [0, 2]
    assert queue.statistics().cancelled == 1


def test_one_that_needs_a_certain_worker_is_found_too() -> None:
    queue = ClosureQueue(10)
    pinned, other = put_one(queue, 0, pin="a"), put_one(queue, 1, priority=3)
    for each in (pinned, other):
        assert cancel(queue, each) is None
        assert each.remote.status is ClosureStatus.CANCELLED
    assert queue.take(10, worker) == []
    assert queue.statistics().queued == 0


def test_those_that_wait_for_its_result_are_cancelled_with_it() -> None:
    queue = ClosureQueue(10)
    (first,) = put(queue, 1)
    second = put_one(queue, 1, call=call_with(queue, first.remote))
    third = put_one(queue, 2, call=call_with(queue, second.remote, first.remote))
    cancel(queue, first)
    for each in (second, third):
        with pytest.raises(errors.ClosureCancelledError, match="it waited for the result of"):
            each.remote.fetch(TIMEOUT)
    queue.join(TIMEOUT)


def test_one_that_waits_for_a_result_is_cancelled_alone() -> None:
    queue = ClosureQueue(10)
    (first,) = put(queue, 1)
    second = put_one(queue, 1, call=call_with(queue, first.remote))
    third = put_one(queue, 2, call=call_with(queue, first.remote))
    cancel(queue, second)
    assert second.remote.status is ClosureStatus.CANCELLED
    succeed(queue, *queue.take(1), 7)
    assert queue.take(5) == [third]


def test_a_running_one_is_open_until_it_is_known_that_it_has_had_no_effect() -> None:
    queue = ClosureQueue(10)
    put(queue, 1, retries=3)
    (closure,) = queue.take(1)
    assert cancel(queue, closure) is closure
    assert closure.remote.status is ClosureStatus.RUNNING
    put_back(queue, closure)
    with pytest.raises(errors.ClosureCancelledError, match=r"cancel\(\) was called"):
        closure.remote.fetch(TIMEOUT)
    queue.join(TIMEOUT)  # raises nothing
    assert queue.take(1) == []


def test_one_that_has_had_its_effect_has_completed() -> None:
    queue = ClosureQueue(10)
    put(queue, 1)
    (closure,) = queue.take(1)
    cancel(queue, closure)
    succeed(queue, closure, 5)
    put_back(queue, closure)  # what is found out later changes nothing
    fail(queue, closure, ValueError("late"))
    assert closure.remote.fetch(TIMEOUT) == 5


def test_one_that_raises_because_of_it_is_no_error_and_servers_decide() -> None:
    queue = ClosureQueue(10)
    put(queue, 2)
    closure, other = queue.take(2)
    cancel(queue, closure)
    # Or a shard that is lost, while the servers apply what the others have.
    fail(queue, closure, ValueError("the servers took no more"))
    assert closure.remote.status is ClosureStatus.RUNNING
    put_back(queue, closure)
    assert closure.remote.status is ClosureStatus.CANCELLED
    succeed(queue, other)
    queue.join(TIMEOUT)


def test_one_that_was_lost_with_its_worker_does_not_run_again() -> None:
    queue = ClosureQueue(10)
    put(queue, 1, retries=3)
    (closure,) = queue.take(1)
    queue.lose([closure])
    assert cancel(queue, closure) is None  # somebody finds out already
    put_back(queue, closure)
    assert closure.remote.status is ClosureStatus.CANCELLED


def test_one_that_was_lost_after_it_was_cancelled_is_not_lost_twice() -> None:
    queue = ClosureQueue(10)
    put(queue, 1, retries=3)
    (closure,) = queue.take(1)
    cancel(queue, closure)
    assert queue.lose([closure]) == []
    queue.give_back([closure])
    assert closure.remote.status is ClosureStatus.RUNNING


def test_one_that_has_ended_stays_as_it_is() -> None:
    queue = ClosureQueue(10)
    put(queue, 1)
    (closure,) = queue.take(1)
    succeed(queue, closure, 3)
    assert cancel(queue, closure) is None
    assert closure.remote.cancel() is False
    assert closure.remote.fetch(TIMEOUT) == 3


def test_a_round_goes_on_without_it() -> None:
    queue = ClosureQueue(10, gate=RoundGate(2))
    steps: list[object] = []
    queue.attach(on_step=steps.append)
    put(queue, 2)
    closure, other = queue.take(2)
    cancel(queue, closure)
    put_back(queue, closure)
    succeed(queue, other, pushed=True)
    assert len(steps) == 1


def taken_closure(number: int) -> Work:
    """Return a closure that some worker has."""
    made = waiting(ClosureQueue(1), number)
    made.execution = Execution(0)
    return made


def test_one_whose_outcome_is_unknown_fails_with_the_error() -> None:
    queue = ClosureQueue(10)
    put(queue, 1)
    (closure,) = queue.take(1)
    cancel(queue, closure)
    error = pack_error(errors.InternalError("a server answered nonsense"))
    queue.settle([raised(closure, error)], certain=False)
    assert closure.remote.cancel() is False
    with pytest.raises(errors.InternalError, match="nonsense"):
        queue.join(TIMEOUT)
    assert closure.remote.status is ClosureStatus.FAILED


def test_those_that_have_failed_are_remembered_only_while_a_worker_may_run_them() -> None:
    leases = LeaseRegistry()
    queue = ClosureQueue(10, leases=leases)
    put(queue, 2)
    first, second = queue.take(2)
    cancel(queue, first)
    put_back(queue, first)
    queue.cancel_queued()
    fail(queue, second, ValueError("of its own"))
    assert set(leases._over) == {0, 1}
    queue.forget([first])
    queue.instructions.clear()
    del first
    assert set(leases._over) == {1}


def test_what_it_takes_of_a_leased_dataset_is_free_again() -> None:
    leases = LeaseRegistry()
    leases.enter("session", "a")
    epoch = leases.open(1)
    lease = leases.lease("session", AskLease(epoch, 5, None))
    assert lease is not None
    leases.take("session", Taken(epoch, lease.number, 5, 0, 1, 1, False))
    closure = taken_closure(5)
    leases.end(closure)
    leases.take("session", Taken(epoch, lease.number, 5, 1, 1, 2, False))
    state = leases.state(epoch)
    ranges = [[0, None, 1], [0, 1, 1], [0, 2, None]]
    assert sorted(state["ranges"], key=str) == sorted(ranges, key=str)


def test_what_it_takes_at_the_very_moment_of_its_end_is_free_again_too() -> None:
    leases = LeaseRegistry()
    leases.enter("session", "a")
    epoch = leases.open(1)
    lease = leases.lease("session", AskLease(epoch, 5, None))
    assert lease is not None
    enders: list[threading.Thread] = []
    running = taken_closure(5)

    class EndsWhenAsked(WeakValueDictionary[int, Execution]):
        """Whoever takes finds that the closure goes on; meanwhile another thread ends it."""

        def __contains__(self, closure: object) -> bool:
            found = super().__contains__(closure)
            enders.append(threading.Thread(target=leases.end, args=(running,)))
            enders[-1].start()
            enders[-1].join(0.2)  # it ends within this time only if nothing holds it up
            return found

    leases._over = EndsWhenAsked()
    leases.take("session", Taken(epoch, lease.number, 5, 0, 1, 1, False))
    enders[0].join(TIMEOUT)
    ranges = leases.state(epoch)["ranges"]
    assert sorted(ranges, key=str) == sorted([[0, None, 1], [0, 1, None]], key=str)
    assert leases.lease("other", AskLease(epoch, 6, None)) is not None


def test_a_worker_is_asked_about_once_what_was_cancelled_on_it_is_decided() -> None:
    # At the same time, two resolutions of one commit might end in two ways, as a shard is lost.
    queue = ClosureQueue(10)
    (closure,) = put(queue, 1)
    assert queue.joined().load
    queue.handle(Cancel(closure.remote, in_flight=True))

    def doubts() -> list[Doubt]:
        return [each.doubt for each in queue.instructions if isinstance(each, Resolve)]

    (revoked,) = doubts()
    queue.lose_worker(closure)
    assert doubts() == [revoked]
    queue.handle(Decided(revoked, {}))
    assert closure.remote.status is ClosureStatus.CANCELLED
    _, lost = doubts()
    assert isinstance(lost, LostWorker)
    queue.handle(Decided(lost, {}))
    assert queue.done()
