"""Leased examples are used once, whatever fails and whoever dies, in a world of chance."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.protocol.messages import AskLease, Taken
from tests.coordinator.queues import (
    ClosureQueue,
    closure,
    commit_of,
    fail,
    put_back,
    succeed,
)


class _World:
    """A dataset's splits, workers that read them, and a server that counts visits, by chance."""

    def __init__(self, seed: int, sizes: list[int]) -> None:
        self.chance = random.Random(seed)
        self.sizes, self.visits = sizes, [[0] * size for size in sizes]
        self.committed: dict[int, list[Taken]] = {}  # and what servers remember beside it
        self.leases = LeaseRegistry()
        self.queue = ClosureQueue(100, leases=self.leases)
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

    def commit(self, closure: Work, used: list[tuple[int, int]], taken: list[Taken]) -> None:
        assert commit_of(closure) not in self.committed
        self.committed[commit_of(closure)] = taken
        for split, position in used:
            self.visits[split][position] += 1

    def lose(self, closures: list[Work], worker: str) -> None:
        """Find out what became of closures whose worker was lost, and its leases."""
        again = []
        lost = self.queue.lose(closures)
        for each in closures:
            self.leases.note_used(self.committed.get(commit_of(each), ()))
        self.leases.lose(worker)
        for each in lost:
            if commit_of(each) in self.committed:
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
        self.begun: list[Work] = []
        self.ended: list[Work] = []  # and the coordinator has not heard of it
        self.unreported: list[tuple[Hashable, Taken]] = []

    def take(self) -> None:
        self.begun += self.world.queue.take(self.world.chance.randint(1, 2))

    def work(self) -> None:
        if not self.begun:
            return
        world, each = self.world, self.begun.pop(0)
        taken: list[Taken] = []
        used = self.again(each, taken) or self.read(each.id, taken)
        if used:  # else it has nothing to write
            world.commit(each, used, taken)
        if world.chance.random() < 0.2:
            self.report()
        self.ended.append(each)

    def again(self, closure: Work, noted: list[Taken]) -> list[tuple[int, int]]:
        """Take what an earlier attempt had taken, or less of it."""
        found: list[tuple[int, int]] = []
        left = self.world.chance.randint(0, 3)
        for part in closure.execution.ranges if left else ():
            count, first = min(left, part.count), part.state or 0
            left -= count
            taken = Taken(
                *(part.epoch, part.lease, closure.id, 0, count, first + count),
                ended=count == part.count,
            )
            if count:
                self.unreported.append((self.world.queue.worker_of(closure), taken))
                noted.append(taken)
            found += [(part.split, position) for position in range(first, first + count)]
        return found

    def read(self, closure: int, noted: list[Taken]) -> list[tuple[int, int]]:
        world = self.world
        if self.lease is None:
            self.report()
            found = world.leases.lease(self.name, AskLease(world.epoch, closure, None))
            if found is None:
                return []
            first = found.state or 0
            end = first + found.count if found.count else world.sizes[found.split]
            self.lease = found.number, found.split, first, end
            self.at = 0
        number, split, first, end = self.lease
        last = min(end, first + world.chance.randint(1, 3))
        self.lease = (number, split, last, end) if last < end else None
        count, ended = last - first, last == end
        taken = Taken(world.epoch, number, closure, self.at, count, last, ended)
        self.at += count
        self.unreported.append((self.name, taken))
        noted.append(taken)
        return [(split, position) for position in range(first, last)]

    def report(self) -> None:
        for holder, taken in self.unreported:
            self.world.leases.take(holder, taken)
        self.unreported = []

    def answer(self) -> None:
        self.report()
        for each in self.ended:
            succeed(self.world.queue, each)
        self.ended = []

    def fail(self) -> None:
        if self.begun:
            self.read(self.begun[0].id, [])
            self.report()
            fail(self.world.queue, self.begun.pop(0), ValueError("boo"))

    def die(self) -> None:
        if self.world.chance.random() < 0.3:
            self.world.lose([*self.ended, *self.begun], self.name)
            self.live()


@given(st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_leased_examples_are_used_once_whatever_fails_or_dies(seed: int, sizes: list[int]) -> None:
    world = _World(seed, sizes)
    for _ in range(20_000):
        if world.leases.progress(world.epoch).over:
            break
        world.step()
    else:
        pytest.fail("the epoch does not end")
    assert world.visits == [[1] * size for size in sizes]
