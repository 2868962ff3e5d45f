"""Closures that were lost with their worker: nobody knows what they did before they run again."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb import errors
from psnb.coordinator import ClosureStatus
from psnb.coordinator.closure import Closure
from psnb.coordinator.flush_gate import FlushGate
from psnb.coordinator.gate import ApplyRound, Gate, Step
from psnb.coordinator.lease_desk import LeaseDesk
from psnb.coordinator.queue import ClosureQueue
from psnb.coordinator.round_gate import RoundGate
from psnb.coordinator.staleness_gate import StalenessGate
from tests.coordinator.queues import (
    TIMEOUT,
    call_with,
    closure,
    fail,
    in_thread,
    numbers,
    put,
    put_one,
    succeed,
    up_to,
    wait_for_waiter,
    worker,
)


def lose(queue: ClosureQueue, *closures: Closure) -> None:
    queue.put_back(closures, executing=1, lost="worker 'a' was killed")


def failing(
    gate: Gate | None = None, steps: list[Step] | None = None
) -> tuple[ClosureQueue, Closure]:
    """Return a queue in which one closure has failed, and one that was lost before."""
    note = (lambda step: None) if steps is None else steps.append
    queue = ClosureQueue(10, gate=gate, on_step=note)
    failed, lost = put(queue, 2, retries=1)
    queue.take(up_to(2))
    lose(queue, lost)
    fail(queue, failed, ValueError("boo"))
    return queue, lost


def test_a_lost_closure_runs_again_to_its_end_before_the_error_of_another_is_raised() -> None:
    queue, lost = failing()
    assert not queue.done()
    assert queue.take(up_to(9)) == [lost]
    succeed(queue, lost, 5)
    with pytest.raises(ValueError, match="boo"):
        queue.done()
    assert lost.remote.fetch() == 5


def test_so_does_one_that_is_lost_after_the_other_has_failed() -> None:
    queue = ClosureQueue(10)
    failed, lost = put(queue, 2, retries=1)
    queue.take(up_to(2))
    fail(queue, failed, ValueError("boo"))
    lose(queue, lost)
    assert queue.has_work()
    assert queue.take(up_to(9)) == [lost]


def test_so_does_one_that_a_second_worker_gives_back_unbegun() -> None:
    queue, lost = failing()
    queue.take(up_to(1))
    queue.give_back([lost])
    assert queue.take(up_to(9)) == [lost]


def test_so_does_one_whose_result_may_have_been_on_its_way() -> None:
    queue = ClosureQueue(10)
    _, ended, failed = put(queue, 3, retries=1)
    running = queue.take(up_to(3))
    queue.put_back(running[:2], executing=1, lost="killed")  # results leave a worker in batches
    fail(queue, failed, ValueError("boo"))
    assert ended.run.attempt == 2
    assert queue.take(up_to(9)) == running[:2]


def test_what_was_never_given_to_a_worker_is_cancelled_beside_it() -> None:
    queue = ClosureQueue(10)
    lost, failed = (put_one(queue, number, priority=number) for number in range(2))
    queue.take(up_to(2))
    fresh = [put_one(queue, number, priority=number - 2) for number in (2, 3)]
    lose(queue, lost)
    fail(queue, failed, ValueError("boo"))
    assert {each.remote.status for each in fresh} == {ClosureStatus.CANCELLED}
    assert queue.statistics().queued == 1


def test_lost_closures_keep_their_order_when_others_are_cancelled() -> None:
    queue = ClosureQueue(20)
    closures = [put_one(queue, number, priority=number % 2) for number in range(6)]
    pinned = put_one(queue, 7, pin="a", priority=1)
    taken = queue.take(up_to(9), worker)
    assert len(taken) == 7
    queue.put_back(taken, executing=1, lost="killed")
    for number in (8, 9):
        put_one(queue, number, priority=number % 2)
        put_one(queue, number + 10, pin="a")
    assert queue.cancel_queued() == 4
    assert numbers(queue.take(up_to(9), worker)) == [1, 3, 5, 7, 0, 2, 4]
    assert pinned in taken
    assert queue.take(up_to(9), worker) == []
    assert closures[0].run.attempt == 2


def test_what_waits_for_the_result_of_a_lost_closure_is_cancelled() -> None:
    queue = ClosureQueue(10)
    failed, lost = put(queue, 2, retries=1)
    dependent = put_one(queue, 2, call=call_with(queue, lost.remote))
    queue.take(up_to(2))
    lose(queue, lost)
    fail(queue, failed, ValueError("boo"))
    assert dependent.remote.status is ClosureStatus.CANCELLED


def test_what_is_withdrawn_may_leave_a_lost_closure_to_run_again() -> None:
    queue = ClosureQueue(10)

    def anyone(worker: object) -> bool:
        return True

    lost, fresh = (put_one(queue, number, pin=anyone) for number in range(2))
    queue.take(up_to(1), worker)
    lose(queue, lost)
    queue.withdraw(anyone, "the epoch is over", lost=False)
    assert fresh.remote.status is ClosureStatus.CANCELLED
    assert queue.take(up_to(9), worker) == [lost]


def test_an_error_waits_for_no_worker_that_does_not_come_back() -> None:
    queue = ClosureQueue(10)
    pins = ("a", "b", 7)
    here, elsewhere, gone = (put_one(queue, number, pin=pins[number]) for number in range(3))
    failed = put_one(queue, 3)
    queue.take(up_to(9), worker)
    queue.take(up_to(9), lambda: worker("b", 7))
    for each in (here, elsewhere, gone):
        lose(queue, each)
    fail(queue, failed, ValueError("boo"))
    queue.fail_stranded({"a", 0}, "its worker has not come back")
    assert here.remote.status is ClosureStatus.QUEUED
    for each in (elsewhere, gone):
        with pytest.raises(errors.WorkerLostError, match="has not come back"):
            each.remote.fetch(TIMEOUT)


def test_put_waits_for_a_lost_closure_before_it_raises() -> None:
    queue, lost = failing()
    putting = in_thread(lambda: queue.put(closure(queue, 2)))
    wait_for_waiter(queue.settled)
    queue.take(up_to(1))
    assert not putting.done()
    succeed(queue, lost)
    with pytest.raises(ValueError, match="boo"):
        putting.result(TIMEOUT)


def test_who_waits_to_raise_goes_on_when_another_has_raised() -> None:
    queue, lost = failing()
    second = closure(queue, 2)
    putting = in_thread(lambda: queue.put(second))
    wait_for_waiter(queue.settled)
    with queue.settled:  # as a thread does that comes first: it goes on with the queue at once
        with pytest.raises(ValueError, match="boo"):
            queue._errors.throw()
        queue.settled.notify_all()
    putting.result(TIMEOUT)
    assert lost.remote.status is ClosureStatus.QUEUED
    assert second.remote.status is ClosureStatus.QUEUED


def test_emptying_the_queue_leaves_a_lost_closure() -> None:
    queue = ClosureQueue(10)
    lost, *_ = put(queue, 3, retries=1)
    queue.take(up_to(1))
    lose(queue, lost)
    assert queue.cancel_queued() == 2
    assert queue.take(up_to(9)) == [lost]


def test_closing_cancels_a_lost_closure() -> None:
    queue, lost = failing()
    queue.close()
    assert lost.remote.status is ClosureStatus.CANCELLED


def test_a_lost_closure_fails_when_no_worker_comes() -> None:
    queue, lost = failing()
    queue.fail_waiting("nobody is there")
    assert lost.remote.status is ClosureStatus.FAILED
    with pytest.raises(ValueError, match="boo") as raised:
        queue.done()
    (other,) = raised.value.other_errors  # type: ignore[attr-defined]
    assert isinstance(other, errors.WorkerLostError)


def test_a_lost_closure_fails_when_it_is_lost_too_often() -> None:
    queue, lost = failing()
    lose(queue, *queue.take(up_to(1)))
    assert lost.remote.status is ClosureStatus.FAILED
    with pytest.raises(ValueError, match="boo"):
        queue.done()


def test_a_lost_closure_waits_while_the_queue_is_paused() -> None:
    queue, lost = failing()
    queue.pause()
    assert queue.take(up_to(9)) == []
    queue.wait_until_nothing_runs(0)
    assert not queue.done()
    queue.resume()
    assert queue.take(up_to(9)) == [lost]


@pytest.mark.parametrize(
    "gate", [RoundGate(2), RoundGate(3), StalenessGate(1), StalenessGate(5), FlushGate()]
)
def test_no_update_mode_holds_a_lost_closure_up(gate: Gate) -> None:
    steps: list[Step] = []
    queue, lost = failing(gate, steps)
    assert queue.has_work()
    assert queue.take(up_to(9)) == [lost]
    succeed(queue, lost, pushed=True)
    if not isinstance(gate, StalenessGate):
        assert not queue.done()  # what was pushed is to be applied first
        assert len(steps) == 1
        queue.stepped(None)
    with pytest.raises(ValueError, match="boo"):
        queue.done()


def test_a_lost_closure_without_a_seat_runs_in_a_round_of_its_own() -> None:
    steps: list[Step] = []
    queue = ClosureQueue(10, gate=RoundGate(1), on_step=steps.append)
    (lost,) = put(queue, 1, retries=1)
    queue.take(up_to(1))
    urgent = put_one(queue, 1, priority=1)
    lose(queue, lost)
    assert queue.take(up_to(9)) == [urgent]
    fail(queue, urgent, ValueError("boo"))
    assert queue.take(up_to(9)) == [lost]
    succeed(queue, lost, pushed=True)
    assert steps == [ApplyRound(1, (lost.run.commit,))]


class _World:
    """A dataset's splits, workers that read them, and a server that counts visits, by chance."""

    def __init__(self, seed: int, sizes: list[int]) -> None:
        self.chance = random.Random(seed)
        self.sizes, self.visits = sizes, [[0] * size for size in sizes]
        self.committed: set[int] = set()
        self.desk = LeaseDesk()
        self.queue = ClosureQueue(100, on_end=self.desk.end)
        self.epoch = self.desk.open(len(sizes))
        self.lives = 0
        self.put = 0
        self.workers = [_Worker(self) for _ in range(3)]

    def step(self) -> None:
        worker = self.chance.choice(self.workers)
        action = self.chance.choice(
            ["put", "take", "work", "work", "answer", "fail", "die", "cancel"]
        )
        if action == "put" and not self.queue.failing():
            self.queue.put(closure(self.queue, self.put, retries=10_000))
            self.put += 1
        elif action == "cancel" and self.chance.random() < 0.1:
            self.queue.cancel_queued()
        elif action in ("take", "work", "answer", "fail", "die"):
            getattr(worker, action)()
        with contextlib.suppress(ValueError):
            self.queue.done()

    def commit(self, closure: Closure, used: list[tuple[int, int]]) -> None:
        if closure.run.commit not in self.committed:
            self.committed.add(closure.run.commit)
            for split, position in used:
                self.visits[split][position] += 1


