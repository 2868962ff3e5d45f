"""ArrayFile: an array that is written row by row and mapped into memory. Pure.

The file is a safetensors file of one tensor, ``data``, whose header has a fixed length, so that the
number of rows may be known last. Libraries of safetensors read it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from psnb._src.mapped_arrays import mapped_arrays

_HEADER = 4096
"""Bytes before the data, which so begin with a page."""

_NAMES = {
    **{"int8": "I8", "uint32": "U32", "uint64": "U64"},
    **{"float16": "F16", "float32": "F32", "float64": "F64"},
}
"""The dtypes that files have, and what safetensors calls them."""


class ArrayFile:
    """Writes an array.

    Parameters
    ----------
    path : pathlib.Path
        The file, which is not there yet.
    dtype : str
        Of the array.
    row_shape : tuple of int
        The shape of one row.

    Attributes
    ----------
    rows : int
        How many were written.
    """

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._dtype, self._row_shape, self.rows = np.dtype(dtype), row_shape, 0
        self._file = open(path, "xb")  # noqa: SIM115  # closed by its user
        self._file.write(bytes(_HEADER))

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, rows: np.ndarray) -> None:
        """Write rows at the end."""
        plain = np.ascontiguousarray(rows, self._dtype.newbyteorder("<"))
        self._file.write(plain.reshape(-1).view(np.uint8).data)
        self.rows += len(rows)

    def finish(self) -> None:
        """Write the header."""
        size = self.rows * math.prod(self._row_shape) * self._dtype.itemsize
        tensor = {
            "dtype": _NAMES[self._dtype.name],
            "shape": [self.rows, *self._row_shape],
            "data_offsets": [0, size],
        }
        text = json.dumps({"data": tensor}).encode().ljust(_HEADER - 8)
        self._file.seek(0)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.flush()


def mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array of a file, mapped into memory and read-only.

    Raises
    ------
    OSError, SafetensorError, ValueError
        If it is no such file, or has another array.
    """
    arrays = mapped_arrays(path)
    if arrays.keys() != {"data"}:
        raise ValueError(f"expected one array, 'data', found {sorted(arrays)[:5]}")
    found = arrays["data"]
    if (found.dtype, found.shape) != (np.dtype(dtype), shape):
        raise ValueError(f"expected {dtype} of shape {shape}, found {found.dtype} {found.shape}")
    return found
