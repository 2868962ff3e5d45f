"""What psnb keeps in memory over what users give it: of the notebook for a closure, of a server.

``python -m tests.benchmarks.memory``. The resident memory of processes, before and after. A server
has tables without optimizer, of 16 float32: beside 64 bytes a row, all else is psnb's. A table that
grows is measured with as many rows as just made it grow, and with as many as fit then.
"""

from __future__ import annotations

import gc
import os
import sys

import numpy as np
import psutil
from distributed import Client
from rich.console import Console
from rich.table import Table

import psnb

DIM = 16
ROWS = (1_000_000, 1_500_000, 2_000_000, 10_000_000, 50_000_000)
PIECE = 500_000
CLOSURES = (10, 1_000, 100_000, 1_000_000)
ROUNDS = 5


def resident(pid: int) -> int:
    """Return the bytes of a process that are in memory."""
    return int(psutil.Process(pid).memory_info().rss)


def of_a_row(client: Client, rows: int, fixed: bool, shuffled: bool) -> float:
    """Return the bytes of a server for a row."""
    with psnb.ParameterServerStrategy(client) as strategy:
        (pid,) = client.run(os.getpid, workers=strategy.server_addresses).values()
        for small in (1000, None):  # compiles, and makes room for messages
            first = strategy.embedding(f"small-{small}", DIM, small, 0.0)
            first.lookup(np.arange(PIECE) % 1000)
        before = resident(pid)
        table = strategy.embedding("table", DIM, rows if fixed else None, 0.0)
        for first in range(0, rows, PIECE):
            ids = np.arange(first, min(first + PIECE, rows))
            if shuffled:  # as hashes are: all over the 64 bits
                ids = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
            table.lookup(ids)
        return (resident(pid) - before) / rows


def nothing() -> None:
    """The closure that does nothing."""


def of_closures(client: Client) -> tuple[list[float], list[float]]:
    """Return the bytes of the notebook for a queued closure, and its megabytes after each round."""
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, max_queue_size=max(CLOSURES))
        found = []
        for count in CLOSURES:
            coordinator.pause()
            gc.collect()
            before = resident(os.getpid())
            for _ in range(count):
                coordinator.schedule(nothing)
            found.append((resident(os.getpid()) - before) / count)
            coordinator.resume()
            coordinator.join()
        rounds = []
        for _ in range(ROUNDS):
            for _ in range(200_000):
                coordinator.schedule(nothing)
            coordinator.join()
            rounds.append(resident(os.getpid()) / 1e6)
        return found, rounds


def main() -> None:
    """Measure and print."""
    console = Console()
    rows = [int(each) for each in sys.argv[1:]] or ROWS
    table = Table("rows", "fixed", "growing", title=f"bytes of a server for a row of {4 * DIM}")
    for count in rows:
        cells = []
        for fixed in (True, False):
            with psnb.local_cluster(workers=1, servers=1) as client:
                found = of_a_row(client, count, fixed, not fixed)
            cells.append(f"{found:.0f} ({found / (4 * DIM):.2f})")
        table.add_row(f"{count:,}", *cells)
    console.print(table)
    with psnb.local_cluster(workers=1, servers=1) as client:
        found, rounds = of_closures(client)
    for count, size in zip(CLOSURES, found, strict=True):
        console.print(f"{count:,} closures queued: {size:,.0f} bytes each")
    told = ", ".join(f"{each:.1f}" for each in rounds)
    console.print(f"the notebook after each 200,000 closures more: {told} MB")


if __name__ == "__main__":
    main()
