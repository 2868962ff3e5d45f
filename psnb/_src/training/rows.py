"""rows_of: how many examples an element of a dataset has. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from psnb._src.data import DatasetIterator, Ragged, flatten


def rows_of(element: Any) -> int:
    """Return the length of the first array or `Ragged` of a batch; 1 if there is none."""
    for leaf in flatten(element)[0]:
        if isinstance(leaf, Ragged) or (isinstance(leaf, np.ndarray) and leaf.ndim):
            return len(leaf)
    return 1


class CountedRows(Iterator[Any]):
    """An iterator that counts what is taken from it.

    Parameters
    ----------
    iterator : DatasetIterator
        What it takes from.

    Attributes
    ----------
    rows, batches : int
        Taken so far.
    ended : bool
        Whether it was found at its end.
    """

    def __init__(self, iterator: DatasetIterator) -> None:
        self._iterator = iterator
        self.rows = self.batches = 0
        self.ended = False

    def __next__(self) -> Any:
        try:
            element = next(self._iterator)
        except StopIteration:
            self.ended = True
            raise
        self.rows += rows_of(element)
        self.batches += 1
        return element
