"""What a restore costs: memory of the notebook, and CPU time of all processes.

Two servers have a table with Adagrad. It is restored onto as many shards as were saved, and onto
another number: of fixed rows, and of any id. What processes do while nothing happens is taken off.

    python -m tests.benchmarks.restoring [FOLDER]
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
from distributed import Client

import psnb

ROWS, DIM = 2_000_000, 16
LOOK = 0.01


def main(folder: Path) -> None:
    with psnb.local_cluster(1, 2) as client:
        for rows in (ROWS, None):
            for saved, now in ((2, 2), (2, 3), (2, 4)):
                print(_restored(client, folder / f"{rows}-{saved}-{now}", rows, saved, now))


def _restored(client: Client, folder: Path, rows: int | None, saved: int, now: int) -> str:
    with psnb.ParameterServerStrategy(client, shards=saved) as strategy:
        table = _table(strategy, rows)
        chance = np.random.default_rng(0)
        ids = np.arange(ROWS) if rows else chance.integers(0, 2**62, ROWS)
        for part in np.array_split(ids, 20):
            table.push(part, np.ones((part.size, DIM), np.float32))
        coordinator = psnb.ClusterCoordinator(strategy)
        path = psnb.CheckpointManager(coordinator, folder, 1).save()
    gigabytes = sum(file.stat().st_size for file in Path(path).iterdir()) / 1e9
    with psnb.ParameterServerStrategy(client, shards=now) as strategy:
        table = _table(strategy, rows)
        manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), folder, 1)
        manager.restore()  # pages of memory are there then
        processes = [psutil.Process(pid) for pid in {os.getpid(), *_pids(client)}]
        rest = _spent(processes, lambda: time.sleep(2)) / 2
        own, most = psutil.Process(), _Peak()
        begin, before = time.perf_counter(), sum(own.cpu_times()[:2])
        with most:
            spent = _spent(processes, manager.restore)
        seconds, here = time.perf_counter() - begin, sum(own.cpu_times()[:2]) - before
        assert (table.lookup(ids[:100]) != 0).all()
    return (
        f"{'fixed rows' if rows else 'any id':10} {saved} -> {now} shards, {gigabytes:.2f} GB: "
        f"{most.more / 1e6:.0f} MB of the notebook; "
        f"{(spent - rest * seconds) / gigabytes:.2f} s of CPU a GB in all processes "
        f"(notebook, with what it does at rest: {here / gigabytes:.2f})"
    )


def _table(strategy: psnb.ParameterServerStrategy, rows: int | None) -> psnb.Embedding:
    return strategy.embedding("table", DIM, rows, 0.0, optimizer=psnb.Adagrad(0.1))


def _pids(client: Client) -> Sequence[int]:
    return [*client.run(os.getpid).values()]


def _spent(processes: Sequence[psutil.Process], act: Callable[[], object]) -> float:
    """Return the seconds of CPU that processes spend while a function runs."""
    before = sum(sum(each.cpu_times()[:2]) for each in processes)
    act()
    return sum(sum(each.cpu_times()[:2]) for each in processes) - before


class _Peak:
    """How much more memory this process has, at most, while a block runs."""

    def __init__(self) -> None:
        self._done, self.more = threading.Event(), 0
        self._thread = threading.Thread(target=self._watch, name="peak")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        before = _own_memory()
        while not self._done.wait(LOOK):
            self.more = max(self.more, _own_memory() - before)


def _own_memory() -> int:
    found = psutil.Process().memory_info()
    return found.rss - found.shared


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else made))
