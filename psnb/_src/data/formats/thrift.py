"""Thrift's compact protocol, as far as the footers and page headers of Parquet files need it.

Unneeded fields are skipped. Anything that Thrift's own reader may understand otherwise is invalid.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_TRUE, _FALSE, _BYTE, _I16, I32, I64, _DOUBLE, _BINARY, LIST, _SET, STRUCT = (*range(1, 11), 12)
"""The types of fields."""

ELEMENT = 31
"""In place of a field's number: an element of a list."""

_DEEPEST = 32
_NAMED = 1 << 40  # of eight levels


@njit(cache=True, nogil=True)
def _unsigned(data, at):  # type: ignore[no-untyped-def]
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
def _signed(data, at):  # type: ignore[no-untyped-def]
    """Return a number and the position after it, which is -1 if there is none."""
    value, at = _unsigned(data, at)
    return ((value >> 1) & np.int64((1 << 63) - 1)) ^ -(value & 1), at


def field(kind: int, *numbers: int) -> int:
    """Return what `find_fields` calls a field of a type, by the numbers on the way to it."""
    path = 1
    for number in numbers:
        path = path << 5 | number
    return path << 4 | kind


@njit(cache=True, nogil=True)
def find_fields(data, at, wanted):  # type: ignore[no-untyped-def]
    """Find fields of a structure, all of whose lists that are wanted are of structures.

    Parameters
    ----------
    data : array of uint8
        Has the structure.
    at : int
        Where it begins.
    wanted : array of int64
        The fields, by `field`.

    Returns
    -------
    tuple of int and array
        The position after it, -1 if it is not valid. Then for each field that was found, in order,
        which of ``wanted`` it is, and its value: of a list its size, of a structure 0.
    """
    found, count = np.empty((64, 2), np.int64), 0
    paths = np.zeros(_DEEPEST, np.int64)  # 0 for what cannot be wanted
    left = np.zeros(_DEEPEST, np.int64)  # of a list; -1 for a structure
    last = np.zeros(_DEEPEST, np.int64)  # a structure's last field; of a list what its elements are
    paths[0], left[0] = 1, -1
    depth = 0
    while depth >= 0:
        in_list, number = left[depth] >= 0, np.int64(ELEMENT)
        if left[depth] == 0:
            depth -= 1
            continue
        if in_list:
            left[depth] -= 1
            kind = last[depth]
        else:
            if at >= data.size:
                return -1, found[:0]
            head = np.int64(data[at])
            at += 1
            if head == 0:
                depth -= 1
                continue
            if head >> 4:
                number = last[depth] + (head >> 4)
            else:
                number, at = _signed(data, at)
            if at < 0 or number < 0 or number >= 1 << 15:
                return -1, found[:0]
            last[depth], kind = number, head & 15
            number = min(number, np.int64(ELEMENT - 1))  # which is not wanted
        path = paths[depth] << 5 | number if 0 < paths[depth] < _NAMED else np.int64(0)
        value = np.int64(0)
        if kind == _BYTE or (in_list and kind in (_TRUE, _FALSE)):
            at += 1
        elif kind in (_I16, I32, I64):
            value, at = _signed(data, at)
            if kind == I32 and not -(1 << 31) <= value < 1 << 31:
                return -1, found[:0]  # Thrift's own reader takes its low bits
        elif kind == _DOUBLE:
            at += 8
        elif kind == _BINARY:
            size, at = _unsigned(data, at)
            at = at + size if at >= 0 and 0 <= size <= data.size - at else -1
        elif kind in (STRUCT, LIST, _SET):
            depth += 1
            if depth == _DEEPEST:
                return -1, found[:0]
            paths[depth], left[depth], last[depth] = path if kind != _SET else 0, -1, 0
            if kind != STRUCT:
                if at >= data.size:
                    return -1, found[:0]
                head = np.int64(data[at])
                at += 1
                value = head >> 4
                if value == 15:
                    value, at = _unsigned(data, at)
                if at < 0 or value < 0 or value > data.size - at:
                    return -1, found[:0]
                left[depth], last[depth] = value, head & 15
        elif kind not in (_TRUE, _FALSE):
            return -1, found[:0]
        if at < 0 or at > data.size:
            return -1, found[:0]
        for which in range(wanted.size):
            if wanted[which] == path << 4 | kind:
                if kind == LIST and value > 0 and last[depth] != STRUCT:
                    return -1, found[:0]
                if count == len(found):
                    found = np.concatenate((found, found))
                found[count, 0], found[count, 1] = which, value
                count += 1
    return at, found[:count]
