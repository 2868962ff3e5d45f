"""A model of what a training step costs, fitted and tried on a configuration that it has not seen.

``python -m tests.benchmarks.costs``. CPU time of the notebook, the workers and the servers for a
step of `run_epoch` that pulls and pushes variables and rows. It is taken to be a sum: so much for
the step, each message, variable, table, row and byte; all at least 0. See `many_workers` for
closures that come in thousands, and `scale` for what follows for many workers. Beside it: larger
tables, and longer queues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from distributed import Client
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

import psnb
from psnb._src.coordinator.datasets.leased import LeasedDataset
from tests.benchmarks.profiling import cpu_seconds, roles

DIM, ROWS = 16, 1_000_000
LARGER = (10_000_000, 50_000_000)
"""Rows of tables that the model is not of; beside it, what a row costs there."""

QUEUES = (10, 1_000, 100_000, 1_000_000)
SECONDS = 2.0
TERMS = ("step", "message", "variable", "table on a server", "row", "byte")
KINDS = ("notebook", "worker", "server")


class Work(NamedTuple):
    """What a step does."""

    servers: int
    variables: int
    kilobytes: int
    """Of each variable."""
    rows: int
    """Of all tables together."""
    tables: int = 1
    of: int = ROWS
    """How many rows each table has."""

    @property
    def nbytes(self) -> int:
        """What is pulled, and what is pushed."""
        return self.variables * self.kilobytes * 1024 + self.rows * DIM * 4

    def terms(self) -> list[float]:
        """Return how often each of `TERMS` is paid."""
        asked = self.servers if self.rows else min(self.servers, self.variables)
        # A pull and a commit; on several servers, a commit is held by all and then decided.
        messages = 2 if asked == 1 else 3 * asked
        tables = self.tables * self.servers if self.rows else 0
        return [1, messages, self.variables, tables, self.rows, self.nbytes]


SERVERS = 1, 2, 4
FITTED = [
    *(Work(servers, 1, 1, 0) for servers in SERVERS),
    *(Work(servers, 100, 1, 0) for servers in SERVERS),
    *(Work(1, 1, size, 0) for size in (1_000, 16_000)),
    *(Work(servers, 1, 1, rows) for servers in SERVERS for rows in (1_000, 20_000)),
    *(Work(servers, 10, 100, 0) for servers in SERVERS),
    *(Work(servers, 10, 1_000, 1_000) for servers in (1, 2)),
    *(Work(servers, 1, 1, 2_000, 20) for servers in (1, 2)),
]
HELD_OUT = [
    Work(2, 20, 200, 5_000),
    Work(1, 6, 100, 2_000),
    Work(4, 10, 50, 10_000),
    Work(1, 1, 4_400, 6_000, 50),
]


def made(coordinator: psnb.ClusterCoordinator, work: Work) -> Callable[[Iterator[int]], None]:
    """Return a step that does such work, for elements of which each is another number."""
    strategy, adagrad = coordinator.strategy, psnb.Adagrad(0.05)
    values = np.zeros(work.kilobytes * 256, np.float32)
    variables = [strategy.variable(values, optimizer=adagrad) for _ in range(work.variables)]
    each = work.rows // work.tables
    tables = [
        strategy.embedding(f"rows-{id(work)}-{number}", DIM, work.of, 0.0, optimizer=adagrad)
        for number in range(work.tables if work.rows else 0)
    ]
    chosen = np.random.default_rng(0).choice(work.of, each, replace=False)

    def step(iterator: Iterator[int]) -> None:
        # Other rows each time, or they would all be in the processor's caches.
        ids = (chosen + 7919 * int(next(iterator))) % work.of
        found = psnb.pull({**dict.fromkeys(variables), **dict.fromkeys(tables, ids)})
        pushed: dict[Any, Any] = {variable: found[variable] for variable in variables}
        psnb.push(pushed | {table: (ids, found[table]) for table in tables})

    return step


class Meter:
    """CPU time of the processes of a cluster, without what Dask uses for itself all the time."""

    def __init__(self, client: Client, strategy: psnb.ParameterServerStrategy) -> None:
        self._processes = roles(client, strategy)
        begin, before = time.monotonic(), self._used()
        time.sleep(SECONDS)
        self._idle = (self._used() - before) / (time.monotonic() - begin)
        self.start()

    def start(self) -> None:
        """Count from here."""
        self._begin, self._before = time.monotonic(), self._used()

    def read(self) -> np.ndarray:
        """Return the seconds of CPU time since then, of each of `KINDS`."""
        return self._used() - self._before - self._idle * (time.monotonic() - self._begin)

    def _used(self) -> np.ndarray:
        used = np.zeros(len(KINDS))
        for pid, role in self._processes.items():
            used[KINDS.index(role.split()[0])] += sum(cpu_seconds({pid: role}).values())
        return used


def costs(client: Client, work: Work) -> np.ndarray:
    """Return the microseconds of CPU time that a step costs each of `KINDS`."""
    with psnb.ParameterServerStrategy(client, num_servers=work.servers) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        step = made(coordinator, work)

        def epoch(steps: int) -> float:
            data = psnb.data.Dataset.range(steps)
            dataset = coordinator.create_per_worker_dataset(data, sharding="dynamic")
            assert isinstance(dataset, LeasedDataset)
            begin = time.monotonic()
            coordinator.run_epoch(step, iter(dataset), progress=False)
            return time.monotonic() - begin

        epoch(20)  # compiles
        count = 2 * math.ceil(SECONDS / 2 * 40 / epoch(40)) + 2
        meter = Meter(client, strategy)
        epoch(count)
        return meter.read() / count * 1e6


def queued(client: Client, length: int) -> float:
    """Return the microseconds of the notebook's CPU time for a closure in a queue of a length."""
    with psnb.ParameterServerStrategy(client, num_servers=1) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, max_queue_size=length)
        times = max(1, 20_000 // length)
        costs = []
        for _ in range(3):
            begin = time.process_time()
            for _ in range(times):
                for _ in range(length):
                    coordinator.schedule(int)
                coordinator.join()
            costs.append((time.process_time() - begin) / times / length * 1e6)
        return min(costs)


def tell_of_larger(console: Console, client: Client, ours: np.ndarray) -> None:
    """Print what the same rows cost in larger tables, and closures in longer queues."""
    table = Table("rows of the table", *(f"{kind}, µs" for kind in KINDS), title="20,000 rows")
    table.add_row(f"{ROWS:,}", *(f"{each:,.0f}" for each in ours))
    for rows in LARGER:
        found = costs(client, Work(1, 1, 1, 20_000, of=rows))
        table.add_row(f"{rows:,}", *(f"{each:,.0f}" for each in found))
    console.print(table)
    table = Table("queued closures", "notebook, µs for one")
    for length in QUEUES:
        table.add_row(f"{length:,}", f"{queued(client, length):.1f}")
    console.print(table)


def fitted_model(console: Console, *, beside: bool = False) -> dict[str, np.ndarray]:
    """Measure, fit, predict, and print it; return the µs of each of `TERMS`, by kind."""
    with psnb.local_cluster(workers=2, servers=max(SERVERS)) as client:
        found = {work: costs(client, work) for work in (*FITTED, *HELD_OUT)}
        if beside:
            tell_of_larger(console, client, found[Work(1, 1, 1, 20_000)])
    terms = np.array([work.terms() for work in FITTED])
    # Errors count in proportion: a step of 16 MB must not decide what an empty one costs.
    fitted = {
        kind: nnls(terms / (of := np.array([found[work][i] for work in FITTED]))[:, None], of / of)[
            0
        ]
        for i, kind in enumerate(KINDS)
    }
    table = Table("µs of CPU time for a", *KINDS, title="fitted")
    for i, term in enumerate(TERMS):
        table.add_row(term, *(f"{fitted[kind][i]:.5g}" for kind in KINDS))
    console.print(table)
    table = Table("work", *(f"{kind}: measured, predicted" for kind in KINDS), "all, off by")
    for work, measured in found.items():
        predicted = np.array([fitted[kind] @ work.terms() for kind in KINDS])
        name = ", ".join(f"{value} {field}" for field, value in work._asdict().items())
        table.add_row(
            ("held out: " if work in HELD_OUT else "") + name,
            *(f"{m:,.0f}, {p:,.0f}" for m, p in zip(measured, predicted, strict=True)),
            f"{predicted.sum() / measured.sum() - 1:+.0%}",
        )
    console.print(table)
    return fitted


if __name__ == "__main__":
    fitted_model(Console(width=150), beside=True)
