"""Short numbers in text, read as the bytes of 64-bit integers, compiled by numba.

Nearly all numbers in a text have few digits. These are read without a branch on the number of
digits, by arithmetic on all bytes together. Longer or unusual ones are left to
`psnb._src.data.formats.numbers`. (Lemire: *Number Parsing at a Gigabyte per Second*, Software:
Practice and Experience 51, 2021.)
"""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.data.formats.words import bytes_above, zeros_below

_EIGHT, _NONE = np.uint64(8), np.uint64(0)
_ZEROS = np.uint64(0x3030303030303030)
_MINUS, _SPACE, _TAB, _POINT = (np.uint64(byte ^ 48) for byte in b"- \t.")
_TENS = np.array([10**power for power in range(9)], np.uint64)
_FLOAT_TENS = np.array([10.0**power for power in range(9)])
_SIGNS = np.array([1, -1], np.float32)
_LOW_BITS, _MIDDLE = np.uint64((1 << 29) - 1), np.uint64(1 << 28)


@njit(cache=True, nogil=True, inline="always")
def _bits(others):  # type: ignore[no-untyped-def]
    """Return the highest bits of the bytes as eight bits."""
    return ((others >> np.uint64(7)) * np.uint64(0x0102040810204080)) >> np.uint64(56)


@njit(cache=True, nogil=True, inline="always")
def _byte(word, at):  # type: ignore[no-untyped-def]
    return (word >> (_EIGHT * at)) & np.uint64(255)


@njit(cache=True, nogil=True, inline="always")
def _is_space(byte):  # type: ignore[no-untyped-def]
    return (byte == _SPACE) | (byte == _TAB)


@njit(cache=True, nogil=True, inline="always")
def _leading(word, many):  # type: ignore[no-untyped-def]
    """Return the number of the first digits, fewer than eight."""
    # As if zeros came before, and nothing after; in two steps, as a shift by 64 is not possible.
    return _all_eight((word << (_EIGHT * (np.uint64(7) - many))) << _EIGHT)


@njit(cache=True, nogil=True, inline="always")
def _all_eight(word):  # type: ignore[no-untyped-def]
    """Return the number of eight digits: two become one, then four, then eight."""
    word = word * np.uint64(10) + (word >> _EIGHT)
    even = np.uint64(0x000000FF000000FF)
    return (
        (word & even) * np.uint64(100 + (1000000 << 32))
        + ((word >> np.uint64(16)) & even) * np.uint64(1 + (10000 << 32))
    ) >> np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def short_unsigned(low, high):  # type: ignore[no-untyped-def]
    """Read an integer of up to 15 digits with a space after it, at the begin of two words.

    Returns the number and how many bytes it takes, 0 if there is no such number.
    """
    # The byte of a digit is then its value.
    low, high = low ^ _ZEROS, high ^ _ZEROS
    others = bytes_above(low, 9)
    if others:
        many = zeros_below(others) >> np.uint64(3)
        if not many or not _is_space(_byte(low, many)):
            return _NONE, 0
        return _leading(low, many), np.int64(many)
    others = bytes_above(high, 9)
    many = zeros_below(others) >> np.uint64(3)
    if not others or not _is_space(_byte(high, many)):
        return _NONE, 0
    return _all_eight(low) * _TENS[many] + _leading(high, many), 8 + np.int64(many)


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def short_float(low, high):  # type: ignore[no-untyped-def]
    """Read a float32 with a space after it, at the begin of two words.

    It is one with up to seven bytes before a point and eight digits after it, or without one.
    Returns the number and how many bytes it takes, 0 if there is no such number.
    """
    low, high = low ^ _ZEROS, high ^ _ZEROS
    others = _bits(bytes_above(low, 9)) | (_bits(bytes_above(high, 9)) << _EIGHT)
    negative = np.uint64((low & np.uint64(255)) == _MINUS)
    others &= ~negative
    low &= ~(np.uint64(255) * negative)
    point = zeros_below(others)
    if not others or point > np.uint64(7):
        return np.float32(0), 0
    digits = _leading(low, point)
    byte = _byte(low, point)
    if _is_space(byte) and point > negative:
        return np.float32(digits) * _SIGNS[negative], np.int64(point)
    others &= others - np.uint64(1)
    end = zeros_below(others)
    after = end - point - np.uint64(1)
    if byte != _POINT or not others or after - np.uint64(1) > np.uint64(7):
        return np.float32(0), 0
    rest = ((low >> (_EIGHT * point)) >> _EIGHT) | (high << (np.uint64(56) - _EIGHT * point))
    last = _byte(high, end - _EIGHT) if end >= _EIGHT else _byte(low, end)
    if not _is_space(last):
        return np.float32(0), 0
    digits = digits * _TENS[after] + _all_eight(rest << (_EIGHT * (_EIGHT - after)))
    # Both are exact in float64, the quotient is the nearest one to the number.
    value = np.float64(np.int64(digits)) / _FLOAT_TENS[after]
    if np.float64(value).view(np.uint64) & _LOW_BITS == _MIDDLE:
        # In the middle of two float32: where was it before?
        return np.float32(0), 0
    return np.float32(value) * _SIGNS[negative], np.int64(end)
