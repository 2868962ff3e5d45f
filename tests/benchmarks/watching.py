"""What being watched costs a training run: ``python -m tests.benchmarks.watching``.

The same steps on one local cluster, with and without views, in turns: a publisher that serialises
every update as the widget's does, and the servers asked once a second, as they are for any view.
The bar is 2 % of the throughput. Turns of one second; the medians' ratio counts.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np

import psnb
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.monitor.publisher import Publisher

TURNS, SECONDS = 15, 1.0
ROWS, DIM, BATCH = 100_000, 16, 512


def main() -> None:
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator._link.stop()  # type: ignore[union-attr] # nobody watches in every other turn
        table = strategy.embedding("rows", DIM, rows=ROWS, optimizer=psnb.Adagrad(0.1))

        def step(seed: int) -> None:
            ids = np.random.default_rng(seed).integers(ROWS, size=BATCH)
            rows = table.lookup(ids)
            table.push(ids, rows - 1.0)
            psnb.report(loss=float(np.square(rows).mean()), examples=BATCH)

        def throughput() -> float:
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < SECONDS:
                for seed in range(500):
                    coordinator.schedule(step, (seed,))
                coordinator.join()
                done += 500
            return done / (time.perf_counter() - began)

        throughput()  # compiles
        alone, watched = [], []
        for _ in range(TURNS):
            alone.append(throughput())
            publisher = Publisher(coordinator_core(coordinator), json.dumps, "psnb-watching")
            publisher.start()
            watched.append(throughput())
            publisher.stop()
        ratio = statistics.median(watched) / statistics.median(alone)
        print(
            f"steps/s: {statistics.median(alone):,.0f} alone, {statistics.median(watched):,.0f} "
            f"watched; being watched costs {100 * (1 - ratio):.1f} %"
        )


if __name__ == "__main__":
    main()
