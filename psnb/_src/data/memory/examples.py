"""Examples of a dataset in memory, with their permanent numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psnb._src.data.block import Block, column_bytes, concatenate, take
from psnb._src.data.memory.shuffle_plan import SlotShuffle
from psnb._src.data.nesting import paths
from psnb._src.utils.text import shown
from psnb.errors import DatasetError


class NumberedExamples(NamedTuple):
    """Examples of one partition.

    Attributes
    ----------
    numbers : numpy.ndarray
        See `numbered`; uint64 ``(n,)``.
    block : Block
        The examples.
    """

    numbers: np.ndarray
    block: Block

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory."""
        return int(self.numbers.nbytes + sum(map(column_bytes, self.block.columns)))

    def take(self, places: np.ndarray) -> NumberedExamples:
        """Copy some examples together."""
        return NumberedExamples(self.numbers[places], self.block.take(places))

    def exchanged(self, exchange: SlotShuffle) -> NumberedExamples:
        """Return these examples with some columns' values exchanged.

        Raises
        ------
        DatasetError
            If they are not dicts with such columns, or there is one example only.
        """
        nesting = self.block.nesting
        keys = nesting.keys if nesting is not None and nesting.kind is dict else ()
        missing = [name for name in exchange.slots if name not in keys]
        if nesting is None or missing:
            raise DatasetError(
                f"slots_shuffle: there is no slot {shown(missing[0])}; there are "
                f"{shown(list(keys))}"
            )
        if len(self.numbers) == 1:
            raise DatasetError(
                "slots_shuffle: a partition of the dataset has one example only, which has none to "
                "exchange values with: use more examples, or fewer partitions (splits=)"
            )
        donors = exchange.donors(self.numbers)
        owners = [
            key for key, child in zip(keys, nesting.children, strict=True) for _ in paths(child)
        ]
        columns = tuple(
            take(column, donors) if owner in exchange.slots else column
            for owner, column in zip(owners, self.block.columns, strict=True)
        )
        return NumberedExamples(self.numbers, self.block._replace(columns=columns))

    def part(self, start: int, stop: int) -> NumberedExamples:
        """Return consecutive examples, as views."""
        return NumberedExamples(self.numbers[start:stop], self.block.part(start, stop))


def joined(chunks: Sequence[NumberedExamples]) -> NumberedExamples:
    """Return the examples of all chunks, in order; there must be at least one chunk."""
    if len(chunks) == 1:
        return chunks[0]
    numbers = np.concatenate([chunk.numbers for chunk in chunks])
    return NumberedExamples(numbers, concatenate([chunk.block for chunk in chunks]))
