"""How servers write checkpoints: for how long they refuse requests, how fast, what memory it takes.

One server has a table of a gigabyte; meanwhile rows of it are pushed. The pauses are those of the
server's event loop, on which all requests run, so also those that other processes of the machine
cause. The rate is beside that of ``dd`` with a sync, in the same folder, before and after.

Then the same of a large variable, all of which changes with each push.

Then what deltas cost beside whole ones: of a table of 10 million rows of which one in a hundred was
touched, and of the flights demo's model.

    python -m tests.benchmarks.writing [FOLDER]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client

import psnb
from psnb._src.demo import run

ROWS, DIM = 4_000_000, 32
GIGABYTES = ROWS * (8 + 2 * 4 * DIM) / 1e9
PUSHED = 1000
NUMBERS, SAVES = 1 << 26, 5
MANY, NARROW = 10_000_000, 16
STEPS, BATCH = (1, 10, 100), 256
LOOK = 0.001


def main(folder: Path) -> None:
    with psnb.local_cluster(1, 1) as client, psnb.ParameterServerStrategy(client) as strategy:
        table = strategy.embedding("table", DIM, rows=ROWS, optimizer=psnb.Adagrad(0.1))
        (server,) = strategy.server_addresses
        process = psutil.Process(client.run(_pid, workers=[server])[server])
        manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), folder, 1)
        rates = [_dd(folder)]
        chance, ones = np.random.default_rng(0), np.ones((PUSHED, DIM), np.float32)
        with Pushing(lambda: table.push(chance.integers(0, ROWS, PUSHED), ones)) as pushing:
            calm = _pauses(client, server, lambda: time.sleep(4))
            before, pushes = process.memory_info().rss, pushing.count
            most, seconds = Memory(process), 0.0

            def save() -> None:
                nonlocal seconds
                begin = time.perf_counter()
                manager.save()
                seconds = time.perf_counter() - begin

            with most:
                pauses = _pauses(client, server, save)
            pushes = pushing.count - pushes
        rates.append(_dd(folder))
        begin = time.perf_counter()
        manager.save()
        alone = time.perf_counter() - begin
    rate = sum(rates) / len(rates)
    print(f"""
table                {GIGABYTES:.2f} GB; meanwhile {pushes:,} pushes of {PUSHED:,} rows
closures held        {1000 * manager.status.held:.1f} ms
longest pause        {1000 * pauses[-1]:.1f} ms, {1000 * pauses[-1] / GIGABYTES:.1f} ms a GB \
(without a save {1000 * calm[-1]:.1f} ms)
99th percentile      {1000 * _p99(pauses):.1f} ms (without a save {1000 * _p99(calm):.1f} ms)
written              {GIGABYTES / seconds * 1000:.0f} MB/s, without pushes \
{GIGABYTES / alone * 1000:.0f} MB/s; dd {", ".join(f"{each / 1e6:.0f}" for each in rates)} MB/s: \
{GIGABYTES * 1e9 / seconds / rate:.0%} and {GIGABYTES * 1e9 / alone / rate:.0%}
more memory          {(most.peak - before) / 1e6:.0f} MB
""")


def variable(folder: Path) -> None:
    with psnb.local_cluster(1, 1) as client, psnb.ParameterServerStrategy(client) as strategy:
        v = strategy.variable(np.zeros(NUMBERS, np.float32), name="v", optimizer=psnb.Adagrad(0.1))
        (server,) = strategy.server_addresses
        process = psutil.Process(client.run(_pid, workers=[server])[server])
        manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), folder / "variable", 1)
        ones, gigabytes = np.ones(NUMBERS, np.float32), 2 * 4 * NUMBERS / 1e9
        calm, saving, times = [], [], []
        before, most = process.memory_info().rss, Memory(process)
        with Pushing(lambda: v.push(ones)), most:
            for _ in range(SAVES):
                calm.append(_pauses(client, server, lambda: time.sleep(2))[-1])
                begin = time.perf_counter()
                saving.append(_pauses(client, server, manager.save)[-1])
                times.append(time.perf_counter() - begin)
    without, longest = 1000 * float(np.median(calm)), 1000 * float(np.median(saving))
    print(f"""
