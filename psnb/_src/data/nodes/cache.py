"""Elements that are kept when they are read for the first time, in memory or in files.

Threads: several iterations may fill a cache at the same time; the first that completes provides it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from psnb._src.data.block import BLOCK, Block, Column, concatenate, read_only
from psnb._src.data.formats.files import CHUNK_RECORDS, Chunk, size_of, stored
from psnb._src.data.node import Context, Node, NodeIterator, State
from psnb._src.data.ragged import Ragged
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Nest, Nesting, is_text, kind_of, paths
from psnb._src.utils.checks import path_text
from psnb._src.utils.files import is_local
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

logger = logging.getLogger("psnb")

# Blocks as named arrays, as files keep them, without pickles. Pure.

_MISSING = -1
"""The length of a text that is missing."""


class Arrays:
    """The arrays of an ``.npz`` file, read one at a time; never unpickles.

    Raises
    ------
    ValueError
        If they are compressed: such ones may unpack to any size, and psnb writes none.
    """

    def __init__(self, file: ZipFile) -> None:
        if any(each.compress_type != ZIP_STORED for each in file.infolist()):
            raise ValueError("its arrays are compressed")
        self._file = file

    def __getitem__(self, name: str) -> np.ndarray:
        with self._file.open(f"{name}.npy") as entry:
            array: np.ndarray = np.lib.format.read_array(entry, allow_pickle=False)
        return array


def columns_as_arrays(block: Block) -> dict[str, np.ndarray]:
    """Return the arrays that represent the columns of a block.

    Raises
    ------
    DatasetError
        If a leaf is neither an array, nor a `Ragged`, nor text.
    """
    arrays: dict[str, np.ndarray] = {}
    for index, column in enumerate(block.columns):
        arrays |= {f"{index}.{key}": each for key, each in _as_arrays(column).items()}
    return arrays


def columns_from(arrays: Arrays, leaves: int, count: int) -> tuple[Column, ...]:
    """Return the columns that arrays represent.

    Raises
    ------
    ValueError
        If they have not ``count`` rows each.
    """
    columns = tuple(_column_from(arrays, leaf) for leaf in range(leaves))
    if any(len(column) != count for column in columns):
        raise ValueError(f"its columns have not {count} rows each")
    return columns


def _as_arrays(column: Column) -> dict[str, np.ndarray]:
    """Return the arrays that represent a column, and its kind."""
    if isinstance(column, Ragged):
        return {**_kind("ragged", column.values), "offsets": column.offsets}
    leaves = list(column) if column.dtype == object and column.ndim == 1 else []
    if leaves and all(isinstance(leaf, Ragged) for leaf in leaves):
        counts = np.array([len(leaf) for leaf in leaves], np.int64)
        offsets = np.concatenate([leaf.offsets for leaf in leaves])
        values = _shaped("batches", [leaf.values for leaf in leaves])
        return {**values, "offsets": offsets, "counts": counts}
    if leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return _shaped("arrays", leaves)
    return _kind("dense", column)


def _shaped(kind: str, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that represent arrays of any shapes: all values, and the shapes."""
    if len({kind_of(each) for each in arrays}) > 1:
        raise DatasetError("arrays of several dtypes or numbers of axes cannot be kept in files")
    values = np.concatenate([each.reshape(-1) for each in arrays])
    shapes = np.array([each.shape for each in arrays], np.int64)
    return {**_kind(kind, values), "shapes": shapes}


def _kind(kind: str, values: np.ndarray) -> dict[str, np.ndarray]:
    if values.dtype != object:
        return {"kind": np.array(kind), "values": values}
    leaves = values.ravel().tolist()
    if not all(map(is_text, leaves)):
        raise DatasetError("only arrays, Ragged and text can be kept in files")
    texts = np.array([isinstance(leaf, str) for leaf in leaves], np.bool_)
    raw = [leaf.encode() if isinstance(leaf, str) else leaf or b"" for leaf in leaves]
    lengths = np.array([len(each) for each in raw], np.int64)
    lengths[[leaf is None for leaf in leaves]] = _MISSING
    return {
        "kind": np.array(kind + " text"),
        "bytes": np.frombuffer(b"".join(raw), np.uint8),
        "lengths": lengths.reshape(values.shape),
        "texts": texts,
    }


