"""Rows of half width beside those of float32: CPU time to look up and push, and bytes a row.

``python -m tests.benchmarks.half_width [ROWS] [DIM]``. The tables are in this process, and take
turns. A lookup ends with float32, as a client has it. Ids are drawn evenly: most rows are in no
cache.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from psnb._src.server.optimizers import OPTIMIZERS
from psnb._src.server.stored import widened
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable

FORMS = (
    ("float32", "Adagrad", None),
    ("float32", "RowWiseAdagrad", None),
    ("bfloat16", "Adagrad", None),
    ("bfloat16", "Adagrad", "bfloat16"),
    ("bfloat16", "RowWiseAdagrad", None),
    ("float16", "RowWiseAdagrad", None),
)
BATCH, BATCHES, REPETITIONS = 16_384, 20, 7


def made(rows: int, dim: int, dtype: str, optimizer: str, slot_dtype: str | None) -> SparseTable:
    """Return a table with rows for so many ids."""
    how = "t", dim, None, 0, 1, dtype, Constant(0.5), 1, OPTIMIZERS[optimizer](0.05)
    table = SparseTable(*how, slot_dtype=slot_dtype)
    for start in range(0, rows, 100_000):
        table.lookup(np.arange(start, min(start + 100_000, rows), dtype=np.uint64))
    return table


def ns_a_row(work: Callable[[np.ndarray], object], batches: list[np.ndarray]) -> float:
    """Return the CPU time of this thread for a row."""
    begun = time.thread_time_ns()
    for ids in batches:
        work(ids)
    return (time.thread_time_ns() - begun) / len(batches) / BATCH


def main() -> None:
    """Measure, and print the least of each."""
    rows, dim = (int(each) for each in (*sys.argv[1:], "1_000_000", "32")[:2])
    rng = np.random.default_rng(0)
    batches = [rng.choice(rows, BATCH, replace=False).astype(np.uint64) for _ in range(BATCHES)]
    gradients = np.full((BATCH, dim), 1e-3, np.float32)
    tables = {form: made(rows, dim, *form) for form in FORMS}
    found: dict[object, list[tuple[float, float]]] = {form: [] for form in FORMS}
    for _ in range(REPETITIONS):
        for form, table in tables.items():

            def look_up(ids: np.ndarray, table: SparseTable = table) -> object:
                return widened(table.run(ops.LookUpRows(ids)))

            def push(ids: np.ndarray, table: SparseTable = table) -> object:
                return table.run(ops.PushRows(ids, gradients))

            found[form].append((ns_a_row(look_up, batches), ns_a_row(push, batches)))
    least = {form: np.min(each[1:], axis=0) for form, each in found.items()}
    base, base_bytes = least[FORMS[0]], tables[FORMS[0]].nbytes()
    print(f"{rows:,} rows of {dim}; beside the first line in brackets\n")
    print("| rows | optimizer | state | look up, ns a row | push, ns a row | both | bytes a row |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for form, times in least.items():
        dtype, optimizer, slot_dtype = form
        nbytes, both = tables[form].nbytes(), base.sum() / times.sum()
        print(
            f"| {dtype} | {optimizer} | {slot_dtype or 'float32'} | {times[0]:.0f} "
            f"({base[0] / times[0]:.2f} times as many) | {times[1]:.0f} ({base[1] / times[1]:.2f}) "
            f"| {both:.2f} | {nbytes / rows:.0f} ({nbytes / base_bytes:.2f}) |"
        )


if __name__ == "__main__":
    main()
