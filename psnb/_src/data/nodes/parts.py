"""Parts: some elements each in an ``.npz`` file, for caches and for `Dataset.save`; no pickles."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zipfile import ZIP_STORED

import numpy as np

from psnb._src.data.block import Block, Column, column_bytes, concatenate, objects
from psnb._src.data.nesting import Nest, Nesting, is_text, paths
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import kind_of
from psnb.errors import DatasetError

_MISSING = -1
"""The length of a text that is missing."""


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
    return objects(leaves)


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
    if nesting.kind not in (tuple, dict) or not all(
        isinstance(key, (str, int)) for key in nesting.keys
    ):
        raise DatasetError(
            f"a {nesting.kind.__name__} cannot be kept in files: map to a tuple or dict first"
        )
    children = [nesting_as_json(child) for child in nesting.children]
    return [nesting.kind.__name__, list(nesting.keys), children]


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


_PART_BYTES = 1 << 24
VERSION = 2


class PartReader:
    """The elements in an open file; they are read when they are wanted.

    Raises
    ------
    Exception
        If it is damaged: parsers of NumPy and Python raise errors of many classes.
    """

    def __init__(self, file: Any) -> None:
        self._arrays = np.load(file, allow_pickle=False)  # each of them when it is wanted
        if any(each.compress_type != ZIP_STORED for each in self._arrays.zip.infolist()):
            # Such ones may unpack to any size, and psnb writes none.
            raise ValueError("its arrays are compressed")
        head = json.loads(str(self._arrays["head"]))
        if head["version"] != VERSION:
            raise ValueError(f"it is of version {head['version']}, this psnb reads {VERSION}")
        if type(head["count"]) is not int or head["count"] < 1:
            raise ValueError("its count is no number")
        self.count: int = head["count"]
        self._nesting, self._loose = nesting_from(head["nesting"]), head["loose"]

    def block(self) -> Block:
        """Read the elements; raises as the class does."""
        leaves = range(len(paths(self._nesting)))
        columns = tuple(_column_from(self._arrays, leaf) for leaf in leaves)
        # NumPy returns an entry that is no array as it is, as bytes.
        arrays = [each.values if isinstance(each, Ragged) else each for each in columns]
        whole = all(isinstance(each, np.ndarray) for each in arrays)
        if not whole or any(len(column) != self.count for column in columns):
            raise ValueError(f"its columns have not {self.count} rows each")
        return Block(self._nesting, columns, self.count, loose=self._loose)


class PartsWriter:
    """Writes elements in order, next to a folder that is to have them, which the caller renames.

    There are parts, some megabytes each, and a file that lists them. What was written is removed
    with this object.

    Parameters
    ----------
    method : str
        The name of the method of `Dataset`, for errors.
    folder : str
        The folder's final name.
    mode : int
        Its permissions.
    advice : str
        What else to do, for errors.

    Attributes
    ----------
    place : str
        Where it is.

    Raises
    ------
    DatasetError
        This, and all methods, if it cannot be written, or elements are no arrays, `Ragged` or text,
        in tuples and dicts.
    """

    def __init__(self, method: str, folder: str, mode: int = 0o777, advice: str = "") -> None:
        self.place = f"{os.path.abspath(folder)}.{secrets.token_hex(4)}"
        self._counts: list[int] = []
        self._method, self._folder, self._advice = method, folder, advice
        self._held, self._bytes = list[Block](), 0
        self._remove = weakref.finalize(self, shutil.rmtree, self.place, ignore_errors=True)
        with self.errors():
            os.makedirs(self.place, mode)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate errors of writing to `DatasetError`."""
        try:
            yield
        except DatasetError as error:
            raise DatasetError(f"{self._method}: {error}{self._advice}") from error
        except OSError as error:
            problem = f"{self._method}: {self._folder} cannot be written: {error}"
            raise DatasetError(problem) from error

    def append(self, block: Block) -> None:
        """Write some elements."""
        self._held.append(block)
        self._bytes += sum(map(column_bytes, block.columns))
        if self._bytes >= _PART_BYTES:
            with self.errors():
                self._write()

    def finish(self, name: str, listed: dict[str, Any]) -> None:
        """Write the last elements, and the list: what else is to be in it, and counts of parts."""
        with self.errors():
            if self._held:
                self._write()
            with open(os.path.join(self.place, name), "w", encoding="utf-8") as file:
                json.dump({**listed, "counts": self._counts}, file)

    def remove(self) -> None:
        """Remove what is at the place; idempotent."""
        self._remove()

    def _write(self) -> None:
        block = concatenate(self._held)
        self._held, self._bytes = [], 0
        head = {
            "version": VERSION,
            "count": block.count,
            "loose": block.loose,
            "nesting": nesting_as_json(block.nesting),
        }
        arrays = {"head": np.array(json.dumps(head)), **columns_as_arrays(block)}
        np.savez(os.path.join(self.place, part_name(len(self._counts))), **arrays)  # type: ignore[arg-type]
        self._counts.append(block.count)


def part_name(number: int) -> str:
    return f"{number:05}.npz"
