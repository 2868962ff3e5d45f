"""The queue without Dask; races are forced with events."""

from __future__ import annotations

import re
import threading

import pytest

from psnb import errors
from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.values import fetched
from psnb._src.monitor.events import EventKind, EventLog
from tests.coordinator.queues import (
    TIMEOUT,
    ClosureQueue,
    closure,
    done,
    fail,
    in_thread,
    put,
    put_one,
    succeed,
    wait_for_waiter,
)


def test_closures_are_taken_in_the_order_in_which_they_were_put() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 3)
    assert queue.take(2) == closures[:2]
    assert queue.take(2) == closures[2:]
    assert queue.take(2) == []


def test_status_follows_a_closure_through_the_queue() -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    assert each.remote.status is ClosureStatus.QUEUED
    queue.take(1)
    assert each.remote.status is ClosureStatus.RUNNING
    succeed(queue, each)
    assert each.remote.status is ClosureStatus.COMPLETED


def test_fetch_returns_the_same_object_each_time() -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    queue.take(1)
    succeed(queue, each, {"a": [1, 2]})
    assert each.remote.fetch() == {"a": [1, 2]}
    assert each.remote.fetch() is each.remote.fetch()


def test_fetch_times_out_and_leaves_the_closure_queued() -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    with pytest.raises(TimeoutError, match="queued"):
        each.remote.fetch(timeout=0.01)
    assert queue.take(1) == [each]


def test_fetch_in_another_thread_is_woken_by_the_result() -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    queue.take(1)
    fetching = in_thread(each.remote.fetch)
    wait_for_waiter(queue)
    succeed(queue, each, 7)
    assert fetching.result(TIMEOUT) == 7


def test_put_waits_while_the_queue_is_full_and_goes_on_when_one_is_taken() -> None:
    queue = ClosureQueue(2)
    put(queue, 2)
    putting = in_thread(lambda: queue.put(closure(queue, 2)))
    wait_for_waiter(queue)
    assert queue.statistics().queued == 2
    queue.take(1)
    putting.result(TIMEOUT)
    assert queue.statistics().queued == 2


def test_put_that_waits_for_room_raises_the_error_that_makes_room() -> None:
    queue = ClosureQueue(1)
    (running,) = put(queue, 1)
    queue.take(1)
    queue.put(closure(queue, 1))
    blocked = closure(queue, 2)
    putting = in_thread(lambda: queue.put(blocked))
    wait_for_waiter(queue)
    fail(queue, running, ValueError("boo"))
    with pytest.raises(ValueError, match="boo"):
        putting.result(TIMEOUT)
    assert queue.statistics().queued == 0


def test_join_returns_when_the_last_running_closure_has_ended() -> None:
    queue = ClosureQueue(10)
    first, second = put(queue, 2)
    queue.take(2)
    joining = in_thread(queue.join)
    succeed(queue, first)
    wait_for_waiter(queue)
    assert not joining.done()
    succeed(queue, second)
    joining.result(TIMEOUT)


def test_join_times_out_and_everything_goes_on() -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    with pytest.raises(TimeoutError, match="1 closure queued"):
        queue.join(timeout=0.01)
    queue.take(1)
    succeed(queue, each)
    queue.join(timeout=TIMEOUT)


def test_done_is_false_until_nothing_waits_or_runs() -> None:
    queue = ClosureQueue(10)
    assert queue.done()
    (each,) = put(queue, 1)
    assert not queue.done()
    queue.take(1)
    assert not queue.done()
    succeed(queue, each)
    assert queue.done()


@pytest.mark.parametrize("call", ["join", "done", "put"])
def test_an_error_is_raised_once_by_whichever_call_comes_first(call: str) -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    queue.take(1)
    fail(queue, each, KeyError("k"))
    calls = {"join": queue.join, "done": queue.done, "put": lambda: queue.put(closure(queue, 1))}
    with pytest.raises(KeyError, match="k"):
        calls[call]()
    queue.join(timeout=TIMEOUT)
    assert queue.done()
    assert queue.statistics().queued == 0


