"""Elements that are kept when they are read for the first time, in memory or in files.

In files, they are a folder of parts, and ``cache.json`` that lists them. It is written next to its
place and renamed into it when it is complete.

Threads: several iterations may fill a cache at the same time; the first that completes provides it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block, concatenate, read_only
from psnb._src.data.formats.files import translated
from psnb._src.data.node import Context, Node, NodeIterator, State
from psnb._src.data.nodes.parts import PartReader, PartsWriter, part_name
from psnb._src.data.reader import Reader
from psnb.errors import DatasetError

_FORMAT, _LIST = 3, "cache.json"


@dataclass(frozen=True)
class _Kept:
    """All elements of a cache, in parts.

    Parameters
    ----------
    seed : int
        The seed that they were read with.
    counts : list of int
        How many elements each part has.
    part : callable
        Returns a part, by its number.
    """

    seed: int
    counts: list[int]
    part: Callable[[int], Block]


def _reading(folder: str, name: str) -> AbstractContextManager[None]:
    """Translate errors of a cache's files to `DatasetError`."""
    problem = f"cache: {os.path.join(folder, name)} cannot be read"
    return translated(folder, problem, f"; delete the folder {folder}, and it is made again")


def _opened(folder: str, chain: str) -> _Kept | None:
    """Return the cache in a folder; None if there is none.

    Raises
    ------
    DatasetError
        If it is the cache of another chain.
    """
    path = os.path.join(folder, _LIST)
    if not os.path.exists(path):
        if os.path.exists(folder):
            raise DatasetError(f"cache: {folder} exists, but is not a cache")
        return None
    with _reading(folder, _LIST):
        with open(path, encoding="utf-8") as file:
            listed = json.load(file)
        if (listed["format"], listed["chain"]) != (_FORMAT, chain):
            raise DatasetError(
                f"cache: {folder} was written by another dataset, or another version of psnb; "
                "delete it or use another folder"
            )
        seed, counts = listed["seed"], listed["counts"]
        if any(type(each) is not int for each in (seed, *counts)) or min(counts, default=1) < 1:
            raise ValueError("its counts or its seed are not numbers")
    return _Kept(seed, counts, partial(_part, folder, counts))


def _part(folder: str, counts: list[int], index: int) -> Block:
    name = part_name(index)
    with _reading(folder, name), open(os.path.join(folder, name), "rb") as file:
        block = PartReader(file).block()
        if block.count != counts[index]:
            raise ValueError("it has not as many elements as are listed")
    return read_only(block)


class _MemoryCache:
    """The cached elements of a node; not pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards `kept`; never held while anything is read
        self.kept: _Kept | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _MemoryCache, ()


class _CacheIterator(NodeIterator):
    """The state: the next element's number, the seed all were read with, errors so far."""

    def __init__(self, node: Cache, context: Context, state: State) -> None:
        self._position: int
        self._errors: int
        self._position, seed, self._errors = state or (0, None, 0)
        self._node = node
        self._part: tuple[int, Block] | None = None
        self._reader: Reader | None = None
        kept = node.kept()
        if kept is not None and seed in (None, kept.seed):
            self._kept, self._seed = kept, kept.seed
            self._ends = np.cumsum(kept.counts, dtype=np.int64)
            return
        # The cache has the elements of the first epoch.
        below = context.child(0)
        below = replace(below, epoch=0, seed=below.seed if seed is None else seed)
        self._seed = below.seed
        # How much was returned and raised before the state was taken.
        self._behind, self._known = self._position, self._errors
        self._reader = Reader(node.source, below)
        self._read: PartsWriter | list[Block] | None = node.beginning()

    def next_block(self, limit: int) -> Block | None:
        if self._reader is None:
            return self._from_kept(limit)
        while True:
            try:
                block = self._take(self._reader, min(self._behind or limit, BLOCK))
            except DatasetError:
                if self._known:
                    self._known -= 1
                    continue
                self._errors += 1
                raise
            if block is None or not self._behind:
                break
            self._behind -= block.count
        if block is not None:
            self._position += block.count
        return block

    def state(self) -> State:
        return [self._position, self._seed, self._errors]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._forget()

    def _take(self, reader: Reader, limit: int) -> Block | None:
        try:
            block = reader.take(limit)
            if self._read is None:
                return block
            if block is not None:
                block = read_only(block)
                self._read.append(block)
                return block
            self._node.keep(self._read, self._seed)
        except DatasetError:
            self._forget()  # a cache that lacks an element is not kept
            raise
        self._forget()
        return None

    def _forget(self) -> None:
        """Remove what was written and is not complete."""
        if isinstance(self._read, PartsWriter):
            self._read.remove()
        self._read = None

    def _from_kept(self, limit: int) -> Block | None:
        index = int(np.searchsorted(self._ends, self._position, "right"))
        if index == len(self._ends):
            return None
        if self._part is None or self._part[0] != index:
            self._part = index, self._kept.part(index)
        block = self._part[1]
        start = self._position - (int(self._ends[index]) - block.count)
        part = block.part(start, start + limit)
        self._position += part.count
        return part


@dataclass(frozen=True, eq=False)
class Cache(Node):
    """Reads its input once."""

    name: ClassVar[str] = "cache"
    iterator: ClassVar[Any] = _CacheIterator
    one_to_one: ClassVar[bool] = True

    source: Node
    filename: str | None = None
    # Not of another input: a chain with other files has one of its own.
    memory: _MemoryCache = field(default_factory=_MemoryCache, init=False, repr=False)

    def kept(self) -> _Kept | None:
        """Return the cached elements; None if they are not complete yet."""
        if self.filename is not None:
            return _opened(self.filename, self.source.fingerprint())
        with self.memory.lock:
            return self.memory.kept

    def beginning(self) -> PartsWriter | list[Block]:
        """Return what elements are appended to, until `keep` gets it."""
        if self.filename is None:
            return []
        return PartsWriter("cache", self.filename, 0o700, "; or use cache() without a filename")

    def keep(self, read: PartsWriter | list[Block], seed: int) -> None:
        """Keep all elements, unless another iteration was faster."""
        if isinstance(read, PartsWriter):
            assert self.filename is not None
            chain = self.source.fingerprint()
            read.finish(_LIST, {"format": _FORMAT, "chain": chain, "seed": seed})
            with read.errors():
                try:
                    os.rename(read.place, self.filename)
                except OSError:
                    if not os.path.exists(os.path.join(self.filename, _LIST)):
                        raise
            return
        parts = [read_only(concatenate(read))] if read else []
        kept = _Kept(seed, [each.count for each in parts], parts.__getitem__)
        with self.memory.lock:
            self.memory.kept = self.memory.kept or kept
