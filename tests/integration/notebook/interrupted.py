"""A script as a notebook would be, interrupted at random moments by another process.

It schedules closures, runs epochs and saves checkpoints on a cluster of its own, and then counts
what came of it. A process of its own can be killed when it hangs; `test_interrupts` runs it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import psnb
from tests.conftest import DEADLINE

EXAMPLES = 40

INTERRUPTER = """
import os, random, select, signal, sys, time
process, longest = int(sys.argv[1]), float(sys.argv[2])
moments = random.Random(process)
while os.read(0, 1):
    time.sleep(longest * moments.random())
    os.kill(process, signal.SIGINT)
    # Once more if nothing is heard: Python ignores what is raised while it collects garbage.
    while not select.select([0], [], [], 1.0)[0]:
        os.kill(process, signal.SIGINT)
"""


@contextmanager
def interrupter(longest: float) -> Iterator[Callable[[], object]]:
    """Run a process; yields what has it interrupt this one within so many seconds, once."""
    command = [sys.executable, "-c", INTERRUPTER, str(os.getpid()), str(longest)]
    # A session of its own: it must not be interrupted itself.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        told = process.stdin.fileno()
        yield lambda: os.write(told, b"!")
        process.stdin.close()


class Errors:
    """The errors of closures that were raised, also as the context of an interrupt."""

    def __init__(self) -> None:
        self._seen: dict[int, BaseException] = {}  # kept, so that no other one has its number

    def note(self, error: BaseException | None) -> None:
        while error is not None:
            if isinstance(error, ValueError):
                self._seen[id(error)] = error
            error = error.__context__

    def __len__(self) -> int:
        return sum(1 + len(error.other_errors) for error in self._seen.values())  # type: ignore[attr-defined]


def interrupted(step: Callable[[], object], times: int, longest: float = 0.003) -> Errors:
    """Do something over and over while it is interrupted so many times."""
    errors = Errors()
    with interrupter(longest) as interrupt:
        for _ in range(times):
            try:
                interrupt()
                while True:
                    try:
                        step()
                    except ValueError as error:
                        errors.note(error)
            except KeyboardInterrupt as struck:
                errors.note(struck)
    return errors


class Closures:
    """Schedules, joins, fetches and so on, and counts what came of it."""

    def __init__(self, coordinator: psnb.ClusterCoordinator) -> None:
        self._coordinator = coordinator
        self._counter = coordinator.strategy.variable(0.0)
        self._written = coordinator.strategy.variable(0.0)
        self._random = random.Random(0)
        self._scheduled = self._wrote = 0
        counter = self._counter

        def count() -> int:
            counter.assign_add(1.0)
            return 1

        def fail() -> None:
            raise ValueError("of a closure")

        self._count, self._fail = count, fail

    def step(self) -> None:
        """Do something."""
        if self._coordinator.paused:
            self._coordinator.resume()
        what = self._random.random()
        if what < 0.70:
            for _ in range(self._random.randrange(50)):
                self._schedule(self._count)
        elif what < 0.78:
            self._coordinator.join()
        elif what < 0.86:
            remote = self._schedule(self._count)
            with suppress(psnb.errors.ClosureCancelledError):  # by one that fails
                assert remote.fetch() == 1
        elif what < 0.94:
            self._coordinator.done()
        elif what < 0.98:
            self._written.assign_add(1.0)
            self._wrote += 1
        elif what < 0.982:
            self._schedule(self._fail)
        else:
            self._coordinator.pause()

    def check(self, errors: Errors, times: int) -> None:
        """Check that each call had its effect once, or not at all if it was interrupted."""
        with suppress(psnb.errors.CoordinatorClosedError):
            self._coordinator.resume()
        while not self._joined(errors):
            pass
        found = self._coordinator.statistics()
        print(
            f"{times:,} interrupts: {found.completed:,} closures completed and {found.failed} "
            f"failed, each once; {found.cancelled:,} were cancelled"
        )
        assert self._counter.read() == found.completed
        assert len(errors) == found.failed
        # An interrupt may come when something was done already.
        ended = found.completed + found.failed + found.cancelled
        assert self._scheduled <= ended <= self._scheduled + times
        assert self._wrote <= self._written.read() <= self._wrote + times

    def _schedule(self, function: Callable[[], object]) -> psnb.RemoteValue:
        remote = self._coordinator.schedule(function)
        self._scheduled += 1
        return remote

    def _joined(self, errors: Errors) -> bool:
        try:
            self._coordinator.join(DEADLINE)
        except ValueError as error:
            errors.note(error)
            return False
        return True


def schedule_and_so_on(coordinator: psnb.ClusterCoordinator, times: int) -> None:
    closures = Closures(coordinator)
    closures.check(interrupted(closures.step, times), times)


def run_epochs(coordinator: psnb.ClusterCoordinator, times: int) -> None:
    numbers = psnb.data.Dataset.range(EXAMPLES).batch(4)
    dataset = coordinator.create_per_worker_dataset(numbers, sharding="dynamic", splits=5)
    seen = coordinator.strategy.variable(np.zeros(EXAMPLES))
    begun: list[Any] = []

    def use(iterator: Iterator[np.ndarray]) -> None:
        seen.scatter_add(next(iterator), np.ones(4))

    def go_on() -> None:
        if not begun or begun[-1].exhausted:
            begun.append(iter(dataset))
        coordinator.run_epoch(use, begun[-1])

    interrupted(go_on, times, longest=0.02)
    go_on()
    print(f"{times:,} interrupts in {len(begun)} epochs")
    assert begun[-1].exhausted
    assert seen.read().tolist() == [len(begun)] * EXAMPLES


def save_checkpoints(coordinator: psnb.ClusterCoordinator, times: int, folder: Path) -> None:
    value = coordinator.strategy.variable([1.0, 2.0])
    manager = psnb.CheckpointManager(coordinator, folder, max_to_keep=2)
    saved: list[Path] = []
    interrupted(lambda: saved.append(manager.save({"saves": len(saved)})), times, longest=0.02)
    for _ in range(2):  # on a busy machine all others may have been interrupted
        saved.append(manager.save({"saves": len(saved)}))
    print(f"{times:,} interrupts in {len(saved)} saves")
    assert manager.latest_checkpoint == saved[-1]
    assert len(manager.checkpoints) == 2
    for each in manager.checkpoints:
        value.assign([0.0, 0.0])
        manager.restore(each)
        assert value.read().tolist() == [1, 2]
    assert coordinator.strategy.recover() == {"saves": len(saved) - 1}


def main(folder: Path, closures: int, epochs: int, saves: int) -> None:
    """Do all of it, with so many interrupts each."""
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy, max_queue_size=500)
        schedule_and_so_on(coordinator, closures)
        run_epochs(coordinator, epochs)
        save_checkpoints(coordinator, saves, folder)
        assert coordinator.schedule(len, ("abc",)).fetch(DEADLINE) == 3
        coordinator.join(DEADLINE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