class _Worker:
    def __init__(self, world: _World) -> None:
        self.world = world
        self.live()

    def live(self) -> None:
        self.world.lives += 1
        self.name = f"life {self.world.lives}"
        self.lease: tuple[int, int, int, int] | None = None  # number, split, from, to
        self.begun: list[Closure] = []
        self.ended: list[Closure] = []  # and the coordinator has not heard of it

    def take(self) -> None:
        self.begun += self.world.queue.take(up_to(self.world.chance.randint(1, 2)))

    def work(self) -> None:
        if not self.begun:
            return
        world, each = self.world, self.begun.pop(0)
        used = [
            (split, position)
            for _, split, state, count in world.desk.portions(each.id)
            for position in range(state or 0, (state or 0) + (count or 0))
        ]
        used = used or self.read(each.id)
        if used:  # else it has nothing to write
            world.commit(each, used)
        self.ended.append(each)

    def read(self, closure: int) -> list[tuple[int, int]]:
        world = self.world
        if self.lease is None:
            found = world.desk.answer(self.name, ("lease", world.epoch))
            if found is None:
                return []
            number, split, state, count, _ = found
            first = state or 0
            self.lease = number, split, first, first + count if count else world.sizes[split]
        number, split, first, end = self.lease
        last = min(end, first + world.chance.randint(1, 3))
        self.lease = (number, split, last, end) if last < end else None
        question = ("take", world.epoch, number, closure, last - first, first, last, last == end)
        assert world.desk.answer(self.name, question)
        return [(split, position) for position in range(first, last)]

    def answer(self) -> None:
        for each in self.ended:
            succeed(self.world.queue, each)
        self.ended = []

    def fail(self) -> None:
        # One that had its effect before would be beyond remedy: it may have been used, it says.
        if self.begun and not self.begun[0].run.lost:
            self.read(self.begun[0].id)
            fail(self.world.queue, self.begun.pop(0), ValueError("boo"))

    def die(self) -> None:
        if self.world.chance.random() < 0.3:
            self.world.desk.lose(self.name)
            lose(self.world.queue, *self.ended, *self.begun)
            self.live()


@given(st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_leased_examples_are_used_once_whatever_fails_and_whoever_dies(
    seed: int, sizes: list[int]
) -> None:
    world = _World(seed, sizes)
    for _ in range(20_000):
        if world.desk.progress(world.epoch).over:
            break
        world.step()
    else:
        pytest.fail("the epoch does not end")
    assert world.visits == [[1] * size for size in sizes]
