"""Datasets in memory: how fast two workers read, shuffle and go through 100,000 MultiSlot lines.

``python -m tests.benchmarks.in_memory``. Beside it the same in one process, where a shuffle sends
nothing. The best of three, by the clock on the wall; the files are in the page cache.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import psnb
from psnb.data import InMemoryDataset, Slot
from tests.benchmarks.formats import BATCH, ROWS, write

FILES = 8
SLOTS = [*(Slot(f"id{n}") for n in range(26)), Slot("dense", "float32", (13,)), Slot("label")]


def rate(work: Callable[[], object]) -> float:
    """Return lines a second, the best of three after one to warm up."""
    rates = []
    for _ in range(4):
        begin = time.perf_counter()
        work()
        rates.append(ROWS / (time.perf_counter() - begin))
    return max(rates[1:])


def rates(made: Any, go_through: Callable[[Iterable[Any]], object]) -> list[float]:
    """Return lines a second of each kind of work."""
    kinds = (made.load_into_memory, made.local_shuffle, made.global_shuffle)
    return [*(rate(kind) for kind in kinds), rate(lambda: go_through(iter(made)))]


def main() -> None:
    """Run all and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder))["slots"]
        lines = path.read_text().splitlines(keepends=True)
        files = [Path(folder) / f"part-{n}" for n in range(FILES)]
        for n, file in enumerate(files):
            file.write_text("".join(lines[n::FILES]))
        here = rates(InMemoryDataset(files, SLOTS, BATCH), lambda batches: list(batches))
        with (
            psnb.local_cluster(workers=2, servers=1) as client,
            psnb.ParameterServerStrategy(client) as strategy,
        ):
            coordinator = psnb.ClusterCoordinator(strategy)
            made = coordinator.create_per_worker_dataset(InMemoryDataset(files, SLOTS, BATCH))

            def step(iterator: Any) -> None:
                next(iterator)

            there = rates(made, lambda epoch: coordinator.run_epoch(step, epoch))
            taken = made.statistics().bytes_in_memory / ROWS
    table = Table("lines/s", "one process", "two workers", title="psnb.data, MultiSlot in memory")
    names = ("load", "local shuffle", "global shuffle", f"epoch, batches of {BATCH}")
    for name, one, two in zip(names, here, there, strict=True):
        table.add_row(name, f"{one:,.0f}", f"{two:,.0f}")
    Console().print(table)
    Console().print(f"{taken:,.0f} bytes of memory a line, of 345 in the file")


if __name__ == "__main__":
    main()
