"""Elements a second of `psnb.data` from memory, beside NumPy alone and tf.data.

Rows of 26 int32, 13 float32 and a label, shuffled, and put into batches of 512. NumPy alone copies
the same rows together by an index that is there: the ceiling. All in one run; the best of some
repetitions, by the clock on the wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from rich.console import Console
from rich.table import Table

from psnb.data import AUTOTUNE, Dataset
from tests.benchmarks import peers
from tests.benchmarks.rows import BATCH, BUFFER, COUNT, REPETITIONS, rows

PEER = "tests.benchmarks.tensorflow_data_peer"


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
    shuffled, mapped, mapped_batches = (
        peers.tensorflow(work, PEER) for work in ("shuffle", "map", "map batches")
    )
    table = Table("", "elements/s", "tf.data", "psnb / tf.data", title="psnb.data, from memory")

    def row(name: str, found: float, peer: float | None) -> None:
        shown = ("not installed", "") if peer is None else (f"{peer:,.0f}", f"{found / peer:.1f}")
        table.add_row(name, f"{found:,.0f}", *shown)

    row("NumPy alone, batches by an index", rate(gathered), shuffled)
    row("shuffle, batch", rate(lambda: batches), shuffled)
    row("shuffle, batch, prefetch", rate(lambda: batches.prefetch(AUTOTUNE)), shuffled)
    row("shuffle of all, batch", rate(lambda: source.shuffle(COUNT).batch(BATCH)), shuffled)
    row("shuffle of a stream, batch", rate(lambda: streamed), shuffled)
    row(
        "map of whole batches, batch",
        rate(lambda: source.map(lambda a, b, c: (a + 1, b, c), batched=True).batch(BATCH)),
        mapped_batches,
    )
    row(
        "map one by one, batch",
        rate(lambda: some.map(lambda a, b, c: (a + 1, b, c)).batch(BATCH), COUNT // 5),
        mapped,
    )
    Console().print(table)


if __name__ == "__main__":
    main()
