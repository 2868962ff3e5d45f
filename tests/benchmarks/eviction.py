"""What an insertion into a full table costs, beside one into a table that grows, in one run.

``python -m tests.benchmarks.eviction [rows]``. Both have as many rows at first; then as many new
ids are looked up. Seconds of CPU, in one process, without servers. Each kind of table is measured
in turn with the growing one, several times; the ratios are the medians.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from psnb._src.server.optimizers import Adagrad
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.eviction.policy import Eviction, RowUsage
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.sparse import SparseTable

BATCH, DIM, REPETITIONS = 1 << 13, 16, 5


def by_age(usage: RowUsage) -> np.ndarray:
    """Return the scores of a function as a user writes it."""
    return usage.count / (1.0 + usage.age)


def seconds(rows: int, eviction: Eviction | None) -> tuple[float, float]:
    """Return what it costs to look up ids that are new, and then ids that have rows."""
    table = SparseTable(
        *("e", DIM, None, 0, 1, "float32", Uniform(), 0, Adagrad(0.1)), eviction=eviction
    )
    random = np.random.default_rng(0)
    ids = random.permutation(2 * rows).astype(np.uint64)
    gradients = np.ones((BATCH, DIM), np.float32)
    took = []
    for number in range(3):
        part = ids[rows * number :][:rows]
        if number == 2:  # of new ids, some may have left for others
            part = random.permutation(table.index.ids())[:rows]
        begin = time.process_time()
        for start in range(0, rows, BATCH):
            table.run(ops.LookUpRows(part[start : start + BATCH]))
        took.append(time.process_time() - begin)
        table.run(ops.PushRows(part[:BATCH], gradients))  # so that what follows is used later
    return took[1], took[2]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    kinds = {
        "lru": Eviction(rows),
        "lfu": Eviction(rows, "lfu"),
        "function": Eviction(rows, by_age),
    }
    seconds(1 << 14, None)
    print(f"{rows:,} rows of {DIM}: CPU seconds, and the ratio to a table that grows")
    for name, eviction in kinds.items():
        seconds(1 << 14, Eviction(1 << 14, eviction.evict))
        found = [(seconds(rows, None), seconds(rows, eviction)) for _ in range(REPETITIONS)]
        for at, what in enumerate(("new ids", "known ids")):
            grows = statistics.median(each[0][at] for each in found)
            full = statistics.median(each[1][at] for each in found)
            ratio = statistics.median(each[1][at] / each[0][at] for each in found)
            print(f"{name:>8}, {what:<9}: {full:.3f} s, {grows:.3f} s, {ratio:.2f}")


if __name__ == "__main__":
    main()
