"""Partitions that another library holds or computes, such as Dask; read one after another.

The library is behind `PartitionSource`: this room does not know it. A partition may be computed
again where its worker was lost, or another part of it is read. So their sizes are kept, in states
and with an epoch over several parts (`KnownPartitions`): to continue in a partition that has other
rows is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from xxhash import xxh3_64

from psnb._src.data.block import Block, block_of, read_only
from psnb._src.data.formats.tables import columns_of, is_table
from psnb._src.data.nesting import is_text
from psnb._src.data.node import Context, Node, PartsIterator, State
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import Spec
from psnb._src.data.stacker import Stacker
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError


class PartitionSource(Protocol):
    """The partitions of a collection, by number; pickled for a worker, it reads them there."""

    def read(self, number: int) -> tuple[Block, int]:
        """Return the rows of a partition, and how many bytes came from another process for it.

        Raises
        ------
        DatasetError
            If it cannot be had, or has no form that elements have.
        """

    def spec(self) -> Spec:
        """Return the spec of its rows as far as it is known without reading; None if it is not."""


PartitionsOf = Callable[[Any, Sequence[str] | None], "Partitions"]
"""Returns the node that reads a collection, and of tables some columns."""

_load_reader: Callable[[], PartitionsOf] | None = None


def read_dask_with(load: Callable[[], PartitionsOf]) -> None:
    """Have what a function imports read Dask's collections: a higher layer, which knows Dask."""
    global _load_reader
    _load_reader = load


def partitions_of_dask(collection: Any, columns: Sequence[str] | None) -> Partitions:
    """Return the node that reads a Dask collection; see `Dataset.from_dask`."""
    if _load_reader is None:
        raise ConfigurationError("Dataset.from_dask needs psnb.data: import it")
    return _load_reader()(collection, columns)


class PartRange(NamedTuple):
    """Part ``part`` of ``of`` equal ones of a partition."""

    number: int
    part: int = 0
    of: int = 1


class KnownPartitions:
    """Rows and checksum of the partitions whose rows may have been used, by number.

    Parameters
    ----------
    known : iterable of list
        From `listed`.
    """

    def __init__(self, known: Iterable[Sequence[Any]] = ()) -> None:
        self._known: dict[int, tuple[int, str]] = {
            number: (rows, checksum) for number, rows, checksum in known
        }

    def add(self, found: Iterable[Sequence[Any]]) -> None:
        """Note what partitions are; changes nothing if it raises.

        Raises
        ------
        DatasetError
            If one is known with other rows.
        """
        new: dict[int, tuple[int, str]] = {}
        for number, rows, checksum in found:
            now = rows, checksum
            before = self._known.get(number, new.setdefault(number, now))
            if before != now:
                raise DatasetError(
                    f"{Partitions.name}: partition {number} was computed again, and has other "
                    f"rows: {now[0]} rows with checksum {now[1]}, and some were used of one with "
                    f"{before[0]} rows and checksum {before[1]}. Its graph must give the same rows "
                    "each time: give samples a seed (random_state=), read files that do not "
                    "change, and persist() the collection or write it to files if it cannot. "
                    "Begin another epoch then"
                )
        self._known |= new

    def listed(self) -> list[list[Any]]:
        """Return it in JSON's types."""
        return [[number, *known] for number, known in self._known.items()]


