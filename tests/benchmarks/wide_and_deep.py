"""Examples a second of wide & deep on two workers and one server, beside JAX without parameters.

One training step a closure, whose updates are made exactly once: `psnb.pull`, gradients, and
`psnb.push`. The ceiling is a closure that does the gradients alone, of one batch with parameters
that are there, in the same run on the same workers.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import psnb
from tests.benchmarks import clicks, peers

SIZES = (512, 4096)
STEPS = {512: 200, 4096: 40}
REPETITIONS = 5


def measure(size: int) -> dict[str, float]:
    """Return what psnb and JAX alone do with batches of a size."""
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        adagrad = psnb.Adagrad(clicks.RATE)
        deep = strategy.embedding(
            "deep", clicks.DIM, clicks.ROWS, psnb.Normal(0, 0.01), optimizer=adagrad
        )
        wide = strategy.embedding("wide", 1, clicks.ROWS, 0, optimizer=adagrad)
        weights = [strategy.variable(each, optimizer=adagrad) for each in clicks.initial_weights()]
        data = coordinator.create_per_worker_resource(
            lambda: clicks.batches(size, psnb.worker_index())
        )
        gradients = coordinator.create_per_worker_resource(clicks.compiled)
        fixed = coordinator.create_per_worker_resource(clicks.batch_with_parameters, (size,))

        def step(data: Iterator[clicks.Batch], gradients: Callable[..., Any]) -> float:
            ids, numbers, labels = next(data)
            found = psnb.pull({deep: ids, wide: ids, **dict.fromkeys(weights)})
            loss, (of_deep, of_wide, of_weights) = gradients(
                found[deep], found[wide], [found[each] for each in weights], numbers, labels
            )
            psnb.push(
                {
                    deep: (ids, of_deep),
                    wide: (ids, of_wide),
                    **dict(zip(weights, of_weights, strict=True)),
                }
            )
            return float(loss)

        def compute(batch: Any, gradients: Callable[..., Any]) -> float:
            loss, found = gradients(*batch)
            for each in (*found[:2], *found[2]):
                np.asarray(each)
            return float(loss)

        def rate(closure: Callable[..., float], given: Any) -> float:
            steps = STEPS[size]
            begin = time.perf_counter()
            values = [coordinator.schedule(closure, (given, gradients)) for _ in range(steps)]
            coordinator.join()
            elapsed = time.perf_counter() - begin
            losses.append(statistics.mean(coordinator.fetch(values)))
            return steps * size / elapsed

        losses: list[float] = []
        rate(step, data)
        rate(compute, fixed)
        losses.clear()
        # In turn, for the machine may be faster now than later.
        rates = [(rate(step, data), rate(compute, fixed)) for _ in range(REPETITIONS)]
        ours, ceiling = zip(*rates, strict=True)
        return {
            "best": max(ours),
            "median": statistics.median(ours),
            "ceiling": max(ceiling),
            "share": statistics.median(a / b for a, b in rates),
            "first loss": losses[0],
            "last loss": losses[-2],
        }


def main() -> None:
    """Run all and print a table."""
    # A thread for each worker: two of them would take two cores from each other and the server.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    table = Table(
        "batch",
        "psnb, best (median)",
        "JAX alone",
        "psnb / JAX",
        "TensorFlow",
        "psnb / TensorFlow",
        "loss",
        title="wide & deep, examples/s: two workers, one server, one step a closure",
    )
    for size in SIZES:
        found, peer = measure(size), peers.tensorflow(str(size))
        table.add_row(
            f"{size}",
            f"{found['best']:,.0f} ({found['median']:,.0f})",
            f"{found['ceiling']:,.0f}",
            f"{found['share']:.2f}",
            "not installed" if peer is None else f"{peer:,.0f}",
            "" if peer is None else f"{found['best'] / peer:.2f}",
            f"{found['first loss']:.3f} to {found['last loss']:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
