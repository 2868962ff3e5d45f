"""Long closures: a worker calls a function again and again, each time with a commit of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from psnb._src.client.requests import Request
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.closures.remote_value import ClosureStatus, StepValues
from psnb._src.coordinator.scheduling.events import Heard
from psnb._src.coordinator.scheduling.instructions import RecordStates
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.load import AHEAD_SECONDS, LONG_SECONDS, Load
from psnb._src.coordinator.scheduling.work import Numbers, Work
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.messages import EFFECTIVE, AskLease, ClosureResults, Taken
from psnb._src.protocol.packing import dumps
from psnb._src.server.commit_log import Commit, CommitRecord
from psnb._src.server.operations import FenceCommits
from psnb._src.utils.phases import PHASES
from psnb._src.worker.reports import ReportedStates, remembered
from tests.coordinator.queues import (
    NO_ARGUMENTS,
    ClosureQueue,
    call_with,
    done,
    fail,
    make_work,
    put_back,
    put_one,
    resolve,
    worker,
)
from tests.coordinator.test_load import closures

SHARD = ShardId("s", 0)


def put_run(queue: ClosureQueue, most: int = 10, number: int = 0) -> Work:
    run = make_work(queue, number, ScheduleOptions(steps=most))
    queue.put(run)
    return run


def taken_run(queue: ClosureQueue, steps: int, number: int = 0) -> Work:
    """Return a long closure that a worker has taken."""
    run = put_run(queue, steps, number)
    assert queue.take(1, steps=steps) == [run]
    return run


def run_like(closure: Work, most: int) -> Work:
    how = ScheduleOptions(steps=most)
    return Work(closure.id, closure.id, closure.function, NO_ARGUMENTS, how, closure.remote)


def advance(queue: ClosureQueue, run: Work, steps: int, *values: bytes) -> None:
    queue.settle([done(run, *values, steps=steps, ended=False)])


def end(queue: ClosureQueue, run: Work) -> None:
    queue.settle([done(run, steps=0)])


def test_a_run_has_as_many_steps_as_take_its_time() -> None:
    short, *_ = closures(1, LONG_SECONDS / 20)
    run = run_like(short, 256)
    assert Load().add(run)
    assert run.granted == 20
    few = run_like(short, 7)
    assert Load().add(few)
    assert few.granted == 7


def test_long_steps_come_in_runs_too_but_nothing_waits_behind_them() -> None:
    load = Load()
    run, other = (run_like(each, 256) for each in closures(2, 2 * AHEAD_SECONDS))
    assert load.add(run)
    assert run.granted == int(LONG_SECONDS / (2 * AHEAD_SECONDS)) == 2
    assert not load.add(other)


@pytest.mark.parametrize("seconds", [(), (LONG_SECONDS,)])
def test_a_run_of_unknown_or_very_long_steps_has_one(seconds: tuple[float, ...]) -> None:
    run = run_like(*closures(1, *seconds), 256)
    assert Load().add(run)
    assert run.granted == 1


def test_where_a_gate_decides_a_run_has_one_step() -> None:
    load, run = Load(), run_like(*closures(1, LONG_SECONDS / 20), 256)
    load.ahead = 0.0
    assert load.add(run)
    assert run.granted == 1


def test_another_run_is_sent_before_the_first_one_ends() -> None:
    load = Load()
    first, second, third = (run_like(each, 256) for each in closures(3, LONG_SECONDS / 20))
    assert [load.add(each) for each in (first, second, third)] == [True, True, False]
    load.advance(first.id, 20)
    load.remove(first.id)
    assert load.add(third)


def test_steps_count_as_they_are_done_and_the_run_ends_with_the_last() -> None:
    queue = ClosureQueue(10)
    run = taken_run(queue, 3, number=7)
    advance(queue, run, 2)
    assert (run.number, run.left, queue.statistics().completed) == (9, 1, 2)
    assert queue.settled() == (0, 2)
    advance(queue, run, 1)
    end(queue, run)
    assert queue.statistics().completed == 3
    assert run.remote.status is ClosureStatus.COMPLETED
    assert queue.settled() == (0, 3)


def test_numbers_go_on_behind_the_steps_of_a_run_that_waits_again() -> None:
    queue = ClosureQueue(10)
    run = taken_run(queue, 5)
    advance(queue, run, 2)
    queue.lose([run])
    queue.put_back([run], 1, "lost", "w")
    assert queue.statistics().next_number == run.id + 2


def test_a_run_that_ends_early_leaves_no_commit_open() -> None:
    queue = ClosureQueue(10)
    run, after = taken_run(queue, 5), taken_run(queue, 1, number=6)
    assert after.execution.commit == 5
    advance(queue, run, 2)
    end(queue, run)
    assert queue.settled() == (0, 5)


def test_a_step_that_fails_fails_its_run() -> None:
    queue = ClosureQueue(10)
    run = taken_run(queue, 5, number=3)
    advance(queue, run, 2)
    fail(queue, run, ValueError("boo"))
    assert str(run).endswith("#5")
    assert queue.statistics().completed == 2
    with pytest.raises(ValueError, match="boo"):
        queue.join(5)


def test_deaths_of_steps_count_in_a_row_only() -> None:
    queue = ClosureQueue(10)
    run = taken_run(queue, 5)
    for _ in range(3):
        advance(queue, run, 1)
        queue.lose([run])
        put_back(queue, run)
        assert run.execution.deaths == 1
        assert queue.take(1) == [run]


def test_other_closures_go_before_runs_of_their_priority() -> None:
    queue = ClosureQueue(10)
    chooser = ScheduleOptions(worker=lambda worker: True, steps=5)
    later = make_work(queue, 60, chooser)
    queue.put(later)
    first = put_one(queue, 70)
    assert queue.take(2, worker) == [first, later]


def test_a_closure_that_finds_no_room_ends_the_runs() -> None:
    queue = ClosureQueue(10)
    taken_run(queue, 5)
    put_run(queue, number=20)  # another run waits for this one
    assert not queue.recalled()
    put_one(queue, 50)
    assert queue.recalled() == [""]


def test_a_closure_that_finds_room_ends_no_run() -> None:
    queue = ClosureQueue(10)
    taken_run(queue, 5)
    idle = queue.joined("b", 1)
    each = put_one(queue, 50)
    assert queue.sent(idle) == [each]
    assert not queue.recalled()
    put_one(queue, 51)
    assert queue.recalled() == [""]  # there is no room any more


def test_a_closure_that_found_no_room_after_all_ends_the_runs() -> None:
    queue = ClosureQueue(10)
    taken_run(queue, 5)
    queue.attach(bool)  # a worker could do more, and then does not take it
    put_one(queue, 50)
    assert queue.recalled() == [""]


def test_closures_that_become_ready_and_find_no_room_end_the_runs() -> None:
    queue = ClosureQueue(20)
    queue.function.duration.add(1.0)
    full = queue.joined("b", 1)
    run, more = put_run(queue), put_run(queue, number=20)
    assert queue.sent(full) == [run]
    queue.cancel_one(more.remote)
    one = queue.joined("a")
    first = put_one(queue, 50)
    ready = [put_one(queue, each, call=call_with(queue, first.remote)) for each in (51, 52)]
    _, result = done(first, dumps(None, "value"))
    queue.heard(first, replace(result, seconds=1.0))
    assert queue.sent(one) == [first, ready[0]]
    assert queue.recalled() == ["b"]


def test_while_it_is_paused_no_closure_ends_runs() -> None:
    queue = ClosureQueue(10)
    taken_run(queue, 5)
    queue.attach(bool)
    queue.pause()
    before = queue.recalled()
    put_one(queue, 50)
    assert queue.recalled() == before


def test_a_closure_of_a_lower_priority_ends_no_run() -> None:
    queue = ClosureQueue(10)
    taken_run(queue, 5)
    for pin in (None, "b", 1):
        put_one(queue, 50, priority=-1, pin=pin)
    assert not queue.recalled()
    put_one(queue, 60, priority=1)
    assert queue.recalled() == [""]


@pytest.mark.parametrize(
    ("pin", "ended"), [("b", ["b"]), (0, ["a"]), (lambda worker: True, ["a", "b"]), ("c", [])]
)
def test_a_closure_for_one_worker_ends_the_runs_of_no_other(pin: Any, ended: list[str]) -> None:
    queue = ClosureQueue(10)
    for name, index in (("a", 0), ("b", 1)):
        put_run(queue, 5, number=10 * index)
        assert queue.take(1, partial(worker, name, index), steps=5)
    put_one(queue, 50, pin=pin)
    assert queue.recalled() == ended


def test_what_is_withdrawn_ends_with_the_steps_that_are_done() -> None:
    queue = ClosureQueue(10)

    def chooser(worker: object) -> bool:
        return True

    how = ScheduleOptions(worker=chooser, steps=5)
    runs = [make_work(queue, number, how) for number in (0, 10, 20, 30)]
    for run in runs:
        queue.put(run)
    assert queue.take(3, worker) == runs[:3]
    queue.withdraw(chooser, "enough")
    assert queue.recalled() == ["a"]
    end(queue, runs[0])  # its step was done
    queue.give_back([runs[1]])
    queue.lose([runs[2]])
    put_back(queue, runs[2])
    assert [run.remote.status for run in runs] == [
        ClosureStatus.COMPLETED,
        *[ClosureStatus.CANCELLED] * 3,
    ]
    assert queue.statistics().cancelled == 0
    queue.join(5)


def test_a_step_that_fails_when_its_run_was_withdrawn_is_an_error() -> None:
    queue = ClosureQueue(10)

    def chooser(worker: object) -> bool:
        return True

    how = ScheduleOptions(worker=chooser, steps=5)
    run = make_work(queue, 0, how)
    queue.put(run)
    queue.take(1, worker)
    queue.withdraw(chooser, "enough")
    fail(queue, run, ValueError("boo"))
    with pytest.raises(ValueError, match="boo"):
        queue.join(5)


def test_holding_dispatch_ends_the_runs() -> None:
    queue = ClosureQueue(10)
    taken_run(queue, 5)
    with queue.barrier():
        assert queue.recalled() == [""]


def test_a_worker_with_enough_to_do_is_full() -> None:
    load = Load()
    first, second = (run_like(each, 256) for each in closures(2, LONG_SECONDS / 20))
    assert not load.full()
    load.add(first)
    assert not load.full()
    load.add(second)
    assert load.full()
    assert load.refused
    load.remove(first.id)
    assert not load.full()


def test_numbers_come_in_rows() -> None:
    numbers = Numbers(5)
    assert [numbers.take(), numbers.take(3), numbers.take()] == [5, 6, 9]


def lost(queue: ClosureQueue, run: Work, *facts: CommitRecord) -> None:
    """Lose the worker of a run, of which servers know some commits."""
    found_out(queue, partial(queue.lose_worker, run), *facts)


def found_out(queue: ClosureQueue, doubt: Callable[[], object], *facts: CommitRecord) -> None:
    """Do what makes commits doubtful; servers know some."""

    class Strategy:
        shards = (SHARD,)

        async def ask(self, requests: Sequence[Request]) -> list[Any]:
            return [
                list(facts) if isinstance(each.operation, FenceCommits) else None
                for each in requests
            ]

    resolve(queue, Strategy(), doubt)


def applied(queue: ClosureQueue, number: int, outcome: bytes) -> CommitRecord:
    known = ((number, outcome),)
    commit = Commit(queue.name, number, shards=(SHARD,), closures=known, coordinator=queue.name)
    return CommitRecord(commit, applied=True)


def test_of_a_lost_run_the_steps_that_servers_have_are_done_and_the_rest_runs_again() -> None:
    leases, metrics = LeaseRegistry(), list[object]()
    queue = ClosureQueue(10, leases=leases)
    queue.on[RecordStates] = metrics.append
    epoch = leases.open(1)
    assert leases.lease("holder", AskLease(epoch, 0, None)) is not None
    run = taken_run(queue, 5)
    leases.take("holder", Taken(epoch, 0, EFFECTIVE, 0, 1, 1, False))
    leases.take("holder", Taken(epoch, 0, 1, 1, 1, 2, False))
    advance(queue, run, 1)
    reported = ReportedStates()
    reported.add_numbers({"loss": 1.0})
    facts = [
        applied(queue, number, remembered(used, reported.packed(), b""))
        for number in (1, 2)
        for used in ([Taken(epoch, 0, number, number, 1, number + 1, False)],)
    ]
    lost(queue, run, *facts)
    assert (run.execution.done, run.execution.commit, run.execution.attempt) == (3, 3, 2)
    assert len(metrics) == 2
    assert leases.progress(epoch).visits == 3
    assert leases.state(epoch)["ranges"] == [[0, 3, None]]
    assert queue.take(1) == [run]


def test_of_a_lost_run_steps_that_wrote_nothing_hide_no_later_ones_and_are_read_again() -> None:
    leases = LeaseRegistry()
    queue = ClosureQueue(10, leases=leases)
    epoch = leases.open(1)
    assert leases.lease("holder", AskLease(epoch, 0, None)) is not None
    run = taken_run(queue, 5)
    leases.take("holder", Taken(epoch, 0, 0, 0, 1, 1, False))  # step 0 had said what it takes
    used = [Taken(epoch, 0, 2, 2, 1, 3, False)]
    lost(queue, run, applied(queue, 2, remembered(used, b"", b"")))
    assert (run.execution.done, run.execution.commit, run.execution.attempt) == (3, 3, 2)
    assert leases.progress(epoch).visits == 1
    assert queue.statistics().completed == 1
    # What steps 0 and 1 took, and what is behind step 2.
    assert sorted(leases.state(epoch)["ranges"], key=str) == [[0, 1, 1], [0, 3, None], [0, None, 1]]


def test_steps_of_a_cancelled_run_that_wrote_nothing_have_used_nothing_however_late_they_end() -> (
    None
):
    leases = LeaseRegistry()
    queue = ClosureQueue(10, leases=leases)
    epoch = leases.open(1)
    run = taken_run(queue, 5)
    worker = queue.worker_of(run)
    assert leases.lease(worker, AskLease(epoch, 0, None)) is not None
    used = [Taken(epoch, 0, 1, 1, 1, 2, False)]
    cancelled = partial(queue.cancel_one, run.remote)
    found_out(queue, cancelled, applied(queue, 1, remembered(used, b"", b"")))
    assert run.remote.status is ClosureStatus.CANCELLED
    # Its worker has done steps 0 to 2, of which only step 1 wrote something.
    late = [
        Taken(epoch, 0, step, at, 1, at + 1, False) for step, at in ((0, 0), (EFFECTIVE, 1), (2, 2))
    ]
    result = done(run, steps=3)[1]
    message = ClosureResults(late, [], [0.0] * len(PHASES), [result])
    queue.handle(Heard(worker, message))
    assert leases.progress(epoch).visits == 1
    leases.lose(worker)
    ranges = leases.state(epoch)["ranges"]
    assert sorted(ranges, key=str) == [[0, 2, 1], [0, 3, None], [0, None, 1]]
    free = [leases.lease("other", AskLease(epoch, 9, None)) for _ in range(4)]
    assert [each is not None for each in free] == [True, True, True, False]  # all can be had


def test_what_steps_return_arrives_as_they_are_done_also_from_servers() -> None:
    queue = ClosureQueue(10)
    remote = StepValues(queue.inbox, lambda remote: False)
    run = make_work(queue, 0, ScheduleOptions(steps=5), remote=remote)
    run.granted = 5
    queue.put(run)
    assert queue.take(1) == [run]
    advance(queue, run, 2, dumps("first", "value"), b"")
    assert list(remote.take()) == ["first", None]
    reported = ReportedStates()
    reported.add_numbers({"loss": 1.0})
    said = remembered((), reported.packed(), dumps("third", "value"))
    lost(queue, run, applied(queue, 2, said))
    assert list(remote.take()) == ["third"]
    assert not remote.arrived


def test_a_lost_run_whose_steps_servers_all_have_has_ended() -> None:
    queue = ClosureQueue(10)
    run = taken_run(queue, 2)
    lost(queue, run, *(applied(queue, number, b"") for number in (0, 1)))
    assert run.remote.status is ClosureStatus.COMPLETED
    assert queue.statistics().completed == 2


def test_what_steps_have_taken_that_are_not_done_is_free_when_their_run_ends() -> None:
    leases = LeaseRegistry()
    queue = ClosureQueue(10, leases=leases)
    epoch = leases.open(1)
    assert leases.lease("holder", AskLease(epoch, 0, None)) is not None
    run = taken_run(queue, 5)
    for step in range(3):
        leases.take("holder", Taken(epoch, 0, step, step, 1, step + 1, False))
    advance(queue, run, 1)
    end(queue, run)
    leases.take("holder", Taken(epoch, 0, 3, 3, 1, 4, False))  # it comes late
    assert leases.progress(epoch).visits == 1
    leases.lose("holder")
    ranges = leases.state(epoch)["ranges"]
    assert sorted(ranges, key=str) == sorted(
        [[0, 1, 1], [0, 2, 1], [0, 3, 1], [0, 4, None]], key=str
    )