def test_an_error_cancels_what_is_queued() -> None:
    queue = ClosureQueue(10)
    running, waiting = put(queue, 2)
    queue.take(1)
    fail(queue, running, ValueError("boo"))
    assert waiting.remote.status is ClosureStatus.CANCELLED
    with pytest.raises(errors.ClosureCancelledError, match="schedule it again"):
        waiting.remote.fetch()
    assert queue.statistics().cancelled == 1


def test_done_does_not_raise_while_another_closure_runs() -> None:
    queue = ClosureQueue(10)
    first, second = put(queue, 2)
    queue.take(2)
    fail(queue, first, ValueError("boo"))
    assert not queue.done()
    succeed(queue, second, 5)
    with pytest.raises(ValueError, match="boo"):
        queue.done()
    assert second.remote.fetch() == 5


def test_put_after_an_error_waits_for_running_closures_before_it_raises() -> None:
    queue = ClosureQueue(10)
    first, second = put(queue, 2)
    queue.take(2)
    fail(queue, first, ValueError("boo"))
    putting = in_thread(lambda: queue.put(closure(queue, 2)))
    wait_for_waiter(queue)
    assert not putting.done()
    succeed(queue, second)
    with pytest.raises(ValueError, match="boo"):
        putting.result(TIMEOUT)


def test_further_errors_hang_on_the_first() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 3)
    queue.take(3)
    for number, each in enumerate(closures):
        fail(queue, each, ValueError(f"number {number}"))
    with pytest.raises(ValueError, match="number 0") as raised:
        queue.join()
    assert [str(e) for e in raised.value.other_errors] == ["number 1", "number 2"]  # type: ignore[attr-defined]
    assert any("2 more closures failed" in note for note in raised.value.__notes__)


def test_an_error_that_fetch_has_raised_says_so_when_it_is_raised_again() -> None:
    queue = ClosureQueue(10)
    (bad,) = put(queue, 1)
    queue.take(1)
    fail(queue, bad, ValueError("boo"))
    with pytest.raises(ValueError, match="boo") as fetched:
        bad.remote.fetch()
    assert not hasattr(fetched.value, "__notes__")
    with pytest.raises(ValueError, match="boo") as raised:
        queue.join()
    assert re.fullmatch(
        r"this is the error that fetch\(\) raised at \d\d:\d\d:\d\d; "
        "nothing new has failed, and it is cleared now",
        raised.value.__notes__[0],
    )
    queue.join()


def test_an_error_that_is_raised_again_says_how_many_others_are_new() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 3)
    queue.take(3)
    for each in closures:
        fail(queue, each, ValueError("boo"))
    for each in closures[:2]:
        with pytest.raises(ValueError, match="boo"):
            each.remote.fetch()
    with pytest.raises(ValueError, match="boo") as raised:
        queue.join()
    assert "; 1 of the other errors are new, and" in raised.value.__notes__[0]


def test_closures_can_be_put_once_fetch_has_raised_all_errors() -> None:
    events = EventLog()
    queue = ClosureQueue(10, events=events)
    bad, running, *_ = put(queue, 5)
    queue.take(2)
    fail(queue, bad, ValueError("boo"))
    with pytest.raises(ValueError, match="boo"):
        bad.remote.fetch()
    putting = in_thread(lambda: queue.put(closure(queue, 5)))
    wait_for_waiter(queue)
    succeed(queue, running)
    putting.result(TIMEOUT)
    (good,) = queue.take(2)
    succeed(queue, good)
    queue.join()  # it is cleared
    (event,) = [each for each in events.all() if each.kind is EventKind.FAILURES_CLEARED]
    assert re.fullmatch(
        r"fetch\(\) has raised at \d\d:\d\d:\d\d why 1 closure failed; 3 queued ones were "
        "cancelled with it: schedule them again. From here on closures run as before",
        event.message,
    )


def test_an_error_that_fetch_has_not_raised_is_raised_to_who_puts_a_closure() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 2)
    queue.take(2)
    for each in closures:
        fail(queue, each, ValueError("boo"))
    with pytest.raises(ValueError, match="boo"):
        closures[0].remote.fetch()
    with pytest.raises(ValueError, match="boo"):
        queue.put(closure(queue, 2))