a variable           {gigabytes:.2f} GB with its optimizer's state; medians of {SAVES} saves
longest pause        {longest:.0f} ms (without a save {without:.0f} ms, an update), so \
{(longest - without) / gigabytes:.0f} ms a GB more
saved in             {float(np.median(times)):.2f} s
more memory          {(most.peak - before) / 1e6:.0f} MB
""")


def deltas(folder: Path) -> None:
    with (
        psnb.local_cluster(1, 1) as client,
        psnb.ParameterServerStrategy(client) as plain,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        tables = [
            each.embedding("table", NARROW, rows=MANY, optimizer=psnb.Adagrad(0.1))
            for each in (plain, strategy)
        ]
        manager = psnb.CheckpointManager(
            psnb.ClusterCoordinator(strategy), folder / "deltas", 6, full_every=10**6
        )
        touch(tables)
        whole = Saved(manager)
        times: list[list[list[float]]] = []
        for _ in range(5):
            times.append(touch(tables))
            some = Saved(manager)
        without, noted = np.median(np.concatenate(times), 0)
        first, *_, last = manager.checkpoints
        read = [restored(manager, each) for each in (first, last)]
    print(f"""
10 million rows      whole {whole}; with 1 % touched {some}: \
{some.nbytes / whole.nbytes:.1%} of the bytes
a push of {PUSHED:,} rows  {1e6 * without:.0f} us, with changes noted {1e6 * noted:.0f} us
restored             the whole one in {read[0]:.1f} s, with five deltas in {read[1]:.1f} s
""")
    with psnb.local_cluster(2, 1) as client, psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        manager = psnb.CheckpointManager(coordinator, folder / "flights", 1, full_every=10**6)
        trainer = run.make_trainer(coordinator, run.place(strategy))
        at = 2 * max(STEPS)
        trainer.train_from_dataset(run.training(0, at, BATCH), 1)
        print(f"the flights model    whole {Saved(manager)}")
        for steps in STEPS:
            trainer.train_from_dataset(run.training(at, at + steps, BATCH), 1)
            at += steps
            print(f"  after {steps:3} steps     {Saved(manager)}")


def touch(tables: Sequence[psnb.Embedding]) -> list[list[float]]:
    """Touch one row of a hundred of tables in turn; return the seconds of the pushes of each."""
    ones = np.ones((PUSHED, NARROW), np.float32)
    ids = np.random.default_rng().permutation(MANY)[: MANY // 100]
    times: list[list[float]] = []
    for part in np.split(ids, ids.size // PUSHED):
        times.append([])
        for table in tables:
            begin = time.perf_counter()
            table.push(part, ones)
            times[-1].append(time.perf_counter() - begin)
    return times


def restored(manager: psnb.CheckpointManager, path: Any) -> float:
    """Return the seconds in which a checkpoint is restored."""
    begin = time.perf_counter()
    manager.restore(path)
    return time.perf_counter() - begin


class Saved:
    """What a save has cost."""

    def __init__(self, manager: psnb.CheckpointManager) -> None:
        begin = time.perf_counter()
        path = manager.save()
        self.seconds = time.perf_counter() - begin
        self.nbytes, self.held = psnb.checkpoint.load(path).own_nbytes, manager.status.held

    def __str__(self) -> str:
        """Return it for people."""
        return (
            f"{self.nbytes / 1e6:,.3f} MB in {1000 * self.seconds:,.0f} ms, closures held "
            f"{1000 * self.held:.1f} ms"
        )


class Pushing:
    """Pushes gradients, one after the other."""

    def __init__(self, push: Callable[[], object]) -> None:
        self.count, self._push, self._ended = 0, push, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Pushing:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._push()
            self.count += 1


class Memory:
    """The most memory that a process has."""

    def __init__(self, process: psutil.Process) -> None:
        self.peak, self._process, self._ended = 0, process, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            self.peak = max(self.peak, self._process.memory_info().rss)


def _pid() -> int:
    return os.getpid()


def _pauses(client: Client, server: str, meanwhile: Callable[[], object]) -> list[float]:
    """Return how long the server's event loop did nothing else, each time, ascending."""
    client.run(_look, workers=[server], wait=False)
    meanwhile()
    found: list[float] = sorted(client.run(_looked, workers=[server])[server])
    return found


async def _look(dask_worker: Any) -> None:
    seen: list[float] = []
    dask_worker.pauses, dask_worker.looks = seen, True
    while dask_worker.looks:
        begin = time.perf_counter()
        await asyncio.sleep(LOOK)
        seen.append(time.perf_counter() - begin - LOOK)


def _looked(dask_worker: Any) -> Any:
    dask_worker.looks = False
    return dask_worker.pauses


def _p99(pauses: list[float]) -> float:
    return float(np.quantile(pauses, 0.99))


def _dd(folder: Path) -> float:
    """Return the bytes a second of a sequential write with a sync."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "sequential"
    begin = time.perf_counter()
    command = ["dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={int(GIGABYTES * 1000)}"]
    subprocess.run([*command, "conv=fsync"], check=True, capture_output=True)
    seconds = time.perf_counter() - begin
    file.unlink()
    return int(GIGABYTES * 1000) * (1 << 20) / seconds


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as made:
        main(Path(made))
        variable(Path(made))
        deltas(Path(made))
