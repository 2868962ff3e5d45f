"""Arrays in files, also safetensors, of which only what is asked for is read. Pure.

They are mapped into memory, or read piece by piece. A mapped file that is shortened ends the
process at the next touch: so servers read.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import safe_open

from psnb._src.utils.sealed_json import one_of

DTYPES = {
    f"{kind.upper()}{8 * size}": np.dtype(f"<{kind}{size}")
    for kind, sizes in (("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("f", (2, 4, 8)))
    for size in sizes
} | {"BF16": np.dtype(ml_dtypes.bfloat16)}
"""The dtypes that parameters have, by their names in the files."""

Dtype = Annotated[str, one_of(*(each.name for each in DTYPES.values()))]
"""The name of one, as `msgspec` checks it."""


_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def safetensors_head(
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]], nbytes: int = 0
) -> bytes:
    """Return the beginning of a safetensors file, before the bytes of its arrays.

    By hand, as the library writes only arrays that are in memory as a whole.

    Parameters
    ----------
    arrays : mapping of str to tuple
        Dtype and shape of each, in the order in which they follow without gaps.
    nbytes : int
        The least number of its bytes; always a multiple of 8.
    """
    header, end = {}, 0
    for name, (dtype, shape) in arrays.items():
        start, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text = text.ljust(max(len(text) + -len(text) % 8, nbytes - 8))
    return len(text).to_bytes(8, "little") + text


class ArrayPlace(NamedTuple):
    """An array in a file.

    Attributes
    ----------
    dtype, shape : numpy.dtype, tuple of int
        Its form.
    start : int
        Where its first byte is in the file.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int


def array_places(path: Path) -> dict[str, ArrayPlace]:
    """Return where the arrays of a file are, by their names; only its header is read.

    Raises
    ------
    OSError, SafetensorError, ValueError
        If it is not such a file, or has an array of another dtype.
    """
    with safe_open(path, framework="numpy"):
        pass  # it raises unless the arrays in the header fill the file
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: _place(name, 8 + size, form) for name, form in header.items()}


def _place(name: str, start: int, form: dict[str, Any]) -> ArrayPlace:
    dtype = DTYPES.get(form["dtype"])
    if dtype is None:
        raise ValueError(f"array {name!r:.80} has dtype {form['dtype']}")
    return ArrayPlace(dtype, tuple(form["shape"]), start + form["data_offsets"][0])


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by their names, mapped into memory and read-only.

    The file must not be shortened while they are used: that ends the process. Raises as
    `array_places` does.
    """
    return {name: mapped_array(path, name, place) for name, place in array_places(path).items()}


def mapped_array(path: Path, name: str, place: ArrayPlace) -> np.ndarray:
    """Return one of these arrays; ValueError if no array can have its shape."""
    dtype, shape, start = place
    try:
        if not math.prod(shape):
            return np.empty(shape, dtype)
        whole = np.memmap(path, dtype, "r", start, shape)
    except OverflowError as error:
        raise ValueError(f"array {name!r:.80} has shape {shape}") from error
    return whole.view(np.ndarray)


def read_into(file: int, start: int, array: np.ndarray) -> None:
    """Fill an array, which is contiguous, with the bytes of an open file from a place on.

    Raises
    ------
    OSError
        If it cannot be read, or is too short.
    """
    left = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    while left:
        count = os.preadv(file, [left], start)
        if not count:
            raise OSError(errno.EIO, "it was shortened")
        left, start = left[count:], start + count