def _column_from(arrays: Any, index: int) -> Column:
    kind = str(arrays[f"{index}.kind"])
    values = _text_from(arrays, index) if kind.endswith(" text") else arrays[f"{index}.values"]
    if kind.startswith("dense"):
        return values
    if kind.startswith("ragged"):
        return Ragged(values, arrays[f"{index}.offsets"])
    leaves = _divided(values, arrays[f"{index}.shapes"])
    if kind.startswith("batches"):
        sizes = arrays[f"{index}.counts"] + 1
        offsets = _divided(arrays[f"{index}.offsets"], sizes[:, None])
        leaves = [Ragged(*each) for each in zip(leaves, offsets, strict=True)]
    column = np.empty(len(leaves), object)
    for place, leaf in enumerate(leaves):  # one by one: otherwise NumPy would look into them
        column[place] = leaf
    return column


def _divided(values: np.ndarray, shapes: np.ndarray) -> list[Any]:
    """Return arrays of given shapes, whose values follow each other."""
    leaves, end = [], 0
    for shape in shapes.tolist():
        begin, end = end, end + math.prod(shape)
        if min(shape, default=0) < 0 or end > len(values):
            break
        leaves.append(values[begin:end].reshape(shape))
    if len(leaves) < len(shapes) or end != len(values):
        raise ValueError("its arrays have other shapes than their values")
    return leaves


def _text_from(arrays: Any, index: int) -> np.ndarray:
    lengths = arrays[f"{index}.lengths"]
    data, texts = arrays[f"{index}.bytes"].tobytes(), arrays[f"{index}.texts"].tolist()
    column = np.empty(lengths.size, object)
    end = 0
    for row, (length, text) in enumerate(zip(lengths.ravel().tolist(), texts, strict=True)):
        if length == _MISSING:
            continue  # None, as in all new columns
        if length < 0 or end + length > len(data):
            raise ValueError("its texts have other lengths than their bytes")
        raw = data[end : end + length]
        column[row] = raw.decode() if text else raw
        end += length
    if end != len(data):
        raise ValueError("its texts have other lengths than their bytes")
    return column.reshape(lengths.shape)


def nesting_as_json(nesting: Nesting) -> Any:
    """Return a nesting of tuples and dicts with JSON's types.

    Raises
    ------
    DatasetError
        If it has others.
    """
    if nesting is None:
        return None
    kinds = {tuple: "tuple", dict: "dict"}
    if nesting.kind not in kinds or not all(isinstance(key, (str, int)) for key in nesting.keys):
        raise DatasetError(
            f"a {nesting.kind.__name__} cannot be kept in files: map to a tuple or dict first"
        )
    children = [nesting_as_json(child) for child in nesting.children]
    return [kinds[nesting.kind], list(nesting.keys), children]


def nesting_from(written: Any) -> Nesting:
    """Return the nesting that `nesting_as_json` has written.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it is damaged.
    """
    if written is None:
        return None
    kind, keys, children = written
    if len(set(keys)) != len(children):
        raise ValueError("its nesting has other keys than children")
    return Nest(
        {"tuple": tuple, "dict": dict}[kind],
        tuple(keys),
        tuple(nesting_from(child) for child in children),
    )


# Parts: some elements each in an ``.npz`` file without pickles, for caches and for `Dataset.save`.

_PART_BYTES = 1 << 24
_VERSION = 2


class Part:
    """The elements in an open file; they are read when they are wanted.

    Raises
    ------
    Exception
        If it is damaged: parsers of NumPy and Python raise errors of many classes.
    """

    def __init__(self, file: Any) -> None:
        self._arrays = Arrays(ZipFile(file))
        head = json.loads(str(self._arrays["head"]))
        if head["version"] != _VERSION:
            raise ValueError(f"it is of version {head['version']}, this psnb reads {_VERSION}")
        if type(head["count"]) is not int or head["count"] < 1:
            raise ValueError("its count is no number")
        self.count: int = head["count"]
        self._nesting, self._loose = nesting_from(head["nesting"]), head["loose"]

    def block(self) -> Block:
        """Read the elements; raises as the class does."""
        columns = columns_from(self._arrays, len(paths(self._nesting)), self.count)
        return Block(self._nesting, columns, self.count, loose=self._loose)