def test_fetching_several_raises_the_errors_of_all_that_have_failed() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 3)
    queue.take(3)
    for number, each in enumerate(closures):
        fail(queue, each, ValueError(f"number {number}"))
    with pytest.raises(ValueError, match="number 0") as raised:
        fetched({"all": [each.remote for each in closures]})
    assert [str(e) for e in raised.value.other_errors] == ["number 1", "number 2"]  # type: ignore[attr-defined]
    queue.put(closure(queue, 3))


def test_an_error_that_fetch_has_not_raised_says_nothing_of_it() -> None:
    queue = ClosureQueue(10)
    (bad,) = put(queue, 1)
    queue.take(1)
    fail(queue, bad, ValueError("boo"))
    with pytest.raises(ValueError, match="boo") as raised:
        queue.join()
    assert not hasattr(raised.value, "__notes__")


def test_each_closure_tells_its_own_outcome_after_join_has_raised() -> None:
    queue = ClosureQueue(10)
    good, bad = put(queue, 2)
    queue.take(2)
    succeed(queue, good, "fine")
    fail(queue, bad, ValueError("boo"))
    with pytest.raises(ValueError, match="boo"):
        queue.join()
    assert good.remote.fetch() == "fine"
    for _ in range(2):
        with pytest.raises(ValueError, match="boo"):
            bad.remote.fetch()


def test_closures_of_a_lost_worker_are_taken_again_first() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 4, retries=1)
    taken = queue.take(2)
    queue.put_back(taken, executing=1, lost="gone")
    assert queue.take(4) == closures
    assert queue.statistics().retried == 2


def test_only_closures_that_were_running_lose_a_retry() -> None:
    queue = ClosureQueue(10)
    first, second = put(queue, 2, retries=1)
    for _ in range(2):
        queue.put_back(queue.take(2), executing=1, lost="gone")
    assert first.remote.status is ClosureStatus.FAILED
    assert second.execution.deaths == 0


def test_a_closure_that_is_lost_too_often_fails_and_names_the_worker() -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1, retries=1)
    queue.put_back(queue.take(1), executing=1, lost="worker 'a'")
    queue.put_back(queue.take(1), executing=1, lost="worker 'b'")
    with pytest.raises(errors.WorkerLostError, match=r"2 times.*worker 'b'"):
        queue.join()
    with pytest.raises(errors.WorkerLostError):
        each.remote.fetch()


def test_put_back_may_exceed_the_size_without_blocking() -> None:
    queue = ClosureQueue(1)
    taken: list[Work] = []
    for number in range(3):
        queue.put(closure(queue, number, retries=5))
        taken += queue.take(1)
    queue.put_back(taken, executing=1, lost="gone")
    assert queue.statistics().queued == 3


def test_a_hungry_lane_is_woken_by_the_next_put_only() -> None:
    calls: list[int] = []
    queue = ClosureQueue(10)
    queue.attach(lambda: calls.append(1))
    put(queue, 1)
    put(queue, 1)
    assert len(calls) == 1
    queue.take(2)
    put(queue, 2)
    assert len(calls) == 2


def test_the_outcome_of_a_closure_that_runs_no_more_is_dropped() -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    queue.take(1)
    queue.close()
    succeed(queue, each)
    assert each.remote.status is ClosureStatus.CANCELLED
    assert queue.statistics().completed == 0


def test_close_cancels_what_waits_and_what_runs() -> None:
    queue = ClosureQueue(10)
    running, waiting = put(queue, 2)
    queue.take(1)
    queue.close()
    for each in (running, waiting):
        with pytest.raises(errors.ClosureCancelledError, match="closed"):
            each.remote.fetch()


def test_a_warning_says_how_many_closures_had_not_ended_at_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = ClosureQueue(10)
    put(queue, 3)
    queue.take(1)
    queue.close()
    assert caplog.messages == [
        "3 closures had not ended when the coordinator was closed, now cancelled: "
        "coordinator.join() waits for all"
    ]


def test_nothing_is_logged_at_close_when_all_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    queue = ClosureQueue(10)
    (each,) = put(queue, 1)
    queue.take(1)
    succeed(queue, each)
    queue.close()
    assert not caplog.messages


