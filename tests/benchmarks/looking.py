"""A server's CPU time to search a table and to describe it, beside NumPy's brute force.

``python -m tests.benchmarks.looking``. The server runs in this process: its pieces one by one, as
requests would ask for them. NumPy has the same rows as one array, and selects by ``argpartition``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from psnb._src.server.making import warm_up_scans
from psnb._src.server.scanning import Metric
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.initializers import Normal
from psnb._src.server.tables.sparse import SparseTable

ROWS, DIM, K, REPETITIONS = 1_000_000, 16, 10, 5


def made() -> SparseTable:
    """Return a table with rows for that many ids."""
    table = SparseTable("items", DIM, None, 0, 1, "float32", Normal(), 0, None)
    ids = np.random.default_rng(0).permutation(ROWS).astype(np.uint64)
    for start in range(0, ROWS, 1 << 16):
        table.lookup(ids[start : start + (1 << 16)])
    return table


def asked(table: SparseTable, ask: Callable[[int, str], ops.ScanRows]) -> tuple[list[Any], float]:
    """Return the answers to all pieces, and the longest CPU time of one."""
    answers, longest = [], 0.0
    start: int | None = 0
    numbering = ""
    while start is not None:
        begun = time.process_time()
        answer = table.run(ask(start, numbering))
        longest = max(longest, time.process_time() - begun)
        start, numbering = answer.then, answer.numbering
        answers.append(answer)
    return answers, longest


def brute(rows: np.ndarray, query: np.ndarray, metric: Metric) -> np.ndarray:
    """Return which rows are nearest to a query, by NumPy."""
    match metric:
        case Metric.COSINE:
            keys = -(rows @ query) / np.linalg.norm(rows, axis=1)
        case Metric.DOT:
            keys = -(rows @ query)
        case Metric.L2:
            keys = np.square(rows - query).sum(axis=1)
    best = np.argpartition(keys, K)[:K]
    return best[np.argsort(keys[best])]


def timed(work: Callable[[], Any]) -> float:
    """Return its CPU time in ms."""
    begun = time.process_time()
    work()
    return 1000 * (time.process_time() - begun)


def main() -> None:
    """Measure, in turn, and print the medians."""
    warm_up_scans()
    table = made()
    rows, ids = table.column("values", slice(0, None)), table.index.ids()
    print(f"{ROWS:,} rows of {DIM} float32, the {K} nearest; CPU time in ms")
    for count in (1, 16, 64):
        queries = np.random.default_rng(1).normal(size=(count, DIM))
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        for metric in Metric:

            def ask(start: int, numbering: str, q: Any = queries, by: Metric = metric) -> Any:
                return ops.FindNearest(start, numbering, q, K, int(by))

            narrow = queries.astype(np.float32)
            ours, theirs, longest = [], [], 0.0
            for _ in range(REPETITIONS):
                ours.append(timed(lambda ask=ask: asked(table, ask)))
                theirs.append(
                    timed(lambda by=metric, q=narrow: [brute(rows, each, by) for each in q])
                )
            answers, longest = asked(table, ask)
            keys = np.concatenate([each.keys for each in answers], axis=1)
            found = np.concatenate([each.ids for each in answers], axis=1)
            best = np.take_along_axis(found, np.argsort(keys, axis=1)[:, :K], 1)
            expected = np.array([ids[brute(rows, each, metric)] for each in narrow])
            mine, others = statistics.median(ours), statistics.median(theirs)
            print(
                f"{count:3} queries, {metric.name.lower():6}: {mine:6.0f}, NumPy {others:6.0f}, "
                f"ratio {mine / others:.2f}; longest piece {1000 * longest:.1f}; "
                f"the same: {(best == expected).mean():.3f}"
            )
    ours = [
        timed(lambda: asked(table, lambda at, to: ops.MeasureRows(at, to, 10)))
        for _ in range(REPETITIONS)
    ]
    theirs = [
        timed(lambda: np.histogram(np.linalg.norm(rows, axis=1), 32)) for _ in range(REPETITIONS)
    ]
    mine, others = statistics.median(ours), statistics.median(theirs)
    print(f"norms: {mine:.0f}, NumPy {others:.0f}, ratio {mine / others:.2f}")


if __name__ == "__main__":
    main()
