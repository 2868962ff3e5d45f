"""What the processes of `test_sharing` do; without pytest, which each of them would import."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from psnb._src.checkpoint.manager import FolderManager
from tests.checkpoint.fakes import Strategy

KEEP = 3

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


def halt_in_a_save(folder: Path, end: Connection) -> None:
    strategy, manager = managed(folder)

    def halt() -> None:
        end.send("half")
        signal.pause()

    strategy.made["b"].when_saved = halt
    manager.save()


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
