"""`make bench`: psnb beside plain Dask and TensorFlow, in one run; the ratios count.

Two workers of one thread, one server. Each figure is the median of several repetitions, of
parameters and TensorFlow the best, beside what a plain copy of memory does in the same minute.
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
from tests.benchmarks.peers import tensorflow

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
        ("dense 16 MB pull + push, MB/s", f"{dense_rate:,.0f}", "dense", ""),
        ("the same through assign_add, MB/s", f"{add_rate:,.0f}", "dense", ""),
        ("embedding rows looked up + pushed, million/s", f"{sparse_rate:.2f}", "sparse", ""),
        ("read of a small variable, ms", f"{read:.2f}", "", ""),
    ]


def beside_tensorflow(what: str, ours: str, work: str) -> tuple[str, ...]:
    """Return a row of the table with what TensorFlow does of some work; rates are in millions."""
    theirs = tensorflow(work)
    if theirs is None:
        return what, ours, "TensorFlow is not installed", ""
    ratio = float(ours.replace(",", "")) * 1e6 / theirs
    return what, ours, f"{theirs / 1e6:,.2f}", f"{ratio:.1f}x"


def main() -> None:
    """Run all and print a table."""
    columns = "", "psnb", "Client.submit, or TensorFlow", "ratio"
    table = Table(*columns, title="two workers, one server")
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        rows = [*closures(client, coordinator), *parameters(strategy, coordinator)]
    for what, ours, theirs, ratio in rows:
        if theirs in ("dense", "sparse"):
            table.add_row(*beside_tensorflow(what, ours, theirs))
        else:
            table.add_row(what, ours, theirs, ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