class _PartitionsIterator(PartsIterator):
    """The state: the part, how many of its rows were taken, and the known sizes of partitions."""

    def __init__(self, node: Partitions, context: Context, state: State) -> None:
        self._node, self._stage = node, context.stage
        self._index: int
        self._index, self._used, known = state or (0, 0, [])
        self._known, self._read_before = KnownPartitions(known), context.counters.partitions
        self._listed = [*known]
        self._blocks: dict[int, Block] = {}
        # A partition of which rows were used is refused here if it has other ones now.
        end = len(node.parts) if node.together else self._index + bool(known)
        begun = perf_counter()
        for index in range(len(node.parts))[self._index : end]:
            self._blocks[index] = self._read(index)
        if self._stage is not None:
            self._stage.seconds += perf_counter() - begun

    def state(self) -> State:
        if self._block is not None and self._used >= self._block.count:
            self._next()
        # The list itself: who reads on from here, and counts rows from here, has the checksum of
        # the partition in it that these are of.
        return [self._index, self._used, self._listed]

    def _advance(self) -> bool:
        if self._block is not None:
            self._next()
        if self._index == len(self._node.parts):
            return False
        if self._index not in self._blocks:
            try:
                self._blocks[self._index] = self._read(self._index)
            except DatasetError:
                self._next()
                raise
        self._block = self._blocks[self._index]
        return True

    def _next(self) -> None:
        self._blocks.pop(self._index, None)
        self._index, self._used, self._block = self._index + 1, 0, None
        if not self._node.together:
            self._known, self._listed = KnownPartitions(), []

    def _read(self, index: int) -> Block:
        number, part, of = self._node.parts[index]
        block, moved = self._node.source.read(number)
        if self._stage is not None:
            self._stage.moved += moved
        found = [number, block.count, checksum(block)]
        self._known.add([found])
        self._listed[:] = self._known.listed()
        self._read_before.append(found)
        return block.part(block.count * part // of, block.count * (part + 1) // of)


@dataclass(frozen=True, eq=False)
class Partitions(Node):
    """The rows of some partitions."""

    name: ClassVar[str] = "from_dask"
    iterator: ClassVar[Any] = _PartitionsIterator

    token: str
    """Tells the collection from others."""
    parts: tuple[PartRange, ...]
    source: PartitionSource = field(repr=False)
    together: bool = False
    """Whether all are read at the beginning: so that each state has all checksums."""

    def spec(self, run: bool) -> Spec:
        """Return what the source knows, or what the first row says."""
        known = self.source.spec()
        return self.first_spec() if known is None and run else known

    def brief(self) -> str:
        """Return its name alone: partitions differ from part to part of a dataset."""
        return self.name

    def cut(self, count: int) -> list[Partitions]:
        """Return about ``count`` splits: of some partitions each, or of equal parts of one."""
        of = max(1, count // max(1, len(self.parts)))
        parts = [
            PartRange(each.number, each.part * of + part, each.of * of)
            for each in self.parts
            for part in range(of)
        ]
        size = -(-len(parts) // max(1, count))
        return [
            replace(self, parts=tuple(parts[start : start + size]), together=True)
            for start in range(0, len(parts), size)
        ]


def rows_of_partition(value: Any, columns: list[str] | None = None) -> Block:
    """Return the rows of a partition: a table, an array, or an iterable of elements.

    Raises
    ------
    DatasetError
        If it has no such form, or as for `columns_of`.
    """
    if is_table(value):
        return read_only(block_of(columns_of(value, columns)))
    if hasattr(value, "to_frame") and hasattr(value, "dtype"):  # a series: of values
        (column,) = columns_of(value.to_frame("value")).values()
        return read_only(block_of(column))
    if isinstance(value, np.ndarray) and value.ndim:
        return read_only(block_of(value))
    if isinstance(value, dict | str | bytes) or not isinstance(value, Iterable):
        raise DatasetError(
            "a partition is a table, an array or a list of elements, and this one is "
            f"{shown(value)}"
        )
    stacker, elements = Stacker(), list(value)
    for element in elements:
        stacker.add(element)
    return stacker.block() if elements else Block(None, (np.empty(0),), 0)


def checksum(block: Block) -> str:
    """Return a checksum of rows: of their values and dtypes, not of where they lie."""
    digest = xxh3_64()
    for column in block.columns:
        _add(digest, column)
    return str(digest.hexdigest())


def _add(digest: Any, array: Any) -> None:
    if isinstance(array, Ragged):
        _add(digest, array.values)
        array = array.offsets
    if not isinstance(array, np.ndarray) or array.dtype != object:
        plain = np.ascontiguousarray(array)
        digest.update(f"{plain.dtype} {plain.shape}".encode())
        digest.update(plain.reshape(-1).view(np.uint8) if plain.size else b"")
        return
    leaves = array.tolist()
    try:  # of texts, in a tenth of the time
        texts = ["\1" if leaf is None else leaf for leaf in leaves]
        digest.update("\0".join(texts).encode("utf-8", "surrogatepass"))
    except TypeError:
        for leaf in leaves:
            digest.update(f"\0{type(leaf).__name__}".encode())
            if not is_text(leaf):
                _add(digest, leaf)
            elif leaf is not None:
                text = leaf.encode("utf-8", "surrogatepass") if isinstance(leaf, str) else leaf
                digest.update(text)
