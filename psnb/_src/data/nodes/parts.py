"""Parts: some elements each in an ``.npz`` file, for caches and for `Dataset.save`; no pickles."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from psnb._src.data.block import Block, Column, column_bytes, concatenate
from psnb._src.data.nesting import Nest, Nesting, is_text, paths
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import kind_of
from psnb.errors import DatasetError

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
        self._arrays = Arrays(ZipFile(file))
        head = json.loads(str(self._arrays["head"]))
        if head["version"] != VERSION:
            raise ValueError(f"it is of version {head['version']}, this psnb reads {VERSION}")
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
        self._bytes += sum(map(column_bytes, block.columns))
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
            "version": VERSION,
            "count": block.count,
            "loose": block.loose,
            "nesting": nesting_as_json(block.nesting),
        }
        arrays = {"head": np.array(json.dumps(head)), **columns_as_arrays(block)}
        np.savez(os.path.join(self._place, part_name(len(self.counts))), **arrays)  # type: ignore[arg-type]
        self.counts.append(block.count)


def part_name(number: int) -> str:
    return f"{number:05}.npz"


@contextmanager
def writing(method: str, folder: str, advice: str = "") -> Iterator[None]:
    """Translate the errors of a `PartsWriter`, and others of writing, to `DatasetError`."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{method}: {error}{advice}") from error
    except OSError as error:
        raise DatasetError(f"{method}: {folder} cannot be written: {error}") from error
