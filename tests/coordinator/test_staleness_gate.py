"""The bound on staleness: no order of beginnings and ends can break it. Without Dask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.coordinator.scheduling.gates import StalenessGate
from psnb._src.coordinator.scheduling.work import Work
from psnb.errors import WorkerLostError
from tests.coordinator.queues import ClosureQueue, numbers, put, put_one, succeed


def take(queue: ClosureQueue, count: int = 100) -> list[Work]:
    return queue.take(count)


def test_closures_run_one_after_the_other_with_a_bound_of_zero() -> None:
    queue = ClosureQueue(100, gate=StalenessGate(0))
    put(queue, 3)
    for number in range(3):
        (each,) = take(queue)
        assert each.id == number
        succeed(queue, each)


def test_so_many_run_at_once_as_the_bound_and_one_more() -> None:
    queue = ClosureQueue(100, gate=StalenessGate(2))
    put(queue, 9)
    assert numbers(take(queue)) == [0, 1, 2]


def test_nothing_begins_while_a_slow_closure_would_get_too_stale() -> None:
    queue = ClosureQueue(100, gate=StalenessGate(2))
    put(queue, 9)
    slow, fast = take(queue, 2)
    succeed(queue, fast)
    (other,) = take(queue)  # may commit, as the one before it, while the slow one runs
    succeed(queue, other)
    assert take(queue) == []
    assert not queue.has_work()
    succeed(queue, slow)
    assert numbers(take(queue)) == [3, 4, 5]


def test_lanes_are_woken_when_the_slow_closure_ends() -> None:
    woken: list[None] = []
    queue = ClosureQueue(100, gate=StalenessGate(0))
    queue.attach(lambda: woken.append(None))
    put(queue, 2)
    (each,) = take(queue)
    assert take(queue) == []
    woken.clear()
    succeed(queue, each)
    assert woken


def test_a_lost_closure_counts_until_it_is_known_that_it_has_had_no_effect() -> None:
    queue = ClosureQueue(100, gate=StalenessGate(1))
    put(queue, 4, retries=1)
    lost, other = take(queue)
    queue.lose([lost])
    succeed(queue, other)
    assert take(queue) == []  # it may have committed, and count for another one
    queue.put_back([lost], 1, "killed")
    put_one(queue, 9, priority=1)
    assert numbers(take(queue)) == [9, 0]


def test_a_lost_closure_that_fails_blocks_no_other() -> None:
    queue = ClosureQueue(100, gate=StalenessGate(0))
    put(queue, 1)
    (lost,) = take(queue)
    queue.put_back([lost], 1, "killed")
    with pytest.raises(WorkerLostError, match="retries"):
        queue.join()
    put(queue, 1)
    assert len(take(queue)) == 1


@given(
    bound=st.integers(0, 4),
    choices=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=80),
)
def test_no_update_is_staler_than_the_bound(bound: int, choices: list[tuple[int, int]]) -> None:
    queue = ClosureQueue(1000, gate=StalenessGate(bound))
    put(queue, 100, retries=100)
    commits = 0
    # Those that run, or are lost and may commit still, with the commits that they have not missed.
    running: list[tuple[Work, int]] = []
    lost: list[tuple[Work, int]] = []

    def commit(seen: int) -> None:
        nonlocal commits
        assert commits - seen <= bound
        commits += 1

    for action, which in choices:
        if action == 0:
            running += [(each, commits) for each in take(queue, which)]
        elif action == 1 and running:  # commits, and ends
            each, seen = running.pop(which % len(running))
            commit(seen)
            succeed(queue, each)
        elif action == 2 and running:  # is lost, and nobody knows
            lost.append(running.pop(which % len(running)))
            queue.lose([lost[-1][0]])
        elif action == 3 and lost:  # it turns out that it has committed, or that it will not
            each, seen = lost.pop(which % len(lost))
            if which % 2:
                commit(seen)
                succeed(queue, each)
            else:
                queue.put_back([each], 1, "frozen")
