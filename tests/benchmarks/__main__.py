"""Closures and parameters by themselves, beside `Client.submit` and a plain copy of memory.

Two workers of one thread, one server. Each figure is the median of several repetitions, of
parameters the best. Others than psnb, as ratios of one run: `tests.benchmarks.beside`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from distributed import Client, wait
from rich.console import Console
from rich.table import Table

import psnb

ROWS, DIM, BATCH = 1_000_000, 16, 26 * 512
DENSE_BYTES = 16_000_000


def nothing() -> None:
    """The closure that does nothing."""


def per_second(
    work: Callable[[], None],
    amount: float,
    repetitions: int = 5,
    of: Callable[[list[float]], float] = statistics.median,
) -> float:
    """Return a rate of some work, the median by default, after one run to warm up."""
    work()
    rates = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        rates.append(amount / (time.perf_counter() - begin))
    return of(rates)


def median_ms(work: Callable[[], object], repetitions: int = 200) -> float:
    """Return the median duration in milliseconds."""
    durations = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations) * 1e3


def closures(client: Client, coordinator: psnb.ClusterCoordinator) -> list[tuple[str, ...]]:
    """Measure scheduling."""
    workers = [worker.address for worker in coordinator.statistics().workers]

    def schedule() -> None:
        for _ in range(10_000):
            coordinator.schedule(nothing)
        coordinator.join()

    def submit() -> None:
        wait([client.submit(nothing, pure=False, workers=workers) for _ in range(1000)])

    ours, theirs = per_second(schedule, 10_000), per_second(submit, 1000, 3)
    fetch = median_ms(lambda: coordinator.schedule(nothing).fetch())
    result = median_ms(lambda: client.submit(nothing, pure=False, workers=workers).result(), 50)
    done = median_ms(coordinator.done, 10_000)
    return [
        ("empty closures/s", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.0f}x"),
        ("schedule to fetch, ms", f"{fetch:.2f}", f"{result:.2f}", f"{result / fetch:.0f}x"),
        ("done() asked every ms, % of a core", f"{100 * done:.2f}", "", ""),
    ]


def parameters(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> list[tuple[str, ...]]:
    """Measure reaching parameters from two workers."""
    dense = strategy.variable(np.zeros(DENSE_BYTES // 4, np.float32), optimizer=psnb.SGD(0.01))
    table = strategy.embedding("bench", DIM, rows=ROWS, optimizer=psnb.Adagrad(0.01))
    small = strategy.variable(np.zeros(4, np.float32))

    def pull_and_push() -> None:
        dense.push(dense.read())

    def pull_and_add() -> None:
        dense.assign_add(dense.read())

    def look_up_and_push(seed: int) -> None:
        ids = np.random.default_rng(seed).integers(ROWS, size=BATCH)
        table.push(ids, table.lookup(ids))

    def run_dense(closure: Callable[[], None]) -> None:
        for _ in range(20):
            coordinator.schedule(closure)
        coordinator.join()

    def run_sparse() -> None:
        for seed in range(100):
            coordinator.schedule(look_up_and_push, (seed,))
        coordinator.join()

    source, target = np.ones(DENSE_BYTES // 4, np.float32), np.zeros(DENSE_BYTES // 4, np.float32)
    copy_rate = per_second(lambda: np.copyto(target, source), DENSE_BYTES / 1e6, 20, max)
    dense_rate, add_rate = (
        per_second(partial(run_dense, closure), 20 * 2 * DENSE_BYTES / 1e6, 10, max)
        for closure in (pull_and_push, pull_and_add)
    )
    sparse_rate = per_second(run_sparse, 100 * BATCH / 1e6, 10, max)
    read = coordinator.schedule(lambda: median_ms(small.read)).fetch()
    return [
        ("a plain copy of 16 MB, MB/s", f"{copy_rate:,.0f}", "", ""),
        ("dense 16 MB pull + push, MB/s", f"{dense_rate:,.0f}", "", ""),
        ("the same through assign_add, MB/s", f"{add_rate:,.0f}", "", ""),
        ("embedding rows looked up + pushed, million/s", f"{sparse_rate:.2f}", "", ""),
        ("read of a small variable, ms", f"{read:.2f}", "", ""),
    ]


def main() -> None:
    """Run all and print a table."""
    columns = "", "psnb", "Client.submit", "ratio"
    table = Table(*columns, title="two workers, one server")
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        rows = [*closures(client, coordinator), *parameters(strategy, coordinator)]
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
