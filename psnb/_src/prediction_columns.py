"""Columns of predictions as CSV, JSON lines and Parquet hold them. Pure.

A column is an array with one row for each example.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


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
    """Return float32 in place of what only accelerators have, such as bfloat16."""
    odd = array.dtype.kind == "V" and array.dtype.names is None
    return array.astype(np.float32) if odd else array


def _finite(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f" or (finite := np.isfinite(array)).all():
        return array
    found = array.astype(object)
    found[~finite] = None
    return found
