"""A part of the elements that `Dataset.save` has written: an ``.npz`` file without pickles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zipfile import ZipFile

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.formats.chunk import CHUNK_RECORDS, Chunk
from psnb._src.data.formats.open_files import size_of, stored
from psnb._src.data.kept_columns import (
    Arrays,
    columns_as_arrays,
    columns_from,
    nesting_as_json,
    nesting_from,
)
from psnb._src.data.nesting import paths
from psnb.errors import DatasetError

_VERSION = 1


def part_arrays(block: Block) -> dict[str, np.ndarray]:
    """Return what a part's file holds.

    Raises
    ------
    DatasetError
        If elements are no arrays, `Ragged` or text, in tuples and dicts.
    """
    head = {
        "version": _VERSION,
        "count": block.count,
        "loose": block.loose,
        "nesting": nesting_as_json(block.nesting),
    }
    return {"head": np.array(json.dumps(head)), **columns_as_arrays(block)}


@dataclass(frozen=True)
class SavedPart:
    """Reads a part; offsets are numbers of elements in it."""

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the elements with the numbers ``[offset, end)``.

        Raises
        ------
        DatasetError
            If the file is damaged, or none of a saved dataset.
        """
        with _opened(path) as (arrays, head):
            nesting, count, loose = nesting_from(head["nesting"]), head["count"], head["loose"]
            columns = columns_from(arrays, len(paths(nesting)), count)
        block = Block(nesting, columns, count, loose=loose)
        stop = count if end is None else min(end, count)
        for begin in range(offset, stop, CHUNK_RECORDS):
            part = block.part(begin, min(begin + CHUNK_RECORDS, stop))
            number = first + begin - offset
            yield Chunk(part.whole(), part.count, number, begin + part.count, loose)

    def cardinality(self, path: str, offset: int = 0, end: int | None = None) -> int:
        """Return how many elements a range of the file has."""
        with _opened(path) as (_, head):
            count: int = head["count"]
        return max(0, (count if end is None else min(end, count)) - offset)

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes."""
        count = self.cardinality(path)
        step = max(1, count * size // max(1, size_of(path)))
        cuts = list(range(0, count, step))
        return list(zip(cuts, [*cuts[1:], None], strict=True))


@contextmanager
def _opened(path: str) -> Iterator[tuple[Arrays, dict[str, Any]]]:
    try:
        with stored(path) as file, ZipFile(file) as archive:
            arrays = Arrays(archive)
            head = json.loads(str(arrays["head"]))
            if head["version"] != _VERSION:
                raise ValueError(f"it is of version {head['version']}, this psnb reads {_VERSION}")
            if type(head["count"]) is not int or head["count"] < 1:
                raise ValueError("its count is no number")
            yield arrays, head
    except DatasetError:
        raise
    except Exception as error:
        # NumPy's and Python's parsers raise errors of many classes for damaged files.
        raise DatasetError(
            f"{path} is no part of a saved dataset, or damaged: {type(error).__name__}: {error}; "
            "save the dataset again"
        ) from error
