"""Grain: clicks in memory, shuffled by index, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain

from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.elements import BATCH, works
from tests.benchmarks.beside.talking import serve


class Source:
    """Clicks, one by one."""

    def __init__(self) -> None:
        self._clicks = criteo.clicks()

    def __len__(self) -> int:
        return criteo.EXAMPLES

    def __getitem__(self, index: int) -> criteo.Batch:
        ids, numbers, labels = self._clicks
        return ids[index], numbers[index], labels[index]


def shuffled() -> Iterator[Any]:
    """Yield batches of shuffled clicks."""
    return _batches(grain.MapDataset.source(Source()).shuffle(seed=1))


def mapped() -> Iterator[Any]:
    """Yield batches of clicks to which a function was applied one by one."""
    return _batches(grain.MapDataset.source(Source()).map(lambda row: (row[0] + 1, *row[1:])))


def _batches(dataset: Any) -> Iterator[Any]:
    # Without threads it is twice as fast on two cores as with its 16, and with batches before
    # iteration a third faster than the other way round.
    alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return iter(dataset.batch(BATCH).repeat().to_iter_dataset(alone))


if __name__ == "__main__":
    serve("grain", works(shuffled, mapped))
