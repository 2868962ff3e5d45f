"""What closures and steps cost the coordinator's process, with few workers and with hundreds.

Scheduler, server and workers live in other processes, hundreds of workers in one: they are light
then, and what this process spends (CPU time of all its threads) is the coordinator's alone.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import dask
import numpy as np
import psutil
from distributed import Client, Scheduler, Worker

import psnb
from psnb._src.coordinator.datasets.leased import LeasedDataset, LeasedIterator
from tests.conftest import wait_until

FEW, MANY = 2, 200
CLOSURES = 20_000
ROUNDS = {FEW: 20, MANY: 10}
"""How many closures of a second each worker runs."""

IN_A_PROCESS = 250
"""The most workers that one process has."""

QUIET: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
SETTINGS = {
    # What Dask does for each worker ten times a second and oftener would leave hundreds of them in
    # one process no time to work.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.worker.memory.monitor-interval": "60s",
    "distributed.comm.timeouts.connect": "60s",
}


def nothing() -> None:
    """The closure that does nothing."""


async def _host(names: Sequence[str], address: str | None, pipe: Connection) -> None:
    async with AsyncExitStack() as stack:
        if address is None:
            scheduler = Scheduler(host="127.0.0.1", port=0, **QUIET)
            await stack.enter_async_context(scheduler)
            address = scheduler.address
        for name in names:
            worker = Worker(
                address,
                host="127.0.0.1",
                nthreads=1,
                name=name,
                memory_limit=0,
                resources={"ps": 1} if name == "server" else None,
                **QUIET,
            )
            await stack.enter_async_context(worker)
        pipe.send(address)
        await asyncio.to_thread(pipe.recv)


def _run(names: Sequence[str], address: str | None, pipe: Connection) -> None:
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with dask.config.set(SETTINGS):
        asyncio.run(_host(names, address, pipe))


@contextmanager
def _process(names: Sequence[str], address: str | None) -> Iterator[tuple[str, psutil.Process]]:
    """Have a process with some workers; without an address, with a scheduler."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(names, address, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv(), psutil.Process(process.pid)
        ours.send("stop")
        process.join(60)
    finally:
        process.kill()
        process.join()


class Cluster(NamedTuple):
    """A cluster, and the processes of its scheduler and its server."""

    client: Client
    scheduler: psutil.Process
    server: psutil.Process


@contextmanager
def cluster(workers: int) -> Iterator[Cluster]:
    """Connect to a cluster of so many workers in few other processes."""
    with ExitStack() as stack:
        address, scheduler = stack.enter_context(_process([], None))
        _, server = stack.enter_context(_process(["server"], address))
        for first in range(0, workers, IN_A_PROCESS):
            names = [str(each) for each in range(first, min(first + IN_A_PROCESS, workers))]
            stack.enter_context(_process(names, address))
        client = stack.enter_context(Client(address, set_as_default=False))
        yield Cluster(client, scheduler, server)


def wait_for(coordinator: psnb.ClusterCoordinator, workers: int) -> None:
    """Return when so many workers are ready."""
    wait_until(
        lambda: sum(w.state == "ready" for w in coordinator.statistics().workers) == workers,
        "all workers are ready",
        300,
    )


def a_second() -> None:
    """The closure that takes a second, and no core."""
    time.sleep(1)


def costs_of_a_closure(workers: int, repetitions: int = 5) -> tuple[float, float]:
    """Return the CPU time in microseconds that closures cost this process.

    Of one that does nothing, when they come in thousands, the median; and of one that takes a
    second, without what the process uses while nothing happens.
    """
    with cluster(workers) as (client, *_), psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_for(coordinator, workers)
        costs = []
        for _ in range(1 + repetitions):
            begin = time.process_time()
            for _ in range(CLOSURES):
                coordinator.schedule(nothing)
            coordinator.join()
            costs.append((time.process_time() - begin) / CLOSURES * 1e6)
        begin, used = time.monotonic(), time.process_time()
        time.sleep(5)
        idle = (time.process_time() - used) / (time.monotonic() - begin)
        begin, used, count = time.monotonic(), time.process_time(), workers * ROUNDS[workers]
        for _ in range(count):
            coordinator.schedule(a_second)
        coordinator.join()
        used = time.process_time() - used - idle * (time.monotonic() - begin)
        return statistics.median(costs[1:]), used / count * 1e6


IDS, ROWS, DIM = 64, 10_000, 8
STEPS = 3_000


def cost_of_a_step(workers: int, seconds: float) -> tuple[float, float]:
    """Return the CPU time in microseconds that a step of `run_epoch` costs this process.

    A step pulls and pushes 64 rows, reports, and waits. Without what the process uses while nothing
    happens. Besides, how many steps there were a second.
    """
    with cluster(workers) as (client, *_), psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        table = strategy.embedding("t", DIM, ROWS, 0.0, optimizer=psnb.Adagrad(0.05))

        def step(iterator: Iterator[np.ndarray]) -> None:
            ids = next(iterator) % ROWS
            rows = psnb.pull({table: ids})[table]
            time.sleep(seconds)
            psnb.push({table: (ids, rows)})
            psnb.report(loss=float(rows.sum()), examples=len(ids))

        def epoch(steps: int) -> LeasedIterator:
            data = psnb.data.Dataset.range(steps * IDS).batch(IDS)
            made = coordinator.create_per_worker_dataset(data, sharding="dynamic")
            assert isinstance(made, LeasedDataset)
            return iter(made)

        coordinator.run_epoch(step, epoch(10 * workers))
        begin, used = time.monotonic(), time.process_time()
        time.sleep(3)
        idle = (time.process_time() - used) / (time.monotonic() - begin)
        iterator = epoch(max(STEPS, 20 * workers))
        begin, used = time.monotonic(), time.process_time()
        count = coordinator.run_epoch(step, iterator).visits
        took = time.monotonic() - begin
        return (time.process_time() - used - idle * took) / count * 1e6, count / took


if __name__ == "__main__":
    for workers, seconds in ((FEW, 0.004), (MANY, 0.01)):
        step_cost, rate = cost_of_a_step(workers, seconds)
        print(f"a step of {seconds:g} s: {step_cost:.1f} us with {workers} workers, {rate:.0f}/s")
    few, many = costs_of_a_closure(FEW), costs_of_a_closure(MANY)
    for what, one, other in zip(("nothing", "a second"), few, many, strict=True):
        print(
            f"a closure of {what}: {one:.1f} us with {FEW} workers, {other:.1f} us with {MANY}: "
            f"{other / one:.2f} times"
        )
