"""NumberedExamples: examples with their numbers, as they are kept, sent and written. Pure."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from typing import NamedTuple

import cloudpickle
import numpy as np

from psnb._src.data.block import Block, Column, concatenate
from psnb._src.data.ragged import Ragged


class NumberedExamples(NamedTuple):
    """Examples of one piece.

    Attributes
    ----------
    numbers : numpy.ndarray
        See `psnb._src.data.memory.shuffle_plan`; uint64 ``(n,)``.
    block : Block
        The examples.
    """

    numbers: np.ndarray
    block: Block

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory."""
        return int(self.numbers.nbytes + sum(map(_bytes_of, self.block.columns)))

    def take(self, places: np.ndarray) -> NumberedExamples:
        """Copy some examples together."""
        return NumberedExamples(self.numbers[places], self.block.take(places))

    def part(self, start: int, stop: int) -> NumberedExamples:
        """Return consecutive examples, as views."""
        return NumberedExamples(self.numbers[start:stop], self.block.part(start, stop))


def joined(chunks: Sequence[NumberedExamples]) -> NumberedExamples:
    """Return the examples of all chunks, in order; there must be at least one chunk."""
    if len(chunks) == 1:
        return chunks[0]
    numbers = np.concatenate([chunk.numbers for chunk in chunks])
    return NumberedExamples(numbers, concatenate([chunk.block for chunk in chunks]))


def packed(generation: int, parcels: Sequence[tuple[int, NumberedExamples]]) -> bytes:
    """Return chunks of a generation, each with its piece, as bytes."""
    # Elements may be of a class that a notebook defines.
    data: bytes = cloudpickle.dumps((generation, parcels), protocol=5)
    return data


def unpacked(data: bytes) -> tuple[int, list[tuple[int, NumberedExamples]]]:
    """Return the arguments of `packed`."""
    found: tuple[int, list[tuple[int, NumberedExamples]]] = pickle.loads(data)
    return found


def _bytes_of(column: Column) -> int:
    if isinstance(column, Ragged):
        return _bytes_of(column.values) + column.offsets.nbytes
    if column.dtype == object:
        return column.nbytes + sum(
            getattr(leaf, "nbytes", 0) or sys.getsizeof(leaf) for leaf in column.ravel().tolist()
        )
    return column.nbytes
