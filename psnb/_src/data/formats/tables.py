"""Tables in memory as columns of arrays: pandas, polars, Arrow, Hugging Face, NumPy, scipy.

Parquet and CSV files come this way, too, so the rules are the same for all: missing floats are NaN,
missing times NaT, missing texts None, and what no array can lack is refused.
"""

from __future__ import annotations

import importlib
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.data.ragged import Ragged, offsets_of
from psnb._src.utils.text import shown, truncate, with_article
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


def by_name(table: Any) -> dict[str, Any]:
    """Return the columns of a table or record batch of Arrow; it makes objects for them."""
    return dict(zip(table.schema.names, table.columns, strict=True))


def to_columns(table: Mapping[str, Any]) -> dict[str, np.ndarray | Ragged]:
    """Return columns of Arrow as arrays.

    Numbers become arrays of their dtype, decimals without fractions integers, missing floats NaN,
    strings and bytes arrays of objects with None where missing, lists of one length arrays, other
    lists `Ragged`.

    Raises
    ------
    DatasetError
        If a column is of a type that no array holds, or holds what is not of its type, as text that
        is not UTF-8. (`first_missing` finds required values that are missing.)
    """
    pa = pyarrow()
    return {name: _column(pa, name, column) for name, column in table.items()}


def with_columns(structure: Any) -> Any:
    """Replace tables in nested tuples and dicts by dicts of their columns.

    Raises
    ------
    DatasetError
        As for `columns_of`.
    """
    if isinstance(structure, dict):
        return {key: with_columns(each) for key, each in structure.items()}
    if isinstance(structure, tuple):
        parts = [with_columns(each) for each in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    # Rows of a structured array have been elements of their own kind before there were tables.
    if isinstance(structure, np.ndarray) or _reader_of(structure) is None:
        return structure
    return columns_of(structure)


Columns = dict[str, np.ndarray | Ragged]


def columns_of(table: Any, columns: Sequence[str] | None = None) -> Columns:
    """Return the columns of a table in memory, which share its memory where dtypes allow.

    Tables are data frames of pandas (whose index is left out) and polars, tables of pyarrow,
    datasets of Hugging Face, structured arrays, and sparse matrices of scipy: ``indices`` and
    ``values`` of the entries of each row.

    Parameters
    ----------
    table : table
        What there is.
    columns : sequence of str, optional
        Which columns, in this order; all by default.

    Raises
    ------
    ConfigurationError
        If it is no table, or has no such column.
    DatasetError
        As for `to_columns`; or if two columns have one name, or integers or booleans are missing.
    """
    read = _reader_of(table)
    if read is None:
        raise ConfigurationError(f"{_not_a_table(table)}, found {shown(table)}")
    if isinstance(columns, str):
        raise ConfigurationError(f"columns is a list of names, found {columns!r}")
    return read(table, None if columns is None else list(columns))


def is_table(value: Any) -> bool:
    """Return whether `columns_of` reads a value; imports no library."""
    return _reader_of(value) is not None


def _not_a_table(table: Any) -> str:
    if type(table).__module__.partition(".")[0] == "datasets":
        if isinstance(table, dict):
            return 'from_table takes one split, such as dataset["train"]'
        return "from_table takes a datasets.Dataset in memory; for a stream use from_generator"
    if isinstance(table, np.ndarray):
        return "from_table takes arrays with named fields; for others use from_tensor_slices"
    return (
        "from_table takes a table of pandas, polars, pyarrow or datasets, a structured array, or a "
        "sparse matrix of scipy"
    )


def _reader_of(table: Any) -> Callable[[Any, list[str] | None], Columns] | None:
    """Return what reads a table of its kind; None if it is none. Imports no library."""
    if isinstance(table, np.ndarray):
        return _from_fields if table.dtype.names and table.ndim == 1 else None
    library = type(table).__module__.partition(".")[0]
    if hasattr(table, "__arrow_c_stream__") and hasattr(table, "columns"):
        return _from_pandas if library == "pandas" else _from_arrow
    if library == "datasets" and hasattr(table, "select_columns") and hasattr(table, "data"):
        return None if isinstance(table, dict) else _from_hugging_face
    if library == "scipy" and hasattr(table, "tocsr"):
        return _from_sparse
    return None


def _chosen(names: Sequence[str], columns: list[str] | None) -> list[str]:
    wanted = list(names) if columns is None else columns
    if absent := set(wanted) - set(names):
        raise ConfigurationError(f"the columns are {listed(list(names))}; no {absent}")
    if double := {name for name in wanted if list(names).count(name) > 1}:
        raise DatasetError(
            f"two columns have one name: {listed(list(names))}; rename {double}, or choose others"
        )
    if not wanted:
        raise ConfigurationError(f"columns names none of {listed(list(names))}")
    return wanted


def _from_pandas(frame: Any, columns: list[str] | None) -> Columns:
    names = [str(name) for name in frame.columns]
    wanted = _chosen(names, columns)
    found: Columns = {}
    other = []
    for name in wanted:
        column = frame.iloc[:, names.index(name)]
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufmM":
            found[name] = column.to_numpy()  # Arrow would copy it, to mark what is missing
        else:
            other.append(name)
    if other:
        rest = frame.iloc[:, [names.index(name) for name in other]].reset_index(drop=True)
        found |= dict(zip(other, _from_arrow(rest, None).values(), strict=True))
    return {name: found[name] for name in wanted}


def _as_arrow(frame: Any) -> Any:
    pa = pyarrow()
    try:
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DatasetError(
            f"{with_article(type(frame).__name__)} has columns that Arrow does not hold: "
            f"{truncate(str(error), 200)}"
        ) from error
    except OverflowError as error:  # Arrow takes Python's integers for int64
        column = "a column"
        for name in frame.columns:
            try:
                pa.array(frame[name])
            except OverflowError:
                column = f"column {str(name)!r}"
                break
        raise DatasetError(
            f"{column} holds integers beyond int64 as Python's objects: convert it "
            "with .astype('uint64'), and lists with numpy.array(each, 'uint64')"
        ) from error


def _from_hugging_face(dataset: Any, columns: list[str] | None) -> Columns:
    wanted = _chosen(dataset.column_names, columns)
    return _from_arrow(dataset.select_columns(wanted).with_format("arrow")[:], wanted)


def _from_arrow(frame: Any, columns: list[str] | None) -> Columns:
    table = _as_arrow(frame)
    table = table.select(_chosen(table.schema.names, columns))
    found = by_name(table)
    if (missing := first_missing(found)) is not None:
        name, row = missing
        raise DatasetError(
            f"column {name!r} lacks a value in row {row}, and no array of its type can: fill it, "
            "or convert it to floats, where NaN is one that is missing"
        )
    return to_columns(found)


def _from_fields(array: np.ndarray, columns: list[str] | None) -> Columns:
    return {name: array[name] for name in _chosen(array.dtype.names or (), columns)}


def _from_sparse(matrix: Any, columns: list[str] | None) -> Columns:
    if matrix.ndim != 2:
        raise ConfigurationError(
            f"from_table takes a sparse matrix with rows and columns, found one of shape "
            f"{matrix.shape}"
        )
    rows = matrix.tocsr()
    if not rows.has_canonical_format:  # an entry may be there twice, as a sum
        rows = rows.copy() if rows is matrix else rows
        rows.sum_duplicates()
    entries = {"indices": rows.indices, "values": rows.data}
    return {name: Ragged(entries[name], rows.indptr) for name in _chosen(list(entries), columns)}


def first_missing(table: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the first missing integer or boolean in columns of Arrow: its column and row."""
    pa = pyarrow()
    found = [
        (int(column.is_null().to_numpy(zero_copy_only=False).argmax()), name)
        for name, column in table.items()
        if column.null_count and _cannot_miss(pa, column.type)
    ]
    return None if not found else (min(found)[1], min(found)[0])


def _cannot_miss(pa: Any, kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_fixed_size_list(kind)
        or _is_whole(pa, kind)
    )


def _is_whole(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.scale <= 0)


def _column(pa: Any, name: str, column: Any) -> np.ndarray | Ragged:
    if isinstance(column, pa.ChunkedArray):
        # `combine_chunks` makes a copy even of a single chunk.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = column.dictionary
        if pa.types.is_string_view(values.type):  # of polars; Arrow has no `take` for it
            values = values.cast(pa.large_string())
        return _column(pa, name, values.take(column.indices))
    fixed = pa.types.is_fixed_size_list(kind)
    if fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _column(pa, name, column.flatten())
        if isinstance(values, Ragged):
            raise DatasetError(f"column {name!r} holds lists of lists: flatten one of them")
        if fixed:
            return values.reshape(len(column), kind.list_size, *values.shape[1:])
        return Ragged(values, offsets_of(column.value_lengths().fill_null(0).to_numpy()))
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise DatasetError(f"column {name!r} is of Arrow's type {kind}: choose other columns")
    if column.null_count and _cannot_miss(pa, kind):
        raise DatasetError(f"column {name!r} holds lists with missing values: fill them")
    try:
        if _is_whole(pa, kind):
            # The type decides, not what a chunk holds: with 20 digits databases write unsigned
            # integers of 64 bits, and signed ones with 19, or with as many as they have.
            column = column.cast(pa.uint64() if kind.precision == 20 else pa.int64())
        elif pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        array: np.ndarray = column.to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        problem = "text that is not UTF-8: write bytes" if text else truncate(str(error), 200)
        if _is_whole(pa, kind):
            wanted = "uint64" if kind.precision == 20 else "int64"
            problem = (
                f"{with_article(str(kind))} that is no {wanted}: write integers, or "
                "decimal(20, 0) for uint64"
            )
        raise DatasetError(f"column {name!r} holds {problem}") from error
    return array
