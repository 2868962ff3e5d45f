"""Thrift's compact protocol, as far as the footers and page headers of Parquet files need it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY = 1, 2, 3, 4, 5, 6, 7, 8
LIST, SET, STRUCT = 9, 10, 12
"""The types of fields."""

_DEEPEST = 8


@njit(cache=True, nogil=True)
def unsigned(data, at):  # type: ignore[no-untyped-def]
    """Return a number and the position after it, which is -1 if there is none."""
    value = np.int64(0)
    for shift in range(0, 70, 7):
        if at >= data.size:
            return value, -1
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    return value, -1


@njit(cache=True, nogil=True)
def signed(data, at):  # type: ignore[no-untyped-def]
    """Return a number and the position after it, which is -1 if there is none."""
    value, at = unsigned(data, at)
    return ((value >> 1) & np.int64((1 << 63) - 1)) ^ -(value & 1), at


def read_struct(data: np.ndarray, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a structure (uint8) without lists, sets and maps, which headers of pages do not have.

    So nothing is ever larger than its source.

    Returns
    -------
    tuple of dict and int
        By the numbers of its fields: integers as such, structures as dicts, anything else None.
        Then the position after it.

    Raises
    ------
    ValueError
        If there is no valid structure.
    """
    if depth > _DEEPEST:
        raise ValueError("structures are nested too deep")
    found: dict[int, Any] = {}
    number = 0
    while 0 <= at < data.size:
        head = int(data[at])
        at += 1
        if head == 0:
            return found, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = signed(data, at)
        kind = head & 15
        value: Any = None
        if kind in (I16, I32, I64):
            value, at = signed(data, at)
        elif kind == STRUCT:
            value, at = read_struct(data, at, depth + 1)
        elif kind == BINARY:
            size, at = unsigned(data, at)
            at = -1 if at < 0 or not 0 <= size <= data.size - at else at + size
        elif kind in (BYTE, DOUBLE):
            at += 1 if kind == BYTE else 8
        elif kind not in (TRUE, FALSE):
            raise ValueError(f"a field of type {kind}")
        found[number] = value
    raise ValueError("it is cut short")
