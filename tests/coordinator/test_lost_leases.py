"""Leased examples are used once, whatever fails and whoever dies, in a world of chance."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.work import Numbers, Work
from psnb._src.protocol.messages import EFFECTIVE, AskLease, Taken
from tests.coordinator.queues import ClosureQueue, done, fail, make_work, put_back
from tests.coordinator.test_runs import advance, end


class _World:
    """Workers that do closures of one or many steps on leased splits, and fail and die."""

    def __init__(self, seed: int, sizes: list[int]) -> None:
        self.chance, self.sizes = random.Random(seed), sizes
        self.visits = [[0] * size for size in sizes]
        self.leases = LeaseRegistry()
        self.queue = ClosureQueue(100, leases=self.leases)
        self.epoch, self.numbers = self.leases.open(len(sizes)), Numbers()
        self.known: dict[int, list[Taken]] = {}  # what servers remember, by commit
        self.lives = 0
        self.workers = [_Worker(self) for _ in range(3)]

    def step(self) -> None:
        worker = self.chance.choice(self.workers)
        if not self.queue.failing() and self.queue.statistics().queued < 3:
            how = ScheduleOptions(retries=10_000, steps=self.chance.choice([1, 8]))
            self.queue.put(make_work(self.queue, self.numbers.take(8), how))
        getattr(
            worker, self.chance.choice(["take", "work", "work", "work", "report", "fail", "die"])
        )()
        if self.chance.random() < 0.01:
            self.queue.cancel_queued()
        with contextlib.suppress(ValueError):
            self.queue.done()


class _Worker:
    """One with two threads: two runs at a time, on one iterator."""

    def __init__(self, world: _World) -> None:
        self.world = world
        self.live()

    def live(self) -> None:
        self.world.lives += 1
        self.name = f"life {self.world.lives}"
        self.lease: tuple[int, int, int, int, int] | None = None
        self.runs: dict[Work, list[int]] = {}  # and the steps that are done and not reported
        self.ended: list[Work] = []
        self.taken: list[tuple[Hashable, Taken]] = []

    def take(self) -> None:
        if len(self.runs) < 2:
            steps = self.world.chance.randint(1, 8)
            self.runs |= {run: [] for run in self.world.queue.take(1, steps=steps)}

    def work(self) -> None:
        """Do a step of a run."""
        world = self.world
        going = [run for run in self.runs if run not in self.ended]
        if not going:
            return
        run = world.chance.choice(going)
        done = self.runs[run]
        number, commit = run.number + len(done), run.execution.commit + len(done)
        used, taken = self.again(run, number)
        if not used:
            used, taken = self.read(number)
        if used:
            assert commit not in world.known
            world.known[commit] = taken
            for split, position in used:
                world.visits[split][position] += 1
        done.append(number)
        if not used or len(done) == run.left or world.chance.random() < 0.05:
            self.ended.append(run)

    def again(self, run: Work, number: int) -> tuple[list[tuple[int, int]], list[Taken]]:
        """Take what an earlier attempt had taken, or less of it."""
        used: list[tuple[int, int]] = []
        noted: list[Taken] = []
        left = self.world.chance.randint(0, 2)
        for part in run.execution.ranges:
            count, first = min(left, part.count), part.state or 0
            if part.closure == number and count:
                left -= count
                where, ended = (part.epoch, part.lease, number), count == part.count
                noted.append(Taken(*where, 0, count, first + count, ended))
                used += [(part.split, position) for position in range(first, first + count)]
        self.taken += [(self.world.queue.worker_of(run), each) for each in noted]
        return used, noted

    def read(self, number: int) -> tuple[list[tuple[int, int]], list[Taken]]:
        world = self.world
        if self.lease is None:
            self.send()
            found = world.leases.lease(self.name, AskLease(world.epoch, number, None))
            if found is None:
                return [], []
            first = found.state or 0
            end = first + found.count if found.count else world.sizes[found.split]
            self.lease = found.number, found.split, first, first, end
        lease, split, first, at, end = self.lease
        last = min(end, at + world.chance.randint(1, 2))
        self.lease = (lease, split, first, last, end) if last < end else None
        taken = Taken(world.epoch, lease, number, at - first, last - at, last, last == end)
        self.taken.append((self.name, taken))
        return [(split, position) for position in range(at, last)], [taken]

    def send(self) -> None:
        """Report what is taken alone, of steps that are done or not."""
        for holder, taken in self.taken:
            self.world.leases.take(holder, taken)
        self.taken = []

    def report(self) -> None:
        effective = {number for done in self.runs.values() for number in done}
        self.taken = [
            (holder, each._replace(closure=EFFECTIVE) if each.closure in effective else each)
            for holder, each in self.taken
        ]
        self.send()
        for run, steps in list(self.runs.items()):
            advance(self.world.queue, run, len(steps))
            self.runs[run] = []
            if run in self.ended:
                end(self.world.queue, run)
                self.ended.remove(run)
                del self.runs[run]

    def fail(self) -> None:
        going = [run for run in self.runs if run not in self.ended]
        if going and self.world.chance.random() < 0.3:
            run = self.world.chance.choice(going)
            self.read(run.number + len(self.runs[run]))
            self.report()
            del self.runs[run]
            fail(self.world.queue, run, ValueError("boo"))

    def die(self) -> None:
        world = self.world
        if world.chance.random() < 0.3:
            runs = world.queue.lose(list(self.runs))
            for run in runs:
                for commit in run.commits:
                    if commit not in world.known:
                        break
                    world.leases.note_used(world.known[commit])
                    advance(world.queue, run, 1)
            world.leases.lose(self.name)
            world.queue.settle([done(run, steps=0) for run in runs if not run.left])
            put_back(world.queue, *(run for run in runs if run.left))
            self.live()


@given(st.integers(0, 2**32), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_leased_examples_are_used_once_whatever_fails_or_dies(seed: int, sizes: list[int]) -> None:
    world = _World(seed, sizes)
    for _ in range(20_000):
        if world.leases.progress(world.epoch).over:
            break
        world.step()
    else:
        pytest.fail("the epoch does not end")
    assert world.visits == [[1] * size for size in sizes]
    assert world.leases.progress(world.epoch).visits == sum(sizes)
