"""Blocks as named arrays, as files keep them, without pickles. Pure."""

from __future__ import annotations

from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from psnb._src.data.block import Block, Column
from psnb._src.data.nesting import Nest, Nesting, is_text
from psnb._src.data.ragged import Ragged
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
    if begin != len(rows):
        raise ValueError("its batches have other rows than there are")
    return batches


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