class PartsWriter:
    """Writes elements in order into parts in a folder, some megabytes each.

    Attributes
    ----------
    counts : list of int
        How many elements each part has.
    """

    def __init__(self, place: str) -> None:
        self.counts: list[int] = []
        self._place, self._held, self._bytes = place, list[Block](), 0

    def add(self, block: Block) -> None:
        """Write some elements.

        Raises
        ------
        DatasetError
            If they are no arrays, `Ragged` or text, in tuples and dicts.
        OSError
            If they cannot be written.
        """
        self._held.append(block)
        self._bytes += sum(map(_bytes_of, block.columns))
        if self._bytes >= _PART_BYTES:
            self._write()

    def finish(self) -> None:
        """Write the last elements; raises as `add` does."""
        if self._held:
            self._write()

    def _write(self) -> None:
        block = concatenate(self._held)
        self._held, self._bytes = [], 0
        head = {
            "version": _VERSION,
            "count": block.count,
            "loose": block.loose,
            "nesting": nesting_as_json(block.nesting),
        }
        arrays = {"head": np.array(json.dumps(head)), **columns_as_arrays(block)}
        np.savez(os.path.join(self._place, _name(len(self.counts))), **arrays)  # type: ignore[arg-type]
        self.counts.append(block.count)


def _bytes_of(column: Column) -> int:
    if column.dtype != object or isinstance(column, Ragged):
        return column.nbytes
    leaves = column.reshape(-1).tolist()
    return sum(len(x) if isinstance(x, str | bytes) else getattr(x, "nbytes", 0) for x in leaves)


def _name(number: int) -> str:
    return f"{number:05}.npz"


@contextmanager
def _writing(method: str, folder: str, advice: str = "") -> Iterator[None]:
    """Translate the errors of a `PartsWriter`, and others of writing, to `DatasetError`."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{method}: {error}{advice}") from error
    except OSError as error:
        raise DatasetError(f"{method}: {folder} cannot be written: {error}") from error


# A cache in files: a folder of parts, and ``cache.json`` that lists them.
#
# It is written beside its place and renamed into it when it is complete.

_FORMAT = 3


@contextmanager
def _reading(folder: str, name: str) -> Iterator[None]:
    """Translate errors of a cache's files to `DatasetError`."""
    try:
        yield
    except Exception as error:  # as `Part` says
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
        name = _name(index)
        with _reading(self._folder, name), open(os.path.join(self._folder, name), "rb") as file:
            block = Part(file).block()
            if block.count != self.counts[index]:
                raise ValueError("it has not as many elements as are listed")
        return read_only(block)


class CacheWriter:
    """Writes elements in order."""

    def __init__(self, folder: str, chain: str, seed: int) -> None:
        self._folder, self._chain, self._seed = folder, chain, seed
        parent = os.path.dirname(os.path.abspath(folder))
        with _writing("cache", folder):
            os.makedirs(parent, exist_ok=True)
            self._place = tempfile.mkdtemp(prefix=os.path.basename(folder) + ".", dir=parent)
        self._parts = PartsWriter(self._place)
        self._remove = weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)

    def add(self, block: Block) -> None:
        """Write some elements."""
        with self._writing():
            self._parts.add(block)

    def finish(self) -> None:
        """Rename the folder to its final name, unless another iteration was faster."""
        with self._writing():
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

    def _writing(self) -> AbstractContextManager[None]:
        return _writing("cache", self._folder, "; or use cache() without a filename")


class CachedElements(ABC):
    """All elements, in parts.

    Attributes
    ----------
    counts : sequence of int
        How many there are in each part.
    seed : int
        The seed of the context that they were read with.
    """

    counts: Sequence[int]
    seed: int

    @abstractmethod
    def part(self, index: int) -> Block:
        """Return the elements of a part."""


class _InMemory(CachedElements):
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
        self.kept: CachedElements | None = None

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
        # What was returned and raised before the state was taken.
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


# The folder that `Dataset.save` writes: parts, and ``dataset.json`` that lists them.
#
# It is written beside its place and renamed into it when it is complete.

