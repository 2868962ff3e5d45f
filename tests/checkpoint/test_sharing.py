"""Real processes that save, prune and restore in one folder; some are killed.

Each save is one of a stamp that nobody else has, in all of its values and its metadata: what is
restored is whole if it has one stamp only.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from psnb._src.checkpoint.folder_manager import FolderManager
from tests.checkpoint.fakes import Strategy
from tests.checkpoint.saved import names
from tests.conftest import DEADLINE

pytestmark = pytest.mark.slow

KEEP = 3
SAVES, RESTORES, KILLS = 200, 50, 20

Managed = tuple[Strategy, FolderManager]


def managed(folder: Path) -> Managed:
    strategy = Strategy()
    return strategy, FolderManager(strategy, folder, KEEP)


def save(to: Managed, stamp: int) -> Path:
    strategy, manager = to
    strategy.assign(stamp)
    return manager.save({"stamp": stamp})


def stamp_of(to: Managed, path: Path | None = None) -> int:
    """Restore a checkpoint, which must be whole."""
    strategy, manager = to
    strategy.assign(-1)
    stamp = manager.restore(path)["stamp"]
    assert strategy.values == [stamp] * 3
    return int(stamp)


class Worker:
    """A process that does something in the folder and reports."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("forkserver")
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


def halt_in_a_save(folder: Path, end: Connection) -> None:
    strategy, manager = managed(folder)

    def halt() -> None:
        end.send("half")
        signal.pause()

    strategy.made["b"].when_saved = halt
    manager.save()


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


def save_until_killed_at(step: int, folder: Path, stamp: int, end: Connection) -> None:
    """Make a manager and save, but for one's death before a step on the way."""
    steps = itertools.count()
    watched = {
        "fcntl.flock",
        "open",
        "os.listdir",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
    }

    def count(event: str, args: tuple[Any, ...]) -> None:
        if event in watched and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    end.send(save(managed(folder), stamp).name)


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


def save_on(folder: Path, first: int, end: Connection) -> None:
    """Save with a new manager each time, and report what is wrong with what was returned."""
    for stamp in itertools.count(first):
        name = fault = ""
        try:
            here = managed(folder)
            path = save(here, stamp)
            name = path.name
            if stamp_of(here, path) != stamp:
                fault = f"{name} is another's"
        except Exception as error:
            pruned = name and not path.exists() and is_old(path, here[1].latest_checkpoint)
            fault = "" if pruned else repr(error)
        end.send((name, fault))


def is_old(path: Path, newest: Path | None) -> bool:
    """Return whether so many have been saved since that a checkpoint had to go."""
    return newest is not None and int(newest.name[5:]) >= int(path.name[5:]) + KEEP


def restore_on(folder: Path, end: Connection) -> None:
    """Restore the latest again and again: it is always there, whole, and no older one."""
    here, last = managed(folder), ""
    while True:
        try:
            stamp_of(here)
            name = here[0].noted[-1].name
            fault = "" if last <= name else f"{name} after {last}"
            last = name
        except Exception as error:
            fault = repr(error)
        end.send(("", fault))


def test_everything_is_whole_that_many_processes_save_in_one_folder(tmp_path: Path) -> None:
    stamps = itertools.count(0, 1_000_000)
    chance = random.Random(0)
    save(managed(tmp_path), next(stamps))
    savers = [Worker(save_on, tmp_path, next(stamps)) for _ in range(3)]
    readers = [Worker(restore_on, tmp_path)]
    saved: list[str] = []
    faults: list[str] = []
    restored = killed = 0
    with working(readers), working(savers):
        while not faults and (len(saved) < SAVES or restored < RESTORES or killed < KILLS):
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
                if killed < KILLS and chance.random() < KILLS / SAVES:
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
