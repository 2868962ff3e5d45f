"""Numbers in text, compiled by numba: integers exactly, floats correctly rounded.

A float of up to 19 digits is a 64-bit integer times a power of ten, computed in float64 with a
relative error below 2**-51. Rounding that to float32 gives the nearest neighbour, unless it is
that close to the middle between two. For such numbers, for extreme ones, and for words like
``nan``, the kernel returns `UNKNOWN`, and `nearest_float32` decides in exact arithmetic. (After
Clinger: *How to Read Floating Point Numbers Accurately*, PLDI 1990.)

Nearly all numbers in a text have few digits. These are read as the bytes of 64-bit integers,
without a branch on the number of digits, by arithmetic on all bytes together; longer or unusual
ones are left to the rest. (Lemire: *Number Parsing at a Gigabyte per Second*, Software: Practice
and Experience 51, 2021.)
"""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
from numba import njit

from psnb._src.data.formats.words import (
    WORD,
    bytes_above,
    high_product,
    word_at,
    zeros_above,
    zeros_below,
)

OK, JUNK, OVERFLOW, NEGATIVE, UNKNOWN = 0, 1, 2, 3, 4
"""The result of reading: a number; not a number; above 2**64 - 1; below 0; ask
`nearest_float32`."""

_POWERS = np.array([float(f"1e{power}") for power in range(64)])
_ZERO, _NINE, _TEN = np.uint64(48), np.uint64(9), np.uint64(10)
_MOST, _MOST_DIGIT = np.uint64((2**64 - 1) // 10), np.uint64((2**64 - 1) % 10)

_SPACE, _TAB, _PLUS, _MINUS, _POINT, _E, _SMALL_E = 32, 9, 43, 45, 46, 69, 101
_FULL, _ROOM = np.uint64(10**18), np.uint64(10**11)
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


_EIGHT, _NONE = np.uint64(8), np.uint64(0)
_ZEROS = np.uint64(0x3030303030303030)
_MINUS_BITS, _SPACE_BITS, _TAB_BITS, _POINT_BITS = (np.uint64(byte ^ 48) for byte in b"- \t.")
_TENS = np.array([10**power for power in range(9)], np.uint64)
_FLOAT_TENS = np.array([10.0**power for power in range(9)])
_SIGNS = np.array([1, -1], np.float32)


@njit(cache=True, nogil=True, inline="always")
def _bits(others):  # type: ignore[no-untyped-def]
    """Return the highest bits of the bytes as eight bits."""
    return ((others >> np.uint64(7)) * np.uint64(0x0102040810204080)) >> np.uint64(56)


@njit(cache=True, nogil=True, inline="always")
def _byte(word, at):  # type: ignore[no-untyped-def]
    return (word >> (_EIGHT * at)) & np.uint64(255)


@njit(cache=True, nogil=True, inline="always")
def _is_space(byte):  # type: ignore[no-untyped-def]
    return (byte == _SPACE_BITS) | (byte == _TAB_BITS)


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
def _eights(data, at, stop, value):  # type: ignore[no-untyped-def]
    """Read digits on, as long as another eight of them have room in 64 bits.

    Returns the number with those before them, and the position after them.
    """
    while at + WORD <= stop and value < _ROOM:
        word = word_at(data, at) ^ _ZEROS
        others = bytes_above(word, 9)
        if others:
            many = zeros_below(others) >> np.uint64(3)
            return value * _TENS[many] + _leading(word, many), at + np.int64(many)
        value = value * _TENS[WORD] + _all_eight(word)
        at += WORD
    return value, at


@njit(cache=True, nogil=True, inline="always")
def read_digits(data, at, stop):  # type: ignore[no-untyped-def]
    """Read an integer up to 2**64 - 1 that ends before ``stop`` or at what is not a digit.

    Returns the number, the position after it, and whether it is larger.
    """
    value, at = _eights(data, at, stop, _NONE)
    while at < stop:
        digit = np.uint64(data[np.uint64(at)]) - _ZERO
        if digit > _NINE:
            break
        if value >= _MOST and (value > _MOST or digit > _MOST_DIGIT):
            return value, at, True
        value = value * _TEN + digit
        at += 1
    return value, at, False


@njit(cache=True, nogil=True)
def read_unsigned(data, at, stop):  # type: ignore[no-untyped-def]
    """Read an integer up to 2**64 - 1 that ends before ``stop`` or at a space.

    Returns the number, the position after it, and `OK`, `JUNK`, `OVERFLOW` or `NEGATIVE`.
    """
    begin = at
    value, at, larger = read_digits(data, at, stop)
    if larger:
        return value, at, OVERFLOW
    if at == begin:
        if at + 1 < stop and data[at] == _MINUS and np.uint64(data[at + 1]) - _ZERO <= _NINE:
            return value, at, NEGATIVE
        return value, at, JUNK
    if at < stop and not is_space(data[np.uint64(at)]):
        return value, at, JUNK
    return value, at, OK


@njit(cache=True, nogil=True, inline="always")
def read_decimal(data, at, stop):  # type: ignore[no-untyped-def]
    """Read a number without its sign, up to ``stop`` or what does not belong to it.

    Returns it as an integer and a power of ten, without what follows the first 19 digits; then how
    many digits it has, 0 if it is no number; and the position after it.
    """
    exponent = np.int64(0)
    begin = at
    mantissa, at = _eights(data, at, stop, _NONE)
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
        mantissa, at = _eights(data, at, stop, mantissa)
        exponent -= at - begin
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
    return mantissa, exponent, digits, at


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
    mantissa, exponent, digits, at = read_decimal(data, at, stop)
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
    negative = np.uint64((low & np.uint64(255)) == _MINUS_BITS)
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
    if byte != _POINT_BITS or not others or after - np.uint64(1) > np.uint64(7):
        return np.float32(0), 0
    rest = ((low >> (_EIGHT * point)) >> _EIGHT) | (high << (np.uint64(56) - _EIGHT * point))
    last = _byte(high, end - _EIGHT) if end >= _EIGHT else _byte(low, end)
    if not _is_space(last):
        return np.float32(0), 0
    digits = digits * _TENS[after] + _all_eight(rest << (_EIGHT * (_EIGHT - after)))
    # Both are exact in float64, the quotient is the nearest one to the number.
    value = np.float64(np.int64(digits)) / _FLOAT_TENS[after]
    if np.float64(value).view(np.uint64) & np.uint64(_LOW_BITS) == np.uint64(_MIDDLE):
        # In the middle of two float32: where was it before?
        return np.float32(0), 0
    return np.float32(value) * _SIGNS[negative], np.int64(end)


_MOST_POWER = 64


def _five(power: int) -> int:
    """Return the upper 128 bits of a power of five."""
    five = 5 ** abs(power)
    if power >= 0:
        return (five << 128) >> five.bit_length()
    # Where quotients may be exact, they are only if this is rounded up.
    return (1 << ((five - 1).bit_length() + 127)) // five + (power >= -27)


_FIVES = np.array(
    [divmod(_five(power), 1 << 64) for power in range(-_MOST_POWER, _MOST_POWER + 1)], np.uint64
)
_ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def nearest_float64(mantissa, exponent):  # type: ignore[no-untyped-def]
    """Return the float64 nearest to an integer (uint64) times a power of ten, ties to even.

    And whether it is that: not for powers beyond 64. (Lemire: *Number Parsing at a Gigabyte per
    Second*, section 5; Mushtak, Lemire: *Fast Number Parsing Without Fallback*, ibid. 53, 2023.)
    """
    if abs(exponent) > _MOST_POWER:
        return 0.0, False
    if mantissa == _NONE:
        return 0.0, True
    zeros = zeros_above(mantissa)
    mantissa <<= zeros
    row = np.uint64(exponent + _MOST_POWER)
    high, low = high_product(mantissa, _FIVES[row, 0]), mantissa * _FIVES[row, 0]
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        # Some 55 bits are not enough.
        rest = high_product(mantissa, _FIVES[row, 1])
        low += rest
        high += np.uint64(low < rest)
    top = high >> np.uint64(63)
    shift = top + np.uint64(9)
    bits = high >> shift
    # 217706 / 2**16 is the logarithm of ten to base two.
    power = ((217706 * exponent) >> 16) + 1086 + np.int64(top) - np.int64(zeros)
    if (
        low <= _ONE
        and -4 <= exponent <= 23
        and bits & np.uint64(3) == _ONE
        and bits << shift == high
    ):
        # In the middle of two: it is even without this bit.
        bits -= _ONE
    bits = (bits + (bits & _ONE)) >> _ONE
    # One more than what has 53 bits is a power of two: its only bit adds one to the exponent, too.
    return np.uint64((np.uint64(power - 1) << np.uint64(52)) + bits).view(np.float64), True


@njit(cache=True, nogil=True, inline="always")
def has_nearest_float32(value):  # type: ignore[no-untyped-def]
    """Return whether a float64 nearest to a number says which float32 is.

    Not in the middle of two: where was the number before?
    """
    ordinary = _SMALLEST <= abs(value) < _ABOVE or value == 0
    return ordinary and np.float64(value).view(np.int64) & _LOW_BITS != _MIDDLE
