"""Columns of predictions as CSV, JSON lines and Parquet hold them, and what writes these. Pure.

A column is an array with one row for each example.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from psnb.errors import ConfigurationError


def single_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return columns of one number a row; of several, they are ``name.0``, ``name.1``, ..."""
    found: dict[str, np.ndarray] = {}
    for name, array in columns.items():
        wide = array.reshape(len(array), math.prod(array.shape[1:]))
        parts = {f"{name}.{at}": part for at, part in enumerate(wide.T)}
        found |= {name: array} if array.ndim == 1 else parts
    return found


def json_lines(columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield a line for each row; null in place of NaN and infinite numbers, which JSON lacks."""
    lists = [_finite(_known(array)).tolist() for array in columns.values()]
    for row in zip(*lists, strict=True):
        yield json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n"


def parquet_table(columns: Mapping[str, np.ndarray]) -> Any:
    """Return a table of pyarrow; several numbers a row are lists of one length."""
    import pyarrow

    def column(array: np.ndarray) -> Any:
        if array.ndim == 1:
            return pyarrow.array(array)
        width = int(np.prod(array.shape[1:]))
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), width)

    return pyarrow.table({name: column(_known(array)) for name, array in columns.items()})


def _known(array: np.ndarray) -> np.ndarray:
    """Return float32 in place of dtypes that only accelerators have, such as bfloat16."""
    odd = array.dtype.kind == "V" and array.dtype.names is None
    return array.astype(np.float32) if odd else array


def _finite(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f" or (finite := np.isfinite(array)).all():
        return array
    found = array.astype(object)
    found[~finite] = None
    return found


Columns = Mapping[str, np.ndarray]

Write = Callable[[Columns], object]
"""Writes some rows."""


def write_rows(to: Path | TextIO, suffix: str, batches: Iterable[Columns]) -> int | None:
    """Write batches, one after another; return how many rows there were, None without a batch.

    Parameters
    ----------
    to : Path or file
        A new file, or one that is open and stays so; the first batch says what it has.
    suffix : {".csv", ".jsonl", ".parquet"}
        The format.
    batches : iterable of dict
        The columns of each.

    Raises
    ------
    ConfigurationError
        If Parquet cannot be written here.
    """
    rows: int | None = None
    with ExitStack() as opened:
        write: Write | None = None
        for columns in batches:
            write = write or _WRITERS[suffix](to, columns, opened)
            write(columns)
            rows = (rows or 0) + len(next(iter(columns.values()), ()))
    return rows


def _parquet_rows(to: Path | TextIO, first: Columns, opened: ExitStack) -> Write:
    if not isinstance(to, Path):
        raise ConfigurationError("Parquet is written to a file: give --to FILE")
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigurationError("Parquet needs pyarrow: pip install 'psnb[data]'") from error
    file = pyarrow.parquet.ParquetWriter(to, parquet_table(first).schema)
    opened.enter_context(file)
    return lambda columns: file.write_table(parquet_table(columns))


def _json_rows(to: Path | TextIO, first: Columns, opened: ExitStack) -> Write:
    file = _text_file(to, opened)
    return lambda columns: file.writelines(json_lines(columns))


def _csv_rows(to: Path | TextIO, first: Columns, opened: ExitStack) -> Write:
    rows = csv.writer(_text_file(to, opened), lineterminator="\n")
    rows.writerow(single_columns(first))

    def write(columns: Columns) -> None:
        lists = [column.tolist() for column in single_columns(columns).values()]
        rows.writerows(zip(*lists, strict=True))

    return write


def _text_file(to: Path | TextIO, opened: ExitStack) -> TextIO:
    if isinstance(to, Path):
        return opened.enter_context(to.open("w", encoding="utf-8", newline=""))
    return to


_WRITERS: dict[str, Callable[[Path | TextIO, Columns, ExitStack], Write]] = {
    ".parquet": _parquet_rows,
    ".csv": _csv_rows,
    ".jsonl": _json_rows,
}
