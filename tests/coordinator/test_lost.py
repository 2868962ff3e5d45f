"""Closures that were lost with their worker: open until it is known what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb import errors
from psnb._src.coordinator.closures.awaiting import join
from psnb._src.coordinator.closures.closure import Closure
from psnb._src.coordinator.closures.status import ClosureStatus
from psnb._src.coordinator.datasets.lease_registry import LeaseRegistry
from psnb._src.coordinator.queue.flush_gate import FlushGate
from psnb._src.coordinator.queue.gate import ApplyRound, Gate, Step
from psnb._src.coordinator.queue.queue import ClosureQueue
from psnb._src.coordinator.queue.round_gate import RoundGate
from psnb._src.coordinator.queue.staleness_gate import StalenessGate
from psnb._src.runtime.session_messages import TakeElements
from psnb._src.server.commit_log import ENDED
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

SILENT = errors.ServerSilentError("server-0 says nothing")
GATES = pytest.mark.parametrize(
    "make",
    [Gate, lambda: RoundGate(2), lambda: RoundGate(3), lambda: StalenessGate(5), FlushGate],
)


def put_back(queue: ClosureQueue, *closures: Closure) -> None:
    queue.put_back(closures, executing=1, lost="worker 'a' was killed")


def opened(count: int = 1, gate: Gate | None = None) -> tuple[ClosureQueue, list[Closure]]:
    """Return a queue, and closures that were lost and of which nobody knows what became."""
    queue = ClosureQueue(10, gate=gate)
    put(queue, count, retries=1)
    lost = queue.take(up_to(count))
    assert queue.lose(lost) == lost
    return queue, lost


def test_one_that_is_open_counts_as_in_flight() -> None:
    queue, _ = opened()
    assert queue.statistics().in_flight == 1
    assert not queue.done()
    with pytest.raises(TimeoutError, match="1 in flight"):
        queue.join(0)
    with pytest.raises(TimeoutError, match="1 closures are in flight"):
        queue.wait_until_nothing_runs(0)


def test_one_that_has_had_its_effect_has_completed() -> None:
    queue, (lost,) = opened()
    succeed(queue, lost, 5)
    assert queue.done()
    assert lost.remote.fetch() == 5
    assert queue.statistics().retried == 0


def test_one_that_has_not_runs_again_first() -> None:
    queue, lost = opened(2)
    put_one(queue, 9)
    put_back(queue, *lost)
    assert queue.take(up_to(9))[:2] == lost
    assert [each.execution.attempt for each in lost] == [2, 2]
    assert queue.statistics().retried == 2


def test_one_that_is_lost_too_often_fails() -> None:
    queue, (lost,) = opened()
    put_back(queue, lost)
    queue.lose(queue.take(up_to(1)))
    put_back(queue, lost)
    with pytest.raises(errors.WorkerLostError, match="2 times in a row"):
        lost.remote.fetch()


def test_only_what_runs_can_be_lost() -> None:
    queue = ClosureQueue(10)
    (waits,) = put(queue, 1)
    assert queue.lose([waits]) == []
    assert waits.remote.status is ClosureStatus.QUEUED


def test_an_error_is_raised_once_it_is_known_what_became_of_the_others() -> None:
    queue, (lost,) = opened()
    failed = put_one(queue, 1)
    queue.take(up_to(1))
    fail(queue, failed, ValueError("boo"))
    assert not queue.done()
    succeed(queue, lost)
    with pytest.raises(ValueError, match="boo"):
        queue.done()


def test_one_that_is_to_run_again_while_another_has_failed_is_cancelled_like_all_that_waits() -> (
    None
):
    queue, (lost,) = opened()
    failed = put_one(queue, 1)
    queue.take(up_to(1))
    fail(queue, failed, ValueError("boo"))
    put_back(queue, lost)
    assert lost.remote.status is ClosureStatus.CANCELLED
    with pytest.raises(ValueError, match="boo"):
        queue.done()


def test_one_that_waits_to_run_again_is_like_any_other() -> None:
    queue, lost = opened(3)
    put_back(queue, *lost)
    assert queue.cancel_queued() == 3
    assert queue.done()


def test_emptying_the_queue_leaves_what_is_open() -> None:
    queue, (lost,) = opened()
    put(queue, 2)
    assert queue.cancel_queued() == 2
    assert lost.remote.status is ClosureStatus.RUNNING


def test_what_waits_for_the_result_of_an_open_one_waits() -> None:
    queue, (lost,) = opened()
    dependent = put_one(queue, 2, call=call_with(queue, lost.remote))
    put_back(queue, lost)
    queue.take(up_to(1))
    succeed(queue, lost, 3)
    assert queue.take(up_to(9)) == [dependent]


def test_put_waits_for_an_open_one_before_it_raises() -> None:
    queue, (lost,) = opened()
    failed = put_one(queue, 1)
    queue.take(up_to(1))
    fail(queue, failed, ValueError("boo"))
    putting = in_thread(lambda: queue.put(closure(queue, 2)))
    wait_for_waiter(queue.settled)
    assert not putting.done()
    succeed(queue, lost)
    with pytest.raises(ValueError, match="boo"):
        putting.result(TIMEOUT)


def test_who_waits_to_raise_goes_on_when_another_has_raised() -> None:
    queue, _ = opened()
    failed = put_one(queue, 1)
    queue.take(up_to(1))
    fail(queue, failed, ValueError("boo"))
    second = closure(queue, 2)
    putting = in_thread(lambda: queue.put(second))
    wait_for_waiter(queue.settled)
    with queue.settled:  # as a thread does that comes first: it goes on with the queue at once
        with pytest.raises(ValueError, match="boo"):
            queue._closures.errors.throw()
        queue.settled.notify_all()
    putting.result(TIMEOUT)
    assert second.remote.status is ClosureStatus.QUEUED


def test_closing_cancels_what_is_open() -> None:
    queue, (lost,) = opened()
    queue.close()
    assert lost.remote.status is ClosureStatus.CANCELLED
    succeed(queue, lost)  # comes too late
    assert queue.lose([lost]) == []
    queue.hold_up(SILENT)
    assert lost.remote.status is ClosureStatus.CANCELLED


def test_one_that_is_to_run_again_waits_while_the_queue_is_paused() -> None:
    queue, (lost,) = opened()
    queue.pause()
    put_back(queue, lost)
    assert queue.take(up_to(9)) == []
    queue.wait_until_nothing_runs(0)
    queue.resume()
    assert queue.take(up_to(9)) == [lost]


# A server says nothing.


def test_who_waits_hears_of_a_server_that_holds_an_open_one_up() -> None:
    queue, (lost,) = opened()
    joining = in_thread(queue.join)
    wait_for_waiter(queue.settled)
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError, match="server-0"):
        joining.result(TIMEOUT)
    assert lost.remote.status is ClosureStatus.RUNNING
    assert queue.statistics().in_flight == 1


def test_so_does_who_asks_whether_all_is_done_and_who_awaits_it() -> None:
    queue, _ = opened()
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError):
        queue.done()
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError):
        asyncio.run(join(queue, TIMEOUT))


def test_so_does_who_fetches_it_as_often_as_he_likes_until_it_is_known() -> None:
    queue, (lost,) = opened()
    fetching = in_thread(lost.remote.fetch)
    wait_for_waiter(queue.settled)
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError, match="server-0"):
        fetching.result(TIMEOUT)
    with pytest.raises(errors.ServerSilentError, match="server-0"):
        asyncio.run(_awaited(lost))
    put_back(queue, lost)
    with pytest.raises(TimeoutError):
        lost.remote.fetch(0)


async def _awaited(each: Closure) -> object:
    return await each.remote


def test_what_is_held_up_ends_as_soon_as_it_can() -> None:
    queue, (lost,) = opened()
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError):
        queue.done()
    assert not queue.done()  # it was told, and nothing is known yet
    succeed(queue, lost, 7)
    assert queue.done()
    assert lost.remote.fetch() == 7


def test_what_runs_is_waited_for_before_it_is_told() -> None:
    queue, _ = opened()
    running = put_one(queue, 5)
    queue.take(up_to(1))
    queue.hold_up(SILENT)
    assert not queue.done()
    succeed(queue, running)
    with pytest.raises(errors.ServerSilentError):
        queue.done()


def test_what_waits_goes_on_before_it_is_told() -> None:
    queue, _ = opened()
    queue.hold_up(SILENT)
    queued = put_one(queue, 5)
    assert not queue.done()
    assert queue.take(up_to(1)) == [queued]
    succeed(queue, queued)
    with pytest.raises(errors.ServerSilentError):
        queue.done()


def test_what_cannot_go_on_does_not_keep_it_from_being_told() -> None:
    queue, _ = opened(gate=RoundGate(1))
    put_one(queue, 5)
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError):
        queue.done()
    queue, _ = opened()
    put_one(queue, 5)
    queue.pause()
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError):
        queue.done()


def test_it_is_told_once_though_it_comes_again_and_again() -> None:
    queue, _ = opened()
    for _ in range(3):
        queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError, match="1 closures wait for what it says"):
        queue.done()
    assert not queue.done()


def test_an_error_of_another_closure_comes_first() -> None:
    queue, _ = opened()
    failed = put_one(queue, 5)
    queue.take(up_to(1))
    fail(queue, failed, ValueError("boo"))
    assert not queue.done()
    queue.hold_up(SILENT)
    with pytest.raises(ValueError, match="boo"):
        queue.done()
    with pytest.raises(errors.ServerSilentError):
        queue.done()


def test_what_is_not_held_up_any_more_is_not_told() -> None:
    queue, (lost,) = opened()
    queue.hold_up(SILENT)
    put_back(queue, lost)
    assert queue.take(up_to(1)) == [lost]
    assert not queue.done()
    succeed(queue, lost)
    assert queue.done()


def test_draining_tells_it_and_takes_nothing_away() -> None:
    queue, (lost,) = opened()
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError, match="server-0"):
        queue.wait_until_nothing_runs(TIMEOUT)
    succeed(queue, lost)
    queue.wait_until_nothing_runs(TIMEOUT)


def test_so_does_a_round_that_a_server_has_not_applied() -> None:
    queue = ClosureQueue(10, gate=RoundGate(1))
    (each,) = put(queue, 1)
    queue.take(up_to(1))
    succeed(queue, each, pushed=True)
    queue.hold_up(SILENT)
    with pytest.raises(errors.ServerSilentError):
        queue.join(TIMEOUT)
    queue.stepped(None)
    assert queue.done()


# Update modes.


@GATES
def test_an_open_one_that_has_had_its_effect_has_it_in_every_mode(make: type[Gate]) -> None:
    steps: list[Step] = []
    gate = make()
    queue = ClosureQueue(10, gate=gate)
    queue.attach(on_step=steps.append)
    (lost,) = put(queue, 1)
    queue.take(up_to(1))
    queue.lose([lost])
    assert not queue.done()
    assert not steps
    succeed(queue, lost, pushed=True)
    if isinstance(gate, RoundGate | FlushGate):
        assert not queue.done()  # what was pushed is to be applied first
        assert len(steps) == 1
        queue.stepped(None)
    assert queue.done()


def test_a_round_waits_for_an_open_one() -> None:
    steps: list[Step] = []
    queue = ClosureQueue(10, gate=RoundGate(2))
    queue.attach(on_step=steps.append)
    lost, other = put(queue, 2, retries=1)
    queue.take(up_to(9))
    queue.lose([lost])
    succeed(queue, other, pushed=True)
    assert not steps
    succeed(queue, lost, pushed=True)
    assert steps == [ApplyRound(0, (lost.execution.commit, other.execution.commit))]


def test_one_that_runs_again_takes_its_seat_again() -> None:
    steps: list[Step] = []
    queue = ClosureQueue(10, gate=RoundGate(2))
    queue.attach(on_step=steps.append)
    lost, other, _ = put(queue, 3, retries=1)
    queue.take(up_to(9))
    queue.lose([lost])
    put_back(queue, lost)
    assert queue.take(up_to(9)) == [lost]
    for each in (other, lost):
        succeed(queue, each, pushed=True)
    assert steps == [ApplyRound(0, (lost.execution.commit, other.execution.commit))]


def test_one_whose_seat_was_taken_runs_in_a_later_round() -> None:
    steps: list[Step] = []
    queue = ClosureQueue(10, gate=RoundGate(1))
    queue.attach(on_step=steps.append)
    (lost,) = put(queue, 1, retries=1)
    queue.take(up_to(1))
    urgent = put_one(queue, 1, priority=1)
    queue.lose([lost])
    put_back(queue, lost)
    assert queue.take(up_to(9)) == [urgent]
    succeed(queue, urgent, pushed=True)
    queue.stepped(None)
    assert queue.take(up_to(9)) == [lost]
    succeed(queue, lost, pushed=True)
    assert steps[-1] == ApplyRound(1, (lost.execution.commit,))


# What servers that are new must know.


def test_all_attempts_that_were_begun_are_closed_to_new_servers() -> None:
    queue = ClosureQueue(10)
    first, again, done, _ = put(queue, 4, retries=1)
    queue.take(up_to(3))
    succeed(queue, first)
    succeed(queue, done)
    queue.lose([again])
    assert queue.closed_attempts() == (1, {1: 1, 2: ENDED})
    put_back(queue, again)
    assert queue.closed_attempts() == (1, {1: 1, 2: ENDED})
    assert numbers(queue.take(up_to(1))) == [1]


def test_withdrawing_cancels_also_what_waits_to_run_again() -> None:
    queue = ClosureQueue(10)

    def anyone(worker: object) -> bool:
        return True

    lost, fresh = (put_one(queue, number, pin=anyone) for number in range(2))
    queue.take(up_to(1), worker)
    queue.lose([lost])
    put_back(queue, lost)
    queue.withdraw(anyone, "the epoch is over")
    assert {each.remote.status for each in (lost, fresh)} == {ClosureStatus.CANCELLED}


class _World:
    """A dataset's splits, workers that read them, and a server that counts visits, by chance."""

    def __init__(self, seed: int, sizes: list[int]) -> None:
        self.chance = random.Random(seed)
        self.sizes, self.visits = sizes, [[0] * size for size in sizes]
        self.committed: set[int] = set()
        self.leases = LeaseRegistry()
        self.queue = ClosureQueue(100, on_end=self.leases.end)
        self.epoch = self.leases.open(len(sizes))
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
        assert closure.execution.commit not in self.committed
        self.committed.add(closure.execution.commit)
        for split, position in used:
            self.visits[split][position] += 1

    def lose(self, closures: list[Closure]) -> None:
        """Find out what became of closures whose worker was lost."""
        again = []
        for each in self.queue.lose(closures):
            if each.execution.commit in self.committed:
                succeed(self.queue, each)
            else:
                again.append(each)
        put_back(self.queue, *again)


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
            (portion.split, position)
            for portion in world.leases.portions(each.id)
            for position in range(portion.state or 0, (portion.state or 0) + portion.count)
        ]
        used = used or self.read(each.id)
        if used:  # else it has nothing to write
            world.commit(each, used)
        self.ended.append(each)

    def read(self, closure: int) -> list[tuple[int, int]]:
        world = self.world
        if self.lease is None:
            found = world.leases.lease(self.name, world.epoch)
            if found is None:
                return []
            first = found.state or 0
            end = first + found.count if found.count else world.sizes[found.split]
            self.lease = found.number, found.split, first, end
        number, split, first, end = self.lease
        last = min(end, first + world.chance.randint(1, 3))
        self.lease = (number, split, last, end) if last < end else None
        count, ended = last - first, last == end
        taken = TakeElements(world.epoch, number, closure, count, first, last, ended)
        assert world.leases.take(self.name, taken)
        return [(split, position) for position in range(first, last)]

    def answer(self) -> None:
        for each in self.ended:
            succeed(self.world.queue, each)
        self.ended = []

    def fail(self) -> None:
        if self.begun:
            self.read(self.begun[0].id)
            fail(self.world.queue, self.begun.pop(0), ValueError("boo"))

    def die(self) -> None:
        if self.world.chance.random() < 0.3:
            self.world.leases.lose(self.name)
            self.world.lose([*self.ended, *self.begun])
            self.live()


@given(st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_leased_examples_are_used_once_whatever_fails_and_whoever_dies(
    seed: int, sizes: list[int]
) -> None:
    world = _World(seed, sizes)
    for _ in range(20_000):
        if world.leases.progress(world.epoch).over:
            break
        world.step()
    else:
        pytest.fail("the epoch does not end")
    assert world.visits == [[1] * size for size in sizes]
