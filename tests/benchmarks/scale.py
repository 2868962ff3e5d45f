"""How many workers a notebook, a scheduler and servers carry: measured, fitted, and reckoned on.

``python -m tests.benchmarks.scale``: a quarter of an hour; the table of `docs/concepts/scaling.md`.
With 10, 100 and 1,000 simulated workers it measures what the processes of notebook and scheduler
spend while nothing happens, and for steps of `run_epoch`. That is taken to be a sum: so much a
second, for each worker, each split that a worker leases, each message with what it has done, and
each step; all at least 0. What a step costs workers and servers is that of `costs`. The fit is
tried on configurations that it has not seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

import psnb
from psnb._src.coordinator.datasets.leased import LeasedDataset
from psnb._src.protocol.messages import held_seconds
from tests.benchmarks import costs
from tests.benchmarks.many_workers import cluster, wait_for

TERMS = ("second", "worker and second", "split", "message", "step")
KINDS = ("notebook", "scheduler")
SPLITS, EPOCH = 8, 600.0
"""Splits of an epoch for each worker, and the seconds of an epoch that is reckoned with."""

FITTED, MANY = (10, 100, 1_000), 200
HELD_OUT = (40, 400)
SECONDS = 10.0
PATIENCE = 120.0
"""Seconds that a worker may be unresponsive: hundreds share two cores here."""

STEP = 0.01
"""Seconds that a step waits."""

WORKERS = (10, 100, 1_000, 10_000)
GRADIENTS = (0.01, 0.1, 1.0)
"""Seconds that a step's gradients take."""

WIDE_DEEP = costs.Work(1, 1, 4_400, 2_500, 52)
"""What the bench page's model asks of a server with batches of 512."""

BUSY = 0.7
"""Of a core, up to where a server keeps up; a notebook uses a whole one."""

NETWORK = 10e9 / 8
"""Bytes a second of a server."""


class Measured(NamedTuple):
    """What was counted in some seconds, and the CPU seconds of each of `KINDS` in each of them."""

    workers: int
    splits: float
    messages: float
    steps: float
    used: tuple[float, ...]

    def terms(self) -> list[float]:
        """Return how often each of `TERMS` was paid."""
        return [1, self.workers, self.splits, self.messages, self.steps]


def measured(workers: int) -> list[Measured]:
    """Return what so many workers cost, idle and with steps."""
    with cluster(workers) as (client, scheduler, _), psnb.ParameterServerStrategy(client) as ours:
        coordinator = psnb.ClusterCoordinator(ours, heartbeat_timeout=PATIENCE)
        wait_for(coordinator, workers)
        processes = psutil.Process(), scheduler

        def used() -> np.ndarray:
            return np.array([sum(each.cpu_times()[:2]) for each in processes])

        def step(iterator: Iterator[int]) -> None:
            next(iterator)
            time.sleep(STEP)
            psnb.report(loss=1.0)

        def epoch(steps: int) -> int:
            made = coordinator.create_per_worker_dataset(
                psnb.data.Dataset.range(steps), sharding="dynamic"
            )
            assert isinstance(made, LeasedDataset)
            return coordinator.run_epoch(step, iter(made), progress=False).visits

        epoch(workers)  # whatever is done once
        found = []
        most = max(4_000, 4 * workers)
        for steps in (0, most, 4 * most) if workers < MANY else (0, most):
            begin, before = time.monotonic(), used()
            if steps:
                epoch(steps)
            else:
                time.sleep(SECONDS)
            took = time.monotonic() - begin
            splits = min(SPLITS * workers, steps) / took
            messages = min(workers / held_seconds(workers), steps / took)
            spent = tuple((used() - before) / took)
            found.append(Measured(workers, splits, messages, steps / took, spent))
        return found


def fitted(points: list[Measured]) -> dict[str, np.ndarray]:
    """Return the seconds of CPU time of each of `TERMS`, of each of `KINDS`."""
    terms = np.array([each.terms() for each in points])
    found = {}
    for i, kind in enumerate(KINDS):
        of = np.array([each.used[i] for each in points])
        found[kind] = nnls(terms / of[:, None], np.ones(len(points)))[0]
    return found


def limit(
    workers: int, gradients: float, model: dict[str, np.ndarray], step: dict[str, float]
) -> str:
    """Return how many servers a cluster needs, and what is its first limit."""
    rate = workers / (gradients + step["worker"])
    messages = min(workers / held_seconds(workers), rate)
    at = [1, workers, SPLITS * workers / EPOCH, messages, rate]
    loads = {kind: float(model[kind] @ at) for kind in KINDS}
    servers = max(
        math.ceil(rate * step["server"] / BUSY), math.ceil(rate * step["bytes"] / NETWORK)
    )
    text = f"{servers:,} server{'s' * (servers > 1)}"
    full = [f"the {kind}: {load:.1f} cores" for kind, load in loads.items() if load > 1]
    return f"{text}; **{', '.join(full)}**" if full else f"{text}; notebook {loads['notebook']:.2f}"


def main() -> None:
    """Measure, fit, try, and print the table."""
    console = Console(width=150)
    points = [each for workers in FITTED for each in measured(workers)]
    others = [each for workers in HELD_OUT for each in measured(workers)]
    model = fitted(points)
    table = Table("µs of CPU time for a", *KINDS, title="fitted")
    for i, term in enumerate(TERMS):
        table.add_row(term, *(f"{model[kind][i] * 1e6:.3g}" for kind in KINDS))
    console.print(table)
    table = Table(
        "workers", "steps/s", *(f"{kind}, ms a second: measured, fitted" for kind in KINDS)
    )
    for each in (*points, *others):
        reckoned = [float(model[kind] @ each.terms()) for kind in KINDS]
        table.add_row(
            f"{'held out: ' if each in others else ''}{each.workers:,}",
            f"{each.steps:,.0f}",
            *(
                f"{m * 1e3:.1f}, {r * 1e3:.1f} ({r / m - 1:+.0%})"
                for m, r in zip(each.used, reckoned, strict=True)
            ),
        )
    console.print(table)
    by_kind = costs.fitted_model(console)
    terms = np.array(WIDE_DEEP.terms())
    step = {kind: float(by_kind[kind] @ terms) / 1e6 for kind in ("worker", "server")}
    step["bytes"] = WIDE_DEEP.nbytes  # each way
    console.print({name: f"{each:.3g}" for name, each in step.items()}, "of wide & deep, a step")
    print("| workers |", " | ".join(f"steps of {each * 1e3:g} ms" for each in GRADIENTS), "|")
    for workers in WORKERS:
        cells = [limit(workers, gradients, model, step) for gradients in GRADIENTS]
        print(f"| {workers:,} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
