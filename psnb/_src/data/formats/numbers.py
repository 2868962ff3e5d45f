"""Numbers in text, compiled by numba: integers exactly, floats correctly rounded.

A float of up to 19 digits is a 64-bit integer times a power of ten, computed in float64 with a
relative error below 2**-51. Rounding that to float32 gives the nearest neighbour, unless it is
that close to the middle between two. For such numbers, for extreme ones, and for words like
``nan``, the kernel returns `UNKNOWN`, and `nearest_float32` decides in exact arithmetic. (After
Clinger: *How to Read Floating Point Numbers Accurately*, PLDI 1990.)
"""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
from numba import njit

OK, JUNK, OVERFLOW, NEGATIVE, UNKNOWN = 0, 1, 2, 3, 4
"""The result of reading: a number; not a number; above 2**64 - 1; below 0; ask
`nearest_float32`."""

_POWERS = np.array([float(f"1e{power}") for power in range(64)])
_ZERO, _NINE, _TEN = np.uint64(48), np.uint64(9), np.uint64(10)
_MOST, _MOST_DIGIT = np.uint64((2**64 - 1) // 10), np.uint64((2**64 - 1) % 10)

_SPACE, _TAB, _PLUS, _MINUS, _POINT, _E, _SMALL_E = 32, 9, 43, 45, 46, 69, 101
_FULL = np.uint64(10**18)
_EXACT = np.uint64(2**53)
_LARGE = 1 << 20
_LOW_BITS, _MIDDLE, _NEAR = (1 << 29) - 1, 1 << 28, 16
_SMALLEST, _ABOVE = 2.0**-125, 2.0**127

_FLOAT = re.compile(
    rb"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)


@njit(cache=True, nogil=True, inline="always")
def is_space(byte):  # type: ignore[no-untyped-def]
    """Return whether a byte stands between numbers of a line."""
    return byte in (_SPACE, _TAB)


@njit(cache=True, nogil=True)
def read_unsigned(data, at, stop):  # type: ignore[no-untyped-def]
    """Read an integer up to 2**64 - 1 that ends before ``stop`` or at a space.

    Returns the number, the position after it, and `OK`, `JUNK`, `OVERFLOW` or `NEGATIVE`.
    """
    value = np.uint64(0)
    begin = at
    # 19 digits are always below 2**64.
    safe = min(stop, at + 19)
    while at < safe:
        digit = np.uint64(data[np.uint64(at)]) - _ZERO
        if digit > _NINE:
            break
        value = value * _TEN + digit
        at += 1
    while at < stop:
        digit = np.uint64(data[np.uint64(at)]) - _ZERO
        if digit > _NINE:
            break
        if value >= _MOST and (value > _MOST or digit > _MOST_DIGIT):
            return value, at, OVERFLOW
        value = value * _TEN + digit
        at += 1
    if at == begin:
        if at + 1 < stop and data[at] == _MINUS and np.uint64(data[at + 1]) - _ZERO <= _NINE:
            return value, at, NEGATIVE
        return value, at, JUNK
    if at < stop and not is_space(data[np.uint64(at)]):
        return value, at, JUNK
    return value, at, OK


@njit(cache=True, nogil=True)
def read_float(data, at, stop):  # type: ignore[no-untyped-def]
    """Read a float32 that ends before ``stop`` or at a space.

    Returns the number, the position after it or after the text in its place, and `OK` or `UNKNOWN`:
    then `nearest_float32` must read it, if it is a number.
    """
    negative = False
    if at < stop:
        sign = data[np.uint64(at)]
        negative = sign == _MINUS
        if negative or sign == _PLUS:
            at += 1
    mantissa = np.uint64(0)
    exponent = np.int64(0)
    begin = at
    while at < stop:
        digit = np.uint64(data[np.uint64(at)]) - _ZERO
        if digit > _NINE:
            break
        if mantissa < _FULL:
            mantissa = mantissa * _TEN + digit
        else:
            exponent += 1
        at += 1
    digits = at - begin
    if at < stop and data[np.uint64(at)] == _POINT:
        at += 1
        begin = at
        while at < stop:
            digit = np.uint64(data[np.uint64(at)]) - _ZERO
            if digit > _NINE:
                break
            if mantissa < _FULL:
                mantissa = mantissa * _TEN + digit
                exponent -= 1
            at += 1
        digits += at - begin
    if digits > 0 and at < stop and (data[at] == _E or data[at] == _SMALL_E):
        at += 1
        down = False
        if at < stop and (data[at] == _MINUS or data[at] == _PLUS):
            down = data[at] == _MINUS
            at += 1
        power = np.int64(0)
        begin = at
        while at < stop:
            digit = np.uint64(data[at]) - _ZERO
            if digit > _NINE:
                break
            if power < _LARGE:
                power = power * 10 + np.int64(digit)
            at += 1
        if at == begin:
            digits = 0
        exponent += -power if down else power
    if digits == 0 or (at < stop and not is_space(data[np.uint64(at)])):
        while at < stop and not is_space(data[np.uint64(at)]):
            at += 1
        return np.float32(0), at, UNKNOWN
    value = np.float64(mantissa)
    if exponent < 0:
        if exponent <= -_POWERS.size:
            return np.float32(0), at, UNKNOWN
        value /= _POWERS[np.uint64(-exponent)]
    elif exponent > 0:
        if exponent >= _POWERS.size:
            return np.float32(0), at, UNKNOWN
        value *= _POWERS[np.uint64(exponent)]
    if mantissa != np.uint64(0) and (exponent != 0 or mantissa > _EXACT):
        low = np.float64(value).view(np.int64) & _LOW_BITS
        if not _SMALLEST <= value < _ABOVE or abs(low - _MIDDLE) <= _NEAR:
            return np.float32(0), at, UNKNOWN
    return np.float32(-value if negative else value), at, OK


def nearest_float32(text: bytes) -> np.float32 | None:
    """Return the float32 nearest to a number, ties to even; None if it is not a number.

    Raises
    ------
    OverflowError
        If it is beyond the largest float32.
    """
    if not _FLOAT.fullmatch(text):
        return None
    value = float(text)
    with np.errstate(over="ignore", under="ignore"):
        nearest = np.float32(value)
        other = np.nextafter(nearest, np.float32(np.inf if value > float(nearest) else -np.inf))
    if text.lstrip(b"+-")[:1].isalpha():
        return nearest
    if np.isinf(nearest):
        raise OverflowError
    if float(nearest) == value or not np.isfinite(other):
        return nearest
    if (float(nearest) + float(other)) / 2 == value:
        # In the middle of two, when rounded to float64: where was it before?
        exact = Decimal(text.decode())
        if exact != Decimal(value):
            return max(nearest, other) if exact > Decimal(value) else min(nearest, other)
    return nearest
