"""From Arrow's columns to arrays. pyarrow is imported when it is needed."""

from __future__ import annotations

import importlib
import reprlib
from typing import Any

import numpy as np

from psnb._src.data.ragged import Ragged
from psnb._src.excerpt import excerpt, with_article
from psnb.errors import ConfigurationError, DatasetError


def pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow, or a module of it.

    Raises
    ------
    ConfigurationError
        If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            "reading CSV and Parquet needs pyarrow: pip install 'psnb[data]'"
        ) from error


def listed(names: list[str]) -> str:
    """Return names for people, the first ones of many."""
    shown = reprlib.Repr()
    shown.maxlist, shown.maxstring = 20, 60
    return shown.repr(names)


def to_columns(table: Any) -> dict[str, np.ndarray | Ragged]:
    """Return the columns of a table or record batch.

    Numbers become arrays of their dtype, decimals without fractions integers, missing floats NaN,
    strings and bytes arrays of objects with None where missing, lists of one length arrays, other
    lists `Ragged`.

    Raises
    ------
    DatasetError
        If a column is of a type that no array holds, or holds what is not of its type, as text that
        is not UTF-8. (What is missing that must not, `first_missing` tells.)
    """
    return {
        name: _column(name, column)
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }


def with_columns(structure: Any) -> Any:
    """Replace tables in nested tuples and dicts by dicts of their columns.

    Tables are what has columns and gives them in Arrow's form: data frames of pandas (whose index
    is left out) and polars, and tables of pyarrow.

    Raises
    ------
    DatasetError
        As for `to_columns`; or if two columns have one name, or integers or booleans are missing.
    """
    if isinstance(structure, dict):
        return {key: with_columns(each) for key, each in structure.items()}
    if isinstance(structure, tuple):
        parts = [with_columns(each) for each in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    if not (hasattr(structure, "__arrow_c_stream__") and hasattr(structure, "columns")):
        return structure
    pa = pyarrow()
    frame = structure.reset_index(drop=True) if hasattr(structure, "reset_index") else structure
    try:
        table = pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DatasetError(
            f"{with_article(type(structure).__name__)} has columns that Arrow does not hold: "
            f"{excerpt(str(error), 200)}"
        ) from error
    if len(set(table.schema.names)) < len(table.schema.names):
        raise DatasetError(f"two columns have one name: {listed(table.schema.names)}")
    if (missing := first_missing(table)) is not None:
        name, row = missing
        raise DatasetError(
            f"column {name!r} lacks a value in row {row}, and no array of its type can: fill it"
        )
    return to_columns(table)


def first_missing(table: Any) -> tuple[str, int] | None:
    """Return the first missing integer or boolean of a table: its column and row."""
    found = [
        (int(column.is_null().to_numpy(zero_copy_only=False).argmax()), name)
        for name, column in zip(table.schema.names, table.columns, strict=True)
        if column.null_count and _cannot_miss(column.type)
    ]
    return None if not found else (min(found)[1], min(found)[0])


def _cannot_miss(kind: Any) -> bool:
    types = pyarrow().types
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_fixed_size_list(kind)
        or _is_whole(kind)
    )


def _is_whole(kind: Any) -> bool:
    return bool(pyarrow().types.is_decimal(kind) and kind.scale <= 0)


def _column(name: str, column: Any) -> np.ndarray | Ragged:
    pa = pyarrow()
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _column(name, column.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(column.value_lengths().fill_null(0).to_numpy(), out=offsets[1:])
        values = _column(name, column.flatten())
        if isinstance(values, Ragged):
            raise DatasetError(f"column {name!r} holds lists of lists: flatten one of them")
        return Ragged(values, offsets)
    if pa.types.is_fixed_size_list(kind):
        values = _column(name, column.flatten())
        if isinstance(values, Ragged):
            raise DatasetError(f"column {name!r} holds lists of lists: flatten one of them")
        return values.reshape(len(column), kind.list_size, *values.shape[1:])
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise DatasetError(f"column {name!r} is of Arrow's type {kind}: choose other columns")
    if column.null_count and _cannot_miss(kind):
        raise DatasetError(f"column {name!r} holds lists with missing values: fill them")
    try:
        if _is_whole(kind):
            # The type decides, not what a chunk holds: with 20 digits databases write unsigned
            # integers of 64 bits, and signed ones with 19, or with as many as they have.
            column = column.cast(pa.uint64() if kind.precision == 20 else pa.int64())
        elif pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        array: np.ndarray = column.to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        problem = "text that is not UTF-8: write bytes" if text else excerpt(str(error), 200)
        if _is_whole(kind):
            wanted = "uint64" if kind.precision == 20 else "int64"
            problem = (
                f"{with_article(str(kind))} that is no {wanted}: write integers, or "
                "decimal(20, 0) for uint64"
            )
        raise DatasetError(f"column {name!r} holds {problem}") from error
    return array
