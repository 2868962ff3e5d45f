"""Elements as plain Python objects, which compare, and files to read in tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb.data import Dataset, Ragged
from psnb.errors import DatasetError


def plain(element: Any) -> Any:
    """Return an element as Python's own objects."""
    if isinstance(element, Dataset):
        return [plain(each) for each in element]
    if isinstance(element, Ragged):
        return {"ragged": element.to_list()}
    if isinstance(element, tuple):
        return tuple(plain(each) for each in element)
    if isinstance(element, dict):
        return {key: plain(each) for key, each in element.items()}
    if dataclasses.is_dataclass(element):
        return [plain(getattr(element, field.name)) for field in dataclasses.fields(element)]
    return element.tolist() if isinstance(element, (np.ndarray, np.generic)) else element


def values(dataset: Any) -> list[Any]:
    """Return all elements of a dataset, or those left of an iterator."""
    return [plain(element) for element in dataset]


@dataclass(frozen=True)
class Part:
    """Consecutive records, as formats yield them."""

    columns: Any
    count: int
    first: int
    next_offset: int


@dataclass(frozen=True)
class Numbers:
    """Reads "files" that are numbers: ``"7"`` has the records 70 to 76, in parts of three.

    An offset is the number of a record. The record that ``bad`` says cannot be read.
    """

    bad: int = -1

    def read(self, path: str, offset: int, first: int, end: int | None) -> Iterator[Part]:
        count = int(path) if end is None else min(int(path), end)
        for start in range(offset, count, 3):
            stop = min(start + 3, count)
            records = np.arange(start, stop) + 10 * int(path)
            if self.bad in records:
                raise DatasetError(f"{path}, record {start + 1}: not good")
            yield Part(records, stop - start, first + start - offset, stop)
