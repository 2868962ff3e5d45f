"""Packing the arrays of states for the wire: most of their numbers are zero. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

Packed = tuple[Any, tuple[int, ...], str, int, bytes, bytes]
"""Dtype and shape; dtype of the values, and how far to shift them; places and values."""


def packed(array: np.ndarray) -> Packed:
    """Return an array of whole numbers as the places and values of those that are not zero.

    The places take 2 or 4 bytes each, or one bit for each number, whichever is less. The binary
    zeros that all values have at their end are left out, and they take as few bytes as the largest
    allows. An array with fields is taken as it is.
    """
    if array.dtype.names:
        return array.dtype.descr, array.shape, "", 0, b"", array.tobytes()
    flat = array.ravel()
    places = np.flatnonzero(flat)
    values = flat[places]
    together = int(np.bitwise_or.reduce(values)) if values.size else 1
    shift = (together & -together).bit_length() - 1
    values >>= values.dtype.type(shift)
    smallest = np.min_scalar_type(values.max()) if values.size else np.dtype("u1")
    few = _dtype_of_places(flat)
    bits = few.itemsize * 8 * places.size > flat.size
    return (
        array.dtype.str,
        array.shape,
        smallest.newbyteorder("<").str,
        shift,
        (np.packbits(flat != 0) if bits else places.astype(few)).tobytes(),
        values.astype(smallest).tobytes(),
    )


def unpacked(parts: Packed) -> np.ndarray:
    """Return the array."""
    dtype, shape, smallest, shift, where, packed_values = parts
    if not smallest:
        return np.frombuffer(packed_values, dtype).reshape(shape)
    array = np.zeros(shape, dtype)
    flat = array.reshape(-1)
    values = np.frombuffer(packed_values, smallest).astype(dtype)
    values <<= values.dtype.type(shift)
    few = _dtype_of_places(flat)
    if few.itemsize * 8 * values.size > flat.size:
        flat[np.unpackbits(np.frombuffer(where, "u1"), count=flat.size).view(bool)] = values
    else:
        flat[np.frombuffer(where, few)] = values
    return array


def _dtype_of_places(flat: np.ndarray) -> np.dtype[Any]:
    return np.dtype("<u2" if flat.size <= 1 << 16 else "<u4")
