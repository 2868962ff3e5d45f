"""Would it pay if workers kept rows that they have pulled, and asked only for what has changed?

``python -m tests.benchmarks.reuse``: a minute. Workers take turns with batches of 512, of the
flights and of ids after a Zipf law of exponent 1.1. Of the rows that a batch wants, it counts those
that its worker has pulled before; of these, those that nobody has pushed since, so that nothing
would have to travel; those that nobody *else* has pushed, which a worker could know if it applied
its own gradients itself, with the optimizer's state, as mode `BoundedStaleness` does; and those of
the worker's last batch: what is asked for while that one computes does not have its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from rich.console import Console
from rich.table import Table

from psnb.demo import flights

BATCH, BATCHES = 512, 400
WORKERS = (1, 2, 16)
ZIPF, IDS, FIELDS = 1.1, 1_000_000, 26


def of_flights() -> Iterator[np.ndarray]:
    """Yield the ids of batches, of all fields in one."""
    train, _ = flights.load()
    ids = train.ids + (np.arange(train.ids.shape[1]) << 40)
    for number in range(BATCHES):
        yield np.unique(ids[number * BATCH : (number + 1) * BATCH])


def of_zipf() -> Iterator[np.ndarray]:
    """Yield the ids of batches, of all fields in one."""
    rng = np.random.default_rng(0)
    fields = np.arange(FIELDS) * IDS
    while True:
        yield np.unique(rng.zipf(ZIPF, (BATCH, FIELDS)) % IDS + fields)


def shares(batches: Iterator[np.ndarray], workers: int) -> tuple[float, ...]:
    """Return the shares of rows pulled before, unchanged, unchanged by others, in the last batch.

    Every row that is pulled is pushed in the same step. The first half only fills the tables.
    """
    pulled: list[dict[int, int]] = [{} for _ in range(workers)]  # by id: at which step
    pushed: list[dict[int, int]] = [{} for _ in range(workers)]
    wanted = known = same = own = last_batch = 0
    for step, ids in enumerate(islice(batches, BATCHES)):
        worker = step % workers
        for number in ids.tolist():
            before = pulled[worker].get(number)
            if step >= BATCHES // 2:
                wanted += 1
                if before is not None:
                    last = [each.get(number, -1) for each in pushed]
                    known += 1
                    last_batch += before == step - workers
                    same += all(each < before for each in last)
                    own += all(each < before for i, each in enumerate(last) if i != worker)
            pulled[worker][number] = pushed[worker][number] = step
    return tuple(each / wanted for each in (known, same, own, last_batch))


def main() -> None:
    """Print the table."""
    table = Table(
        "ids", "workers", "pulled before", "unchanged", "unchanged by others", "in the last batch"
    )
    for name, batches in (("flights", of_flights), ("Zipf 1.1", of_zipf)):
        for workers in WORKERS:
            found = shares(batches(), workers)
            table.add_row(name, str(workers), *(f"{each:.0%}" for each in found))
    Console().print(table)


if __name__ == "__main__":
    main()
