"""Examples a second of wide & deep on two workers and one server, beside JAX without parameters.

Measured is one training step a closure, whose updates are made exactly once: `psnb.pull`,
gradients, and `psnb.push`. Beside it the same with many steps a closure, each pushed at once (at
least once) and the next one's parameters fetched ahead; and a closure that does the gradients
alone, of one batch with parameters that are there: the ceiling. All in one run on the same workers.
"""

from __future__ import annotations

import itertools
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
STEPS_A_CLOSURE = 10
REPETITIONS = 5


class Job:
    """Closures of three kinds on a cluster.

    Parameters
    ----------
    coordinator : psnb.ClusterCoordinator
        Of two workers and one server.
    size : int
        Examples a batch.
    """

    def __init__(self, coordinator: psnb.ClusterCoordinator, size: int) -> None:
        self.losses: list[float] = []
        self._coordinator, self._size = coordinator, size
        self._gradients = coordinator.create_per_worker_resource(clicks.compiled)
        self._data = coordinator.create_per_worker_resource(
            lambda: clicks.batches(size, psnb.worker_index())
        )
        self._fixed = coordinator.create_per_worker_resource(clicks.batch_with_parameters, (size,))
        strategy, adagrad = coordinator.strategy, psnb.Adagrad(clicks.RATE)
        deep = strategy.embedding(
            f"deep-{size}", clicks.DIM, clicks.ROWS, psnb.Normal(0, 0.01), optimizer=adagrad
        )
        wide = strategy.embedding(f"wide-{size}", 1, clicks.ROWS, 0, optimizer=adagrad)
        weights = [strategy.variable(each, optimizer=adagrad) for each in clicks.initial_weights()]

        def wanted(batch: clicks.Batch) -> dict[Any, Any]:
            return {deep: batch[0], wide: batch[0], **dict.fromkeys(weights)}

        def train(batch: clicks.Batch, found: Any, gradients: Callable[..., Any], now: bool) -> Any:
            ids, numbers, labels = batch
            loss, (of_deep, of_wide, of_weights) = gradients(
                found[deep], found[wide], [found[each] for each in weights], numbers, labels
            )
            psnb.push(
                {
                    deep: (ids, of_deep),
                    wide: (ids, of_wide),
                    **dict(zip(weights, of_weights, strict=True)),
                },
                immediate=now,
            )
            return loss

        def step(data: Iterator[clicks.Batch], gradients: Callable[..., Any]) -> float:
            batch = next(data)
            return float(train(batch, psnb.pull(wanted(batch)), gradients, False))

        def many(data: Iterator[clicks.Batch], gradients: Callable[..., Any]) -> float:
            ahead = psnb.prefetch(itertools.islice(data, STEPS_A_CLOSURE), wanted)
            return float(sum(train(*each, gradients, True) for each in ahead) / STEPS_A_CLOSURE)

        def compute(batch: Any, gradients: Callable[..., Any]) -> float:
            loss, found = gradients(*batch)
            for each in (*found[:2], *found[2]):
                np.asarray(each)
            return float(loss)

        self._step, self._many, self._compute = step, many, compute

    def train(self) -> float:
        """Return examples/s of one step a closure."""
        return self._rate(self._step, self._data)

    def train_ahead(self) -> float:
        """Return examples/s of many steps a closure."""
        return self._rate(self._many, self._data, STEPS_A_CLOSURE)

    def compute(self) -> float:
        """Return examples/s of gradients alone."""
        return self._rate(self._compute, self._fixed)

    def _rate(self, closure: Callable[..., float], given: Any, steps_a_closure: int = 1) -> float:
        count = STEPS[self._size] // steps_a_closure
        begin = time.perf_counter()
        values = [
            self._coordinator.schedule(closure, (given, self._gradients)) for _ in range(count)
        ]
        self._coordinator.join()
        elapsed = time.perf_counter() - begin
        self.losses.append(statistics.mean(self._coordinator.fetch(values)))
        return count * steps_a_closure * self._size / elapsed


def measure(size: int) -> dict[str, float]:
    """Return what psnb and JAX alone do with batches of a size."""
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        job = Job(psnb.ClusterCoordinator(strategy), size)
        # In turn, for the machine may be faster now than later; the first time is to warm up.
        rates = [(job.train(), job.train_ahead(), job.compute()) for _ in range(1 + REPETITIONS)][
            1:
        ]
    ours, ahead, ceiling = zip(*rates, strict=True)
    return {
        "best": max(ours),
        "median": statistics.median(ours),
        "ahead": max(ahead),
        "ceiling": max(ceiling),
        "share": statistics.median(a / c for a, _, c in rates),
        "first loss": job.losses[0],
        "last loss": job.losses[-2],
    }


def main() -> None:
    """Run all and print a table."""
    # A thread for each worker: two of them would take two cores from each other and the server.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    table = Table(
        "batch",
        "psnb, best (median)",
        "many steps, ahead",
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
            f"{found['ahead']:,.0f}",
            f"{found['ceiling']:,.0f}",
            f"{found['share']:.2f}",
            "not installed" if peer is None else f"{peer:,.0f}",
            "" if peer is None else f"{found['best'] / peer:.2f}",
            f"{found['first loss']:.3f} to {found['last loss']:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
