"""CSV and Parquet beside pandas, polars and pyarrow: ``python -m tests.benchmarks.tables``.

200,000 rows of 26 integers, 13 floats and a label, from files in the page cache, shuffled and cut
into batches of 512: arrays by column. CPU time of a row; the readers take turns, some rounds of
them. psnb shuffles with a buffer of 10,000 rows, the others permute pieces of 50,000, or the whole.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from psnb.data import Dataset

ROWS, PIECE, BUFFER, BATCH, ROUNDS = 200_000, 50_000, 10_000, 512, 5


def write(folder: Path) -> tuple[str, str]:
    """Write the rows in both formats."""
    random = np.random.default_rng(3)
    columns = {f"i{k}": random.integers(0, 1_000_000, ROWS) for k in range(26)}
    columns |= {f"d{k}": random.normal(size=ROWS).astype(np.float32) for k in range(13)}
    table = pa.table({**columns, "y": random.integers(0, 2, ROWS)})
    pyarrow.csv.write_csv(table, folder / "csv")
    pq.write_table(table, folder / "parquet", row_group_size=PIECE)
    return str(folder / "csv"), str(folder / "parquet")


def permuted(columns: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Cut batches from whole columns in a random order."""
    order = np.random.default_rng(0).permutation(len(columns["y"]))
    for begin in range(0, len(order), BATCH):
        yield {name: column[order[begin : begin + BATCH]] for name, column in columns.items()}


def with_pandas(path: str) -> Iterator[Any]:
    """Read a CSV file in pieces."""
    for piece in pd.read_csv(path, chunksize=PIECE):
        yield from permuted({name: piece[name].to_numpy() for name in piece})


def with_pyarrow(path: str) -> Iterator[Any]:
    """Read a Parquet file by its row groups."""
    for piece in pq.ParquetFile(path).iter_batches(PIECE, use_threads=False):
        arrays = [column.to_numpy() for column in piece.columns]
        yield from permuted(dict(zip(piece.schema.names, arrays, strict=True)))


def with_polars(read: str, path: str) -> Iterator[Any]:
    """Read a whole file."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars

    yield from permuted({each.name: each.to_numpy() for each in getattr(polars, read)(path)})


def cpu_of(reader: Callable[[], Any]) -> float:
    """Return the CPU time of a row, in microseconds."""
    begin = time.process_time()
    rows = sum(len(batch["y"]) for batch in reader())
    assert rows == ROWS
    return (time.process_time() - begin) / rows * 1e6


def main() -> None:
    """Measure and print."""
    shown = Table("file", "reader", "us of CPU a row", "from", "to", "beside the peer")
    with tempfile.TemporaryDirectory() as folder:
        csv, parquet = write(Path(folder))
        ours = {"CSV": Dataset.csv(csv), "Parquet": Dataset.parquet(parquet)}
        peers: dict[str, dict[str, Callable[[], Any]]] = {
            "CSV": {
                "pandas, in pieces": partial(with_pandas, csv),
                "polars": partial(with_polars, "read_csv", csv),
            },
            "Parquet": {
                "pyarrow, by row groups": partial(with_pyarrow, parquet),
                "polars": partial(with_polars, "read_parquet", parquet),
            },
        }
        for name, dataset in ours.items():
            arms = {
                **peers[name],
                "psnb, batch": dataset.batch(BATCH).__iter__,
                "psnb, shuffle and batch": dataset.shuffle(BUFFER).batch(BATCH).__iter__,
            }
            for arm in arms.values():
                cpu_of(arm)
            rounds = [{arm: cpu_of(work) for arm, work in arms.items()} for _ in range(ROUNDS)]
            for arm in arms:
                found = [each[arm] for each in rounds]
                beside = [each[arm] / each[next(iter(arms))] for each in rounds]
                low, middle, high = (f"{f(found):.2f}" for f in (min, statistics.median, max))
                shown.add_row(name, arm, middle, low, high, f"{statistics.median(beside):.2f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
