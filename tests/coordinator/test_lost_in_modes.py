"""Closures that were lost, in each mode: rounds wait for them, and attempts are closed."""

from __future__ import annotations

import pytest

from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.gates import (
    ApplyRound,
    FlushGate,
    Gate,
    RoundGate,
    StalenessGate,
    Step,
)
from tests.coordinator.queues import (
    ClosureQueue,
    commit_of,
    numbers,
    put,
    put_back,
    put_one,
    succeed,
    worker,
)

GATES = pytest.mark.parametrize(
    "make",
    [Gate, lambda: RoundGate(2), lambda: RoundGate(3), lambda: StalenessGate(5), FlushGate],
)


@GATES
def test_an_open_one_that_has_had_its_effect_has_it_in_every_mode(make: type[Gate]) -> None:
    steps: list[Step] = []
    gate = make()
    queue = ClosureQueue(10, gate=gate)
    queue.attach(on_step=steps.append)
    (lost,) = put(queue, 1)
    queue.take(1)
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
    queue.take(9)
    queue.lose([lost])
    succeed(queue, other, pushed=True)
    assert not steps
    succeed(queue, lost, pushed=True)
    assert steps == [ApplyRound(0, (commit_of(lost), commit_of(other)))]


def test_one_that_runs_again_takes_its_seat_again() -> None:
    steps: list[Step] = []
    queue = ClosureQueue(10, gate=RoundGate(2))
    queue.attach(on_step=steps.append)
    lost, other, _ = put(queue, 3, retries=1)
    queue.take(9)
    queue.lose([lost])
    put_back(queue, lost)
    assert queue.take(9) == [lost]
    for each in (other, lost):
        succeed(queue, each, pushed=True)
    assert steps == [ApplyRound(0, (commit_of(lost), commit_of(other)))]


def test_one_whose_seat_was_taken_runs_in_a_later_round() -> None:
    steps: list[Step] = []
    queue = ClosureQueue(10, gate=RoundGate(1))
    queue.attach(on_step=steps.append)
    (lost,) = put(queue, 1, retries=1)
    queue.take(1)
    urgent = put_one(queue, 1, priority=1)
    queue.lose([lost])
    put_back(queue, lost)
    assert queue.take(9) == [urgent]
    succeed(queue, urgent, pushed=True)
    queue.stepped(None)
    assert queue.take(9) == [lost]
    succeed(queue, lost, pushed=True)
    assert steps[-1] == ApplyRound(1, (commit_of(lost),))


# What servers that are new must know.


def test_all_attempts_that_were_begun_are_closed_to_new_servers() -> None:
    queue = ClosureQueue(10)
    first, again, done, _ = put(queue, 4, retries=1)
    queue.take(3)
    succeed(queue, first)
    succeed(queue, done)
    queue.lose([again])
    assert queue.closed_attempts() == ((0, 1, 2, 3), {1: 1})
    put_back(queue, again)
    assert queue.closed_attempts() == ((0, 1, 2, 3), {1: 1})
    assert numbers(queue.take(1)) == [1]


def test_withdrawing_cancels_also_what_waits_to_run_again() -> None:
    queue = ClosureQueue(10)

    def anyone(worker: object) -> bool:
        return True

    lost, fresh = (put_one(queue, number, pin=anyone) for number in range(2))
    queue.take(1, worker)
    queue.lose([lost])
    put_back(queue, lost)
    queue.withdraw(anyone, "the epoch is over")
    assert {each.remote.status for each in (lost, fresh)} == {ClosureStatus.CANCELLED}
