"""Elements that are kept when they are read for the first time, in memory or in files.

In files, they are a folder of parts, and ``cache.json`` that lists them. It is written next to its
place and renamed into it when it is complete.

Threads: several iterations may fill a cache at the same time; the first that completes provides it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block, concatenate, read_only
from psnb._src.data.node import Context, Node, NodeIterator, State
from psnb._src.data.nodes.parts import PartReader, PartsWriter, part_name, writing
from psnb._src.data.reader import Reader
from psnb.errors import DatasetError

logger = logging.getLogger("psnb")


_FORMAT = 3

_ADVICE = "; or use cache() without a filename"


@contextmanager
def _reading(folder: str, name: str) -> Iterator[None]:
    """Translate errors of a cache's files to `DatasetError`."""
    try:
        yield
    except Exception as error:  # as `PartReader` says
        raise DatasetError(
            f"cache: {os.path.join(folder, name)} cannot be read: {type(error).__name__}: {error}; "
            f"delete the folder {folder}, and it is made again"
        ) from error


class CacheFiles:
    """Elements in a folder."""

    def __init__(self, folder: str, listed: dict[str, Any]) -> None:
        self._folder = folder
        self.counts: list[int] = listed["counts"]
        self.seed: int = listed["seed"]
        numbers = [self.seed, *self.counts]
        if any(type(each) is not int for each in numbers) or min(self.counts, default=1) < 1:
            raise ValueError("its counts or its seed are not numbers")

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
                raise DatasetError(f"cache: {folder} exists, but is not a cache")
            return None
        with _reading(folder, "cache.json"):
            with open(path, encoding="utf-8") as file:
                listed = json.load(file)
            same = (listed["format"], listed["chain"]) == (_FORMAT, chain)
            kept = cls(folder, listed) if same else None
        if kept is None:
            raise DatasetError(
                f"cache: {folder} was written by another dataset, or another version of psnb; "
                "delete it or use another folder"
            )
        return kept

    def part(self, index: int) -> Block:
        """Read the elements of a part."""
        name = part_name(index)
        with _reading(self._folder, name), open(os.path.join(self._folder, name), "rb") as file:
            block = PartReader(file).block()
            if block.count != self.counts[index]:
                raise ValueError("it has not as many elements as are listed")
        return read_only(block)


class CacheWriter:
    """Writes elements in order."""

    def __init__(self, folder: str, chain: str, seed: int) -> None:
        self._folder, self._chain, self._seed = folder, chain, seed
        parent = os.path.dirname(os.path.abspath(folder))
        with writing("cache", folder):
            os.makedirs(parent, exist_ok=True)
            self._place = tempfile.mkdtemp(prefix=os.path.basename(folder) + ".", dir=parent)
        self._parts = PartsWriter(self._place)
        self._remove = weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)

    def add(self, block: Block) -> None:
        with writing("cache", self._folder, _ADVICE):
            self._parts.add(block)

    def finish(self) -> None:
        """Rename the folder to its final name, unless another iteration was faster."""
        with writing("cache", self._folder, _ADVICE):
            self._parts.finish()
            listed = {
                "format": _FORMAT,
                "chain": self._chain,
                "seed": self._seed,
                "counts": self._parts.counts,
            }
            with open(os.path.join(self._place, "cache.json"), "w", encoding="utf-8") as file:
                json.dump(listed, file)
            try:
                os.rename(self._place, self._folder)
                self._remove.detach()
            except OSError:
                if not os.path.exists(os.path.join(self._folder, "cache.json")):
                    raise
        self.close()

    def close(self) -> None:
        """Remove what is not complete; idempotent."""
        self._remove()


class _InMemory:
    def __init__(self, seed: int, block: Block | None) -> None:
        self.seed, self._block = seed, block
        self.counts = [] if block is None else [block.count]

    def part(self, index: int) -> Block:
        assert self._block is not None  # there are no parts then
        return self._block


class _MemoryCache:
    """The cached elements of a node; not pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards `kept`; never held while anything is read
        self.kept: _InMemory | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _MemoryCache, ()


class _MemoryWriter:
    def __init__(self, memory: _MemoryCache, seed: int) -> None:
        self._memory, self._seed, self._blocks = memory, seed, list[Block]()

    def add(self, block: Block) -> None:
        self._blocks.append(block)

    def finish(self) -> None:
        block = read_only(concatenate(self._blocks)) if self._blocks else None
        with self._memory.lock:
            self._memory.kept = self._memory.kept or _InMemory(self._seed, block)

    def close(self) -> None:
        self._blocks = []


@dataclass(frozen=True, eq=False)
class Cache(Node):
    """Reads its input once."""

    name: ClassVar[str] = "cache"
    one_to_one: ClassVar[bool] = True

    source: Node
    filename: str | None = None
    memory: _MemoryCache = field(default_factory=_MemoryCache, repr=False)

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin, with the cache if it is complete, else with the input."""
        return _CacheIterator(self, context, state)

    def kept(self) -> Any:
        """Return the cached elements; None if they are not complete yet."""
        if self.filename is not None:
            return CacheFiles.open(self.filename, self.source.fingerprint())
        with self.memory.lock:
            return self.memory.kept

    def writer(self, seed: int) -> Any:
        """Return a writer for elements."""
        if self.filename is not None:
            return CacheWriter(self.filename, self.source.fingerprint(), seed)
        return _MemoryWriter(self.memory, seed)


class _CacheIterator(NodeIterator):
    """The state: the next element's number, the seed all were read with, errors so far."""

    def __init__(self, node: Cache, context: Context, state: State) -> None:
        self._position: int
        self._errors: int
        self._position, seed, self._errors = state or (0, None, 0)
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
        self._writer = node.writer(self._seed)

    def next_block(self, limit: int) -> Block | None:
        if self._reader is None:
            return self._from_kept(limit)
        while True:
            try:
                block = self._read(self._reader, min(self._behind or limit, BLOCK))
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
            if self._writer is not None:
                self._writer.close()

    def _read(self, reader: Reader, limit: int) -> Block | None:
        try:
            block = reader.take(limit)
            if self._writer is None:
                return block
            if block is not None:
                block = read_only(block)
                self._writer.add(block)
                return block
            self._writer.finish()
        except DatasetError:
            if self._writer is not None:
                self._writer.close()
                self._writer = None  # a cache that lacks an element is not kept
            raise
        self._writer = None
        return None

    def _from_kept(self, limit: int) -> Block | None:
        index = int(np.searchsorted(self._ends, self._position, "right"))
        if index == len(self._ends):
            return None
        if self._part is None or self._part[0] != index:
            self._part = index, self._kept.part(index)
        block = self._part[1]
        start = self._position - (int(self._ends[index]) - block.count)
        part = block.part(start, min(start + limit, block.count))
        self._position += part.count
        return part
