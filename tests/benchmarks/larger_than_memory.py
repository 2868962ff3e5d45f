"""A shard of a table on disk, or in memory: rows a second, and a copy of it through a snapshot.

    python -m tests.benchmarks.larger_than_memory disk|memory [ROWS] [MIB]

Rows of 64 float32 with Adagrad, so 512 bytes, of any id, in this process. All are made; then ids
are looked up and pushed in batches that are drawn after Zipf with exponent 1.1, whose popularity
has nothing to do with where they are; then a snapshot is read into a second table. ``MIB`` is what
Dask's ``memory_limit`` would be, for which pages are unmapped. To bound the page cache, run it in a
memory cgroup.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time

import numpy as np
import psutil

from psnb._src.server.disk import DiskSpace
from psnb._src.server.optimizers import Adagrad
from psnb._src.server.snapshots import snapshot
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.sparse import SparseTable
from tests.server.writes import push

DIM, BATCH, EXPONENT, SECONDS, PIECE = 64, 26 * 512, 1.1, 6.0, 8192


class _Peak:
    """The most resident memory of this process, and that without files."""

    def __init__(self) -> None:
        self._most = [0, 0]
        threading.Thread(target=self._watch, name="peak", daemon=True).start()

    def take(self) -> str:
        """Return them since the last time."""
        (resident, own), self._most = self._most, [0, 0]
        return f"at most {resident >> 20} MiB resident, {own >> 20} MiB without files"

    def _watch(self) -> None:
        process = psutil.Process()
        while True:
            found = process.memory_info()
            self._most[:] = map(max, self._most, (found.rss, found.rss - found.shared))
            time.sleep(0.01)


def _train(table: SparseTable, rows: int) -> float:
    """Return rows a second that are looked up and pushed."""
    chance = np.random.default_rng(1)
    sums = np.cumsum(np.arange(1, rows + 1) ** -EXPONENT)
    by_rank = chance.permutation(rows).astype(np.uint64)
    gradients, spent, steps = np.ones((BATCH, DIM), np.float32), 0.0, 0
    while spent < SECONDS:
        ids = by_rank[np.searchsorted(sums, chance.random(BATCH) * sums[-1])]
        distinct = np.unique(ids)
        begin = time.perf_counter()
        table.lookup(ids)
        push(table, distinct, gradients[: distinct.size])
        spent, steps = spent + time.perf_counter() - begin, steps + 1
    return steps * BATCH / spent


def main(storage: str, rows: int = 1_500_000, limit: int = 0) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place, peak = DiskSpace(folder, (limit << 20) or None), _Peak()

        def empty() -> SparseTable:
            form = "t", DIM, None, 0, 1, "float32", Uniform(), 7, Adagrad(0.1)
            return SparseTable(*form, storage=storage, disk=place)

        table, begin = empty(), time.perf_counter()
        for start in range(0, rows, 50_000):
            table.lookup(np.arange(start, min(start + 50_000, rows), dtype=np.uint64))
        print(f"made: {rows / (time.perf_counter() - begin):,.0f} rows/s, {peak.take()}")
        _train(table, rows)  # what is popular is in the caches
        print(f"looked up and pushed: {_train(table, rows):,.0f} rows/s, {peak.take()}")
        begin, taken, copy = time.perf_counter(), snapshot(table), empty()
        copy.make_room(rows)
        for start in range(0, rows, PIECE):
            copy.put(taken.read(start, min(start + PIECE, rows)))
        print(f"snapshot, loaded again: {time.perf_counter() - begin:.1f} s, {peak.take()}")
        place.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
