"""Bags of many ids, rows on the wire or sums: bytes, and CPU time of the notebook and the servers.

``python -m tests.benchmarks.bags``. 512 bags from a table of a million rows of 16 float32 on two
servers. Once these are on another host, as `tests.benchmarks.network` has it: bytes are what the
device between them counts, with all headers. Once all are on one host, where large arrays go
through shared memory. Both ways take turns in one run. Each figure is the lower quartile of many,
as other processes may use the same caches.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
from distributed import Client
from rich.console import Console
from rich.table import Table

import psnb
from psnb._src.client.bags import pooling
from tests.benchmarks.network import crossed
from tests.conftest import DEADLINE, connected
from tests.integration.helpers import CommandLine
from tests.integration.namespaces import APART, HERE, OWN_PROCESSES, THERE, linked

ROWS, DIM, BAGS, SIZES = 1_000_000, 16, 512, (20, 50, 100)
REPETITIONS = 30


def drawn(size: int, *, repeated: bool) -> list[psnb.data.Ragged]:
    """Return batches of bags, of ids that are drawn evenly, or by Zipf's law."""
    numbers = np.random.default_rng(0)
    count = BAGS * size
    return [
        psnb.data.Ragged(
            numbers.zipf(1.2, count) % ROWS if repeated else numbers.integers(0, ROWS, count),
            np.arange(0, count + 1, size),
        )
        for _ in range(REPETITIONS)
    ]


def measured(
    client: Client,
    servers: list[str],
    work: Callable[[psnb.data.Ragged], object],
    batches: list[psnb.data.Ragged],
    count: Callable[[], int],
) -> np.ndarray:
    """Return bytes, and µs of CPU time here and of the servers, of both ways."""
    found = np.zeros((2, 3, len(batches)))

    def used() -> np.ndarray:
        there = sum(client.run(time.process_time, workers=servers).values())
        return np.array([0, time.process_time(), there])

    for at, bags in enumerate(batches):
        for way in (False, True):
            with patch.object(pooling, "_sums_are_fewer_bytes", lambda *_, way=way: way):
                work(bags)  # rows are made, and in the caches of the processor in both ways
                before, sent = used(), count()
                work(bags)
                sent = count() - sent
                found[int(way), :, at] = (used() - before) * 1e6
                found[int(way), 0, at] = sent
    return np.quantile(found, 0.25, axis=2)


def compare(client: Client, title: str, count: Callable[[], int]) -> None:
    """Print a table of both ways."""
    table = Table(
        *("ids a bag", "distinct", "", "kB: rows, sums", "notebook, µs", "servers, µs"), title=title
    )
    with psnb.ParameterServerStrategy(client) as strategy:
        e = strategy.embedding("e", DIM, ROWS, optimizer=psnb.Adagrad(0.1))
        gradients = np.ones((BAGS, DIM), np.float32)
        of = list(strategy.server_addresses)
        idle = measured(client, of, lambda bags: None, drawn(1, repeated=False), count)
        for size in SIZES:
            for repeated in (False, True):
                batches = drawn(size, repeated=repeated)
                distinct = np.mean([np.unique(each.values).size for each in batches]) / BAGS / size
                for name, work in (
                    ("look up", e.lookup_bags),
                    ("push", lambda bags: e.push_bags(bags, None, gradients)),
                ):
                    ways = measured(client, of, work, batches, count) - idle
                    ways[:, 0] /= 1e3
                    pairs = [f"{rows:,.0f}, {sums:,.0f}" for rows, sums in ways.T]
                    table.add_row(f"{size}", f"{distinct:.0%}", name, *pairs)
    Console(width=120).print(table)


def two_hosts(folder: Path) -> None:
    """Make the two networks and measure."""
    server = ("--resources", "ps=1", "--no-nanny")
    with linked(*OWN_PROCESSES) as link:
        cluster = CommandLine(folder, HERE)
        there = {"where": ("--host", THERE), "before": link.enter}
        with (
            cluster.scheduler(),
            cluster.worker(*server, **there),
            cluster.worker(*server, **there),
            cluster.worker("--no-nanny", where=("--host", HERE)),
            connected(cluster.file) as client,
        ):
            client.wait_for_workers(3, timeout=DEADLINE)
            compare(client, "servers on another host", crossed)


def one_host() -> None:
    """Measure on a cluster of this host."""
    with psnb.local_cluster(workers=1, servers=2) as client:
        compare(client, "all on one host", lambda: 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        two_hosts(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            subprocess.run([*APART, sys.executable, "-m", __spec__.name, temporary], check=True)
        one_host()
