"""Reading structures of Thrift's compact protocol, as far as the headers of Parquet's pages go.

Lists, sets and maps are in none of those and refused, so nothing is ever larger than what it is
read from.
"""

from __future__ import annotations

from typing import Any

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_NUMBERS = (4, 5, 6)
_DEEPEST = 8


def read_struct(data: memoryview, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a structure.

    Parameters
    ----------
    data : memoryview
        Bytes.
    at : int
        Where it begins.

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
    try:
        while head := data[at]:
            at += 1
            if head >> 4:
                number += head >> 4
            else:
                number, at = _signed(data, at)
            kind = head & 15
            value: Any = None
            if kind in _NUMBERS:
                value, at = _signed(data, at)
            elif kind == _STRUCT:
                value, at = read_struct(data, at, depth + 1)
            elif kind == _BINARY:
                size, at = _unsigned(data, at)
                at += size
            elif kind == _BYTE:
                at += 1
            elif kind == _DOUBLE:
                at += 8
            elif kind not in (_TRUE, _FALSE):
                raise ValueError(f"a field of type {kind}")
            found[number] = value
    except IndexError:
        raise ValueError("it is cut short") from None
    return found, at + 1


def _unsigned(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of more than ten bytes")


def _signed(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
