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
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from psnb._src.data.block import Block, Column, concatenate, read_only
from psnb._src.data.nesting import Nest, Nesting, is_text, paths
from psnb._src.data.ragged import Ragged
from psnb.errors import DatasetError

_PART_BYTES = 1 << 24
_FORMAT = 1
_MISSING = -1
"""The length of a text that is missing."""


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
        self._nesting = _nesting_from(listed["nesting"])
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
            # Only stored files, as psnb writes them; compressed ones may unpack to any size.
            if any(each.compress_type != ZIP_STORED for each in file.infolist()):
                raise ValueError("its arrays are compressed")
            arrays = _Arrays(file)
            columns = tuple(_column_from(arrays, leaf) for leaf in range(self._leaves))
            if any(len(column) != count for column in columns):
                raise ValueError(f"its columns have not {count} rows each")
        return read_only(Block(self._nesting, columns, count, loose=self._loose))


class _Arrays:
    """The arrays of an ``.npz`` file, read one at a time; never unpickles."""

    def __init__(self, file: ZipFile) -> None:
        self._file = file

    def __getitem__(self, name: str) -> np.ndarray:
        with self._file.open(f"{name}.npy") as entry:
            array: np.ndarray = np.lib.format.read_array(entry, allow_pickle=False)
        return array


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
        self._nesting = _nesting_as_json(block.nesting)
        arrays: dict[str, np.ndarray] = {}
        for index, column in enumerate(block.columns):
            arrays |= {f"{index}.{key}": each for key, each in _as_arrays(column).items()}
        try:
            np.savez(os.path.join(self._place, f"{len(self._counts)}.npz"), **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise DatasetError(f"cache: {self._folder} cannot be written: {error}") from error
        self._counts.append(block.count)
        self._blocks, self._bytes = [], 0


def _as_arrays(column: Column) -> dict[str, np.ndarray]:
    """Return the arrays that represent a column, and its kind."""
    if isinstance(column, Ragged):
        return {**_kind("ragged", column.values), "offsets": column.offsets}
    if column.dtype == object and all(isinstance(leaf, Ragged) for leaf in column):
        # Of batches: all rows one after another, and how many each batch has.
        joined = Ragged.concatenate(list(column))
        counts = np.array([len(leaf) for leaf in column], np.int64)
        return {**_kind("batches", joined.values), "offsets": joined.offsets, "counts": counts}
    return _kind("dense", column)


def _kind(kind: str, values: np.ndarray) -> dict[str, np.ndarray]:
    if values.dtype != object:
        return {"kind": np.array(kind), "values": values}
    leaves = values.ravel().tolist()
    if not all(map(is_text, leaves)):
        raise DatasetError(
            "cache: only arrays, Ragged and text can be kept in files; use cache() without a "
            "filename"
        )
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
    ragged = Ragged(values, arrays[f"{index}.offsets"])
    return ragged if kind.startswith("ragged") else _divided(ragged, arrays[f"{index}.counts"])


def _divided(rows: Ragged, counts: np.ndarray) -> np.ndarray:
    batches = np.empty(len(counts), object)
    begin = 0
    for number, count in enumerate(counts.tolist()):
        if count < 0 or begin + count > len(rows):
            raise ValueError("its batches have other rows than there are")
        batches[number] = rows[begin : begin + count]
        begin += count
    return batches


def _text_from(arrays: Any, index: int) -> np.ndarray:
    lengths = arrays[f"{index}.lengths"]
    data, texts = arrays[f"{index}.bytes"].tobytes(), arrays[f"{index}.texts"].tolist()
    column = np.empty(lengths.size, object)
    end = 0
    for row, (length, text) in enumerate(zip(lengths.ravel().tolist(), texts, strict=True)):
        if length == _MISSING:
            continue  # None, as in all new columns
        raw = data[end : end + length]
        column[row] = raw.decode() if text else raw
        end += length
    return column.reshape(lengths.shape)


def _nesting_as_json(nesting: Nesting) -> Any:
    if nesting is None:
        return None
    kinds = {tuple: "tuple", dict: "dict"}
    if nesting.kind not in kinds or not all(isinstance(key, (str, int)) for key in nesting.keys):
        raise DatasetError(
            f"cache: a {nesting.kind.__name__} cannot be kept in files; use cache() without a "
            "filename, or map to a tuple or dict first"
        )
    children = [_nesting_as_json(child) for child in nesting.children]
    return [kinds[nesting.kind], list(nesting.keys), children]


def _nesting_from(written: Any) -> Nesting:
    if written is None:
        return None
    kind, keys, children = written
    return Nest(
        {"tuple": tuple, "dict": dict}[kind],
        tuple(keys),
        tuple(_nesting_from(child) for child in children),
    )
