"""Real processes that save, prune and restore in one folder; some are killed.

Each save is one of a stamp that nobody else has, in all of its values and its metadata: what is
restored is whole if it has one stamp only.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.checkpoint.saved import names
from tests.checkpoint.sharing import (
    KEEP,
    halt_in_a_save,
    managed,
    restore_on,
    save,
    save_on,
    save_until_killed_at,
    stamp_of,
)
from tests.conftest import DEADLINE


class Worker:
    """A process that does something in the folder and reports."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.checkpoint.sharing"])
        self.reports, end = context.Pipe(duplex=False)
        self.process = context.Process(target=target, args=(*args, end))
        self.process.start()
        end.close()

    def report(self) -> Any:
        """Return what it reported next, or None if it was killed before."""
        assert self.reports.poll(DEADLINE), "it reports in time"
        try:
            return self.reports.recv()
        except EOFError:
            return None

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int | None:
        self.process.join(DEADLINE)
        self.reports.close()
        return self.process.exitcode


@contextmanager
def working(workers: list[Worker]) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()


def test_what_a_writer_has_begun_goes_after_it_was_killed_and_not_before(tmp_path: Path) -> None:
    first = save(managed(tmp_path), 1)
    worker = Worker(halt_in_a_save, tmp_path)
    with working([worker]):
        assert worker.report() == "half"
        managed(tmp_path)
        partial, whole = names(tmp_path)
        assert partial.startswith(".incomplete-")
        assert whole == first.name
        second = save(managed(tmp_path), 2)
        assert names(tmp_path) == [partial, first.name, second.name]
    managed(tmp_path)
    assert names(tmp_path) == [first.name, second.name]


def test_process_that_is_killed_at_any_step_harms_nothing(tmp_path: Path) -> None:
    here = managed(tmp_path)
    last = max(save(here, -stamp - 2) for stamp in range(KEEP))
    for step in itertools.count():
        worker = Worker(save_until_killed_at, step, tmp_path, step)
        reported = worker.report()
        if worker.end() == 0:
            break
        assert worker.process.exitcode == -signal.SIGKILL
        newest = here[1].latest_checkpoint
        assert newest is not None
        assert newest >= last
        last = newest
        assert len(here[1].checkpoints) >= KEEP
        for path in here[1].checkpoints:
            stamp_of(here, path)
    assert step > 30
    assert reported > last.name
    assert len(names(tmp_path)) == KEEP  # the last one has cleared what the one before had left
    assert stamp_of(here) == step


def test_everything_is_whole_that_many_processes_save_in_one_folder(tmp_path: Path) -> None:
    saves, restores, kills = 30, 10, 3
    stamps = itertools.count(0, 1_000_000)
    chance = random.Random(0)
    save(managed(tmp_path), next(stamps))
    savers = [Worker(save_on, tmp_path, next(stamps)) for _ in range(3)]
    readers = [Worker(restore_on, tmp_path)]
    saved: list[str] = []
    faults: list[str] = []
    restored = killed = 0
    with working(readers), working(savers):
        while not faults and (len(saved) < saves or restored < restores or killed < kills):
            by_reports = {each.reports: each for each in (*savers, *readers)}
            ready = wait(list(by_reports), DEADLINE)
            assert ready, "they go on"
            for worker in map(by_reports.__getitem__, ready):
                name, fault = worker.report()
                if fault:
                    faults.append(fault)
                elif worker in readers:
                    restored += 1
                else:
                    saved.append(name)
                if killed < kills and chance.random() < kills / saves:
                    # Whatever it does now: it has gone on since it reported.
                    killed += 1
                    victim = chance.randrange(len(savers))
                    savers[victim].kill()
                    savers[victim] = Worker(save_on, tmp_path, next(stamps))
                    break
    assert faults == []
    assert len({*saved}) == len(saved)
    here = managed(tmp_path)
    assert not list(tmp_path.glob(".incomplete-*"))
    for path in here[1].checkpoints:
        stamp_of(here, path)
    last = save(here, next(stamps))
    assert last.name > max(saved)
    assert len(names(tmp_path)) == KEEP
