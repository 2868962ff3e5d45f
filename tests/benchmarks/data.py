"""Elements a second of `psnb.data` from memory, by way of making batches, beside NumPy alone.

Rows of 26 int32, 13 float32 and a label, shuffled, and put into batches of 512. NumPy alone copies
the same rows together by an index that is there: the ceiling. All in one run; the best of some
repetitions, by the clock on the wall. Others than psnb: `tests.benchmarks.beside`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from rich.console import Console
from rich.table import Table

from psnb.data import AUTOTUNE, Dataset
from tests.benchmarks.rows import BATCH, BUFFER, COUNT, REPETITIONS, rows


def rate(work: Callable[[], Iterable[object]], count: int = COUNT) -> float:
    """Return elements a second, the best of some repetitions after one to warm up."""
    rates = []
    for _ in range(1 + REPETITIONS):
        begin = time.perf_counter()
        for _ in work():
            pass
        rates.append(count / (time.perf_counter() - begin))
    return max(rates[1:])


def main() -> None:
    """Run all and print a table."""
    arrays = rows()
    order = np.random.default_rng(1).permutation(COUNT)

    def gathered() -> Iterable[object]:
        for start in range(0, COUNT, BATCH):
            yield [array.take(order[start : start + BATCH], 0) for array in arrays]

    source = Dataset.from_tensor_slices(arrays)
    batches = source.shuffle(BUFFER).batch(BATCH)
    streamed = source.ignore_errors().shuffle(BUFFER).batch(BATCH)
    some = source.take(COUNT // 5)
    table = Table("", "elements/s", title="psnb.data, from memory")

    def row(name: str, found: float) -> None:
        table.add_row(name, f"{found:,.0f}")

    row("NumPy alone, batches by an index", rate(gathered))
    row("shuffle, batch", rate(lambda: batches))
    row("shuffle, batch, prefetch", rate(lambda: batches.prefetch(AUTOTUNE)))
    row("shuffle of all, batch", rate(lambda: source.shuffle(COUNT).batch(BATCH)))
    row("shuffle of a stream, batch", rate(lambda: streamed))
    row(
        "map of whole batches, batch",
        rate(lambda: source.map(lambda a, b, c: (a + 1, b, c), batched=True).batch(BATCH)),
    )
    row(
        "map one by one, batch",
        rate(lambda: some.map(lambda a, b, c: (a + 1, b, c)).batch(BATCH), COUNT // 5),
    )
    Console().print(table)


if __name__ == "__main__":
    main()