def test_closures_that_psnb_did_not_need_do_not_count_as_cancelled() -> None:
    queue = ClosureQueue(10)

    def anyone(worker: object) -> bool:
        return True

    put_one(queue, 0, pin=anyone)
    queue.withdraw(anyone, "the epoch is over")
    statistics = queue.statistics()
    assert (statistics.queued, statistics.cancelled) == (0, 0)


@pytest.mark.parametrize("call", ["join", "done", "put"])
def test_everything_is_refused_after_close(call: str) -> None:
    queue = ClosureQueue(10)
    queue.close()
    calls = {"join": queue.join, "done": queue.done, "put": lambda: queue.put(closure(queue))}
    with pytest.raises(errors.CoordinatorClosedError, match="closed"):
        calls[call]()


def test_close_ends_a_join_that_waits() -> None:
    queue = ClosureQueue(10)
    put(queue, 1)
    joining = in_thread(queue.join)
    wait_for_waiter(queue)
    queue.close()
    with pytest.raises(errors.CoordinatorClosedError):
        joining.result(TIMEOUT)


def test_close_ends_a_put_that_waits_for_room() -> None:
    queue = ClosureQueue(1)
    put(queue, 1)
    putting = in_thread(lambda: queue.put(closure(queue, 1)))
    wait_for_waiter(queue)
    queue.close()
    with pytest.raises(errors.CoordinatorClosedError):
        putting.result(TIMEOUT)


def test_a_queue_of_two_passes_thousands_of_closures_through_several_connections() -> None:
    work = threading.Semaphore(0)
    queue = ClosureQueue(2)
    queue.attach(work.release)
    ended = threading.Event()

    def connection() -> None:
        while not ended.is_set():
            taken = queue.take(3)
            queue.settle([done(each) for each in taken])
            if not taken:
                work.acquire(timeout=0.05)

    connections = [in_thread(connection) for _ in range(3)]
    closures = put(queue, 3000)
    queue.join(timeout=TIMEOUT)
    ended.set()
    for each in connections:
        each.result(TIMEOUT)
    assert all(each.remote.status is ClosureStatus.COMPLETED for each in closures)
    assert queue.statistics().completed == 3000


def test_what_a_worker_gives_back_runs_first_and_is_no_retry() -> None:
    queue = ClosureQueue(10)
    closures = put(queue, 4)
    taken = queue.take(3)
    queue.give_back(taken[1:])
    assert queue.statistics().retried == 0
    assert queue.take(4) == closures[1:]
    assert [each.execution.attempt for each in closures] == [1, 1, 1, 1]


def test_what_a_worker_gives_back_wakes_a_hungry_lane() -> None:
    woken = threading.Event()
    queue = ClosureQueue(10)
    queue.attach(woken.set)
    put(queue, 1)
    taken = queue.take(1)
    queue.take(1)
    queue.give_back(taken)
    assert woken.is_set()


def test_what_a_worker_gives_back_after_a_failure_is_cancelled() -> None:
    queue = ClosureQueue(10)
    failed, begun_never = put(queue, 2)
    queue.take(2)
    fail(queue, failed, ValueError("boo"))
    queue.give_back([begun_never])
    with pytest.raises(errors.ClosureCancelledError, match="before it was begun"):
        begun_never.remote.fetch()
    with pytest.raises(ValueError, match="boo"):
        queue.join(TIMEOUT)


def test_no_connection_is_woken_in_vain_when_nothing_waits() -> None:
    woken = threading.Event()
    queue = ClosureQueue(10)
    queue.attach(woken.set)
    assert not queue.has_work()
    put(queue, 1)
    assert woken.is_set()
    assert queue.has_work()


def test_a_fault_in_one_closure_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ClosureQueue(10)
    first, second = closure(queue, 0), closure(queue, 1)
    add = queue.scheduler._waiting.add

    def failing(each: Work) -> None:
        if each is first:
            raise RuntimeError("a fault")
        add(each)

    monkeypatch.setattr(queue.scheduler._waiting, "add", failing)
    one = queue.joined()

    def put_both() -> None:
        queue.put(first)
        queue.put(second)

    queue.loop.do(put_both)  # they are taken in together
    assert queue.sent(one) == [second]
