"""A cache in files: a folder of ``.npz`` files without pickles, and ``cache.json`` that lists them.

It is written beside its place and renamed into it when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zipfile import ZipFile

import numpy as np

from psnb._src.data.block import Block, concatenate, read_only
from psnb._src.data.kept_columns import (
    Arrays,
    columns_as_arrays,
    columns_from,
    nesting_as_json,
    nesting_from,
)
from psnb._src.data.nesting import paths
from psnb.errors import DatasetError

_PART_BYTES = 1 << 24
_FORMAT = 1


@contextmanager
def _reading(folder: str, name: str) -> Iterator[None]:
    """Translate errors of a cache's files to `DatasetError`."""
    try:
        yield
    except Exception as error:
        # NumPy's and Python's parsers raise errors of many classes for damaged files.
        raise DatasetError(
            f"cache: {os.path.join(folder, name)} cannot be read: {type(error).__name__}: {error}; "
            f"delete the folder {folder}, and it is made again"
        ) from error


class CacheFiles:
    """Elements in a folder."""

    def __init__(self, folder: str, listed: dict[str, Any]) -> None:
        self._folder = folder
        self._nesting = nesting_from(listed["nesting"])
        self._leaves = len(paths(self._nesting))
        self.counts: list[int] = listed["counts"]
        self.seed: int = listed["seed"]
        self._loose: bool = listed["loose"]
        numbers = [self.seed, *self.counts]
        if any(type(each) is not int for each in numbers) or min(self.counts, default=1) < 1:
            raise ValueError("its counts or its seed are no numbers")

    @classmethod
    def open(cls, folder: str, chain: str) -> CacheFiles | None:
        """Return the cache in a folder; None if there is none.

        Raises
        ------
        DatasetError
            If it is the cache of another chain.
        """
        path = os.path.join(folder, "cache.json")
        if not os.path.exists(path):
            if os.path.exists(folder):
                raise DatasetError(f"cache: {folder} exists, but is no cache")
            return None
        with _reading(folder, "cache.json"):
            with open(path, encoding="utf-8") as file:
                listed = json.load(file)
            same = (listed["format"], listed["chain"]) == (_FORMAT, chain)
            kept = cls(folder, listed) if same else None
        if kept is None:
            raise DatasetError(
                f"cache: {folder} was written by another dataset; delete it or use another folder"
            )
        return kept

    def part(self, index: int) -> Block:
        """Read the elements of a part."""
        name, count = f"{index}.npz", self.counts[index]
        with _reading(self._folder, name), ZipFile(os.path.join(self._folder, name)) as file:
            columns = columns_from(Arrays(file), self._leaves, count)
        return read_only(Block(self._nesting, columns, count, loose=self._loose))


class CacheWriter:
    """Writes elements in order."""

    def __init__(self, folder: str, chain: str, seed: int) -> None:
        self._folder, self._chain, self._seed = folder, chain, seed
        self._blocks: list[Block] = []
        self._bytes = 0
        self._counts: list[int] = []
        self._nesting: Any = None
        self._loose = False
        parent = os.path.dirname(os.path.abspath(folder))
        try:
            os.makedirs(parent, exist_ok=True)
            self._place = tempfile.mkdtemp(prefix=os.path.basename(folder) + ".", dir=parent)
        except OSError as error:
            raise DatasetError(f"cache: {folder} cannot be written: {error}") from error
        self._remove = weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)

    def add(self, block: Block) -> None:
        """Write some elements."""
        self._blocks.append(block)
        self._loose = self._loose or block.loose
        self._bytes += sum(column.nbytes for column in block.columns)
        if self._bytes >= _PART_BYTES:
            self._write()

    def finish(self) -> None:
        """Rename the folder to its final name, unless another iteration was faster."""
        if self._blocks:
            self._write()
        listed = {
            "format": _FORMAT,
            "chain": self._chain,
            "seed": self._seed,
            "counts": self._counts,
            "nesting": self._nesting,
            "loose": self._loose,
        }
        try:
            with open(os.path.join(self._place, "cache.json"), "w", encoding="utf-8") as file:
                json.dump(listed, file)
            os.rename(self._place, self._folder)
            self._remove.detach()
        except OSError as error:
            if not os.path.exists(os.path.join(self._folder, "cache.json")):
                raise DatasetError(f"cache: {self._folder} cannot be written: {error}") from error
        self.close()

    def close(self) -> None:
        """Remove what is not complete; idempotent."""
        self._remove()

    def _write(self) -> None:
        block = concatenate(self._blocks)
        try:
            self._nesting = nesting_as_json(block.nesting)
            arrays = columns_as_arrays(block)
        except DatasetError as error:
            raise DatasetError(f"cache: {error}; or use cache() without a filename") from error
        try:
            np.savez(os.path.join(self._place, f"{len(self._counts)}.npz"), **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise DatasetError(f"cache: {self._folder} cannot be written: {error}") from error
        self._counts.append(block.count)
        self._blocks, self._bytes = [], 0
