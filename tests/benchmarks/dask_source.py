"""Rows of Dask collections beside Parquet files: ``python -m tests.benchmarks.dask_source``.

On a local cluster of two workers, epochs of closures that take a batch of 512 rows and return:
of Parquet files, of the same files as a Dask DataFrame that is persisted, and one that Dask
computes as the epoch goes on. Each kind in turn, several times; the median is shown, and the ratio
to Parquet of the same run. Then what a heavy computation of Dask costs an epoch, and the other way.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Future, wait
from rich.console import Console
from rich.table import Table

import psnb
from psnb.data import Dataset

FILES, ROWS, BATCH, TIMES = 16, 50_000, 512, 5
TEXTS = np.array([f"airline {number}" for number in range(20)], object)


def write(folder: Path) -> str:
    """Write files with numbers and a text; return their pattern."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        columns = {f"i{k}": random.integers(0, 1_000_000, ROWS) for k in range(8)}
        columns |= {f"f{k}": random.normal(size=ROWS).astype(np.float32) for k in range(8)}
        text = TEXTS[random.integers(0, len(TEXTS), ROWS)]
        frame = pd.DataFrame({**columns, "text": text})
        frame.to_parquet(folder / f"part-{number:02d}.parquet", index=False)
    return str(folder / "part-*.parquet")


def step(iterator: Iterator[dict[str, Any]]) -> None:
    """Take a batch, and look at a part of each column."""
    for column in next(iterator).values():
        column[:1]


def training_step(iterator: Iterator[dict[str, Any]]) -> None:
    """Take a batch, and compute for some milliseconds."""
    batch = next(iterator)
    x = np.stack([batch[f"f{k}"] for k in range(8)], 1)
    for _ in range(40):
        np.linalg.norm(x @ np.ones((8, 256), np.float32))


def busy(seconds: float, number: int) -> int:
    """Compute in a task of Dask, with NumPy."""
    end, x = time.perf_counter() + seconds, np.ones((300, 300))
    while time.perf_counter() < end:
        x = x @ x / 300
    return number


def epoch(
    coordinator: psnb.ClusterCoordinator, dataset: Any, function: Callable[..., None]
) -> float:
    """Return rows a second of an epoch."""
    begun = time.perf_counter()
    progress = coordinator.run_epoch(function, iter(dataset))
    assert progress.over
    return FILES * ROWS / (time.perf_counter() - begun)


def main() -> None:
    """Print both tables."""
    with (
        tempfile.TemporaryDirectory() as folder,
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator, pattern = psnb.ClusterCoordinator(strategy), write(Path(folder))
        frame = dd.read_parquet(pattern)
        kept = frame.persist(workers=strategy.worker_addresses, allow_other_workers=True)
        wait(kept)
        kinds = {
            "Parquet files": Dataset.parquet(pattern),
            "from_dask, persisted": Dataset.from_dask(kept),
            "from_dask, computed": Dataset.from_dask(frame),
        }
        made = {
            name: coordinator.create_per_worker_dataset(data.batch(BATCH), sharding="dynamic")
            for name, data in kinds.items()
        }
        found: dict[str, list[float]] = {name: [] for name in made}
        for dataset in made.values():
            epoch(coordinator, dataset, step)  # what is loaded and compiled at first
        for _ in range(TIMES):
            for name, dataset in made.items():
                found[name].append(epoch(coordinator, dataset, step))
        show("rows a second", "Parquet files", found)
        share(client, strategy, coordinator, made["from_dask, persisted"])


def share(
    client: Any,
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    dataset: Any,
) -> None:
    """Print what an epoch and a computation of Dask cost each other on the same workers."""

    def compute() -> list[Future]:
        tasks = [(0.05, number) for number in range(200)]
        return [
            client.submit(busy, *each, pure=False, workers=list(strategy.worker_addresses))
            for each in tasks
        ]

    epochs: dict[str, list[float]] = {"alone": [], "together": []}
    tasks: dict[str, list[float]] = {"alone": [], "together": []}
    for _ in range(3):
        epochs["alone"].append(epoch(coordinator, dataset, training_step))
        begun = time.perf_counter()
        wait(compute())
        tasks["alone"].append(200 / (time.perf_counter() - begun))
        begun, futures = time.perf_counter(), compute()
        epochs["together"].append(epoch(coordinator, dataset, training_step))
        wait(futures)
        tasks["together"].append(200 / (time.perf_counter() - begun))
    show("rows a second of an epoch", "alone", epochs)
    show("tasks a second of Dask", "alone", tasks)


def show(what: str, beside: str, found: dict[str, list[float]]) -> None:
    """Print medians, and their ratio to one of them."""
    table = Table("", what, "ratio")
    base = statistics.median(found[beside])
    for name, values in found.items():
        middle = statistics.median(values)
        table.add_row(name, f"{middle:,.0f}", f"{middle / base:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
