"""What certificates cost: ``psnb.local_cluster(security=True)`` beside one without them.

Both clusters are there all the time, and work in turn, for the machine may be faster now than
later: what counts is the median of the ratios of neighbouring runs. `psnb.local_cluster` has
certificates by default as soon as they cost wide & deep less than five in a hundred.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import psnb
from tests.benchmarks import clicks
from tests.benchmarks.__main__ import BATCH, DENSE_BYTES, DIM, ROWS, median_ms

ROUNDS = 20
CLOSURES = 20
"""Of those that only pull and push, in a run."""

STEPS = {512: 200, 4096: 40}
"""Of wide & deep in a run, by batch size."""


class Work:
    """All that is measured, on one cluster; each is a rate."""

    def __init__(self, stack: ExitStack, security: bool) -> None:
        client = stack.enter_context(psnb.local_cluster(2, 1, security=security))
        strategy = stack.enter_context(psnb.ParameterServerStrategy(client))
        coordinator = psnb.ClusterCoordinator(strategy)
        large = strategy.variable(np.zeros(DENSE_BYTES // 4, np.float32), optimizer=psnb.SGD(0.01))
        table = strategy.embedding("bench", DIM, rows=ROWS, optimizer=psnb.Adagrad(0.01))
        small = strategy.variable(np.zeros(4, np.float32))

        def dense(seed: int) -> None:
            large.push(large.read())

        def sparse(seed: int) -> None:
            ids = np.random.default_rng(seed).integers(ROWS, size=BATCH)
            table.push(ids, table.lookup(ids))

        def closures(step: Callable[[int], None]) -> float:
            begin = time.perf_counter()
            for seed in range(CLOSURES):
                coordinator.schedule(step, (seed,))
            coordinator.join()
            return CLOSURES / (time.perf_counter() - begin)

        train = clicks.jax_step(strategy)

        def examples(size: int, data: object) -> float:
            begin = time.perf_counter()
            for _ in range(STEPS[size]):
                coordinator.schedule(train, (data,))
            coordinator.join()
            return STEPS[size] * size / (time.perf_counter() - begin)

        def batches(size: int) -> Iterator[clicks.Batch]:
            return clicks.batches(size, psnb.worker_index())

        self.rates: dict[str, Callable[[], float]] = {
            **{
                f"wide & deep, batch {size}, examples/s": partial(
                    examples, size, coordinator.create_per_worker_resource(batches, (size,))
                )
                for size in STEPS
            },
            "dense 16 MB pulls and pushes/s": lambda: closures(dense),
            f"{BATCH:,} rows looked up and pushed/s": lambda: closures(sparse),
            "reads of a small variable/s": lambda: (
                1e3 / coordinator.schedule(lambda: median_ms(small.read)).fetch()
            ),
        }


def main() -> None:
    """Run all and print a table."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    columns = "", "open, best (median)", "certificates, best (median)", "median of the ratios"
    table = Table(*columns, title="two workers, one server, with and without certificates")
    with ExitStack() as stack:
        plain, private = Work(stack, security=False), Work(stack, security=True)
        for what in plain.rates:
            pairs = [
                (plain.rates[what](), private.rates[what]())
                if turn % 2
                else (private.rates[what](), plain.rates[what]())[::-1]
                for turn in range(1 + ROUNDS)
            ][1:]
            ratio = statistics.median(ours / theirs for theirs, ours in pairs)
            rates = zip(*pairs, strict=True)
            cells = [f"{max(each):,.0f} ({statistics.median(each):,.0f})" for each in rates]
            table.add_row(what, *cells, f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