_LIST = "dataset.json"


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
        with _opened(path) as saved:
            block = saved.block()
        stop = block.count if end is None else min(end, block.count)
        for begin in range(offset, stop, CHUNK_RECORDS):
            part = block.part(begin, min(begin + CHUNK_RECORDS, stop))
            number = first + begin - offset
            yield Chunk(part.whole(), part.count, number, begin + part.count, block.loose)

    def cardinality(self, path: str, offset: int = 0, end: int | None = None) -> int:
        """Return how many elements a range of the file has."""
        with _opened(path) as saved:
            count = saved.count
        return max(0, (count if end is None else min(end, count)) - offset)

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes."""
        count = self.cardinality(path)
        step = max(1, count * size // max(1, size_of(path)))
        cuts = list(range(0, count, step))
        return list(zip(cuts, [*cuts[1:], None], strict=True))


@contextmanager
def _opened(path: str) -> Iterator[Part]:
    try:
        with stored(path) as file:
            yield Part(file)
    except DatasetError:
        raise
    except Exception as error:  # as `Part` says
        raise DatasetError(
            f"{path} is not part of a saved dataset, or damaged: {type(error).__name__}: {error}; "
            "save the dataset again"
        ) from error


def write_elements(node: Node, path: str | os.PathLike[str]) -> None:
    """Write all elements of a node into a folder; see `Dataset.save`."""
    folder = os.path.realpath(_folder("save", path))  # of a link, what it names is replaced
    _check_replaceable(folder)
    place = f"{folder}.{secrets.token_hex(4)}"
    try:
        with _writing("save", folder):
            os.makedirs(place)
        parts, context = PartsWriter(place), Context(secrets.randbits(63))
        reader = Reader(node, context)
        try:
            while (block := reader.take(BLOCK)) is not None:
                with _writing("save", folder):
                    parts.add(block)
        finally:
            reader.close()
        if not reader.position and not node.partial:
            context.counters.check_files()
        with _writing("save", folder):
            parts.finish()
            with open(os.path.join(place, _LIST), "w", encoding="utf-8") as file:
                json.dump({"version": _VERSION, "counts": parts.counts}, file)
            _swap(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def saved_parts(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of the parts in a folder, in order.

    Raises
    ------
    DatasetError
        If there is no saved dataset, or its list is damaged.
    """
    folder = _folder("load", path)
    try:
        with open(os.path.join(folder, _LIST), encoding="utf-8") as file:
            listed: Any = json.load(file)
        if listed["version"] != _VERSION:
            raise ValueError(f"it is of version {listed['version']}, this psnb reads {_VERSION}")
        if type(listed["counts"]) is not list:
            raise ValueError("its counts are not a list")
        return [os.path.join(folder, _name(number)) for number in range(len(listed["counts"]))]
    except FileNotFoundError as error:
        raise DatasetError(f"load: {folder} is not a folder that Dataset.save wrote") from error
    except Exception as error:
        # JSON that is damaged raises errors of many classes.
        raise DatasetError(
            f"load: {folder}/{_LIST} cannot be read: {type(error).__name__}: {error}; save the "
            "dataset again"
        ) from error


def _check_replaceable(folder: str) -> None:
    """Raise if a folder, all of which would be removed, holds what `write_elements` did not write.

    Its ``dataset.json`` alone is not proof: other programs have a file of that name, too.
    """
    if not os.path.lexists(folder):
        return
    try:
        parts = saved_parts(folder)
    except DatasetError as error:
        raise DatasetError(
            f"save: {folder} exists, and is not a saved dataset: name another folder, or remove it"
        ) from error
    others = sorted(set(os.listdir(folder)) - {_LIST, *map(os.path.basename, parts)})
    if others:
        raise DatasetError(
            f"save: {folder} holds {shown(others[0])}, which is not part of a saved dataset: name "
            "another folder, or move it"
        )


def _folder(method: str, path: Any) -> str:
    found = path_text(f"{method}: path", path)
    if not is_local(found):
        raise ConfigurationError(
            f"{method}: {found} is not a local folder: all workers must see it"
        )
    return os.path.abspath(found)


def _swap(place: str, folder: str) -> None:
    """Rename a folder to its final name; one of that name goes."""
    old = f"{place}.old"
    try:
        with suppress(FileNotFoundError):
            os.rename(folder, old)
        os.rename(place, folder)
    except BaseException:  # also an interrupt between the two
        with suppress(OSError):  # none was there, or the new one is
            os.rename(old, folder)
        raise
    try:
        _check_replaceable(old)  # others may have put more there while this was written
    except DatasetError as error:
        logger.warning("save: what was in %s before is kept: %s", folder, error)
    else:
        shutil.rmtree(old, ignore_errors=True)
