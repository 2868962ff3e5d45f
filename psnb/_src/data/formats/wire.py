"""Reading ``tf.train.Example`` messages in protobuf's wire format, compiled by numba.

::

    Example    features: 1, a Features
    Features   feature:  1, map entries, repeated: key: 1, a string; value: 2, a Feature
    Feature    one of bytes_list: 1, float_list: 2, int64_list: 3; of several the last counts
    …List      value: 1, repeated; floats and integers packed (one field holds all) or each its own

As protobuf says: fields in any order, unknown ones skipped, the last entry of a key counts, and a
list that comes in parts is joined. Every position is checked against the end of the message it is
in, so no bytes lead out of the buffer or round in circles.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.data.formats.crc import half_word
from psnb._src.data.formats.words import zeros_below

BYTES, FLOATS, INTEGERS = 1, 2, 3
"""The kinds of lists, by their field in a ``Feature``; 0 where there is none."""

MALFORMED = -1
"""In place of a position or a count: not a message of this kind."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types: how a field's content is written."""

_LOW, _HIGH, _SEVEN, _ONE = np.uint64(0x7F), np.uint64(0x80), np.uint64(7), np.uint64(1)


@njit(cache=True, nogil=True, inline="always")
def varint(data, at, stop):  # type: ignore[no-untyped-def]
    """Return the number at a position and the position after it, or `MALFORMED`."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < stop:
        byte = np.uint64(data[np.uint64(at)])
        at += 1
        value |= (byte & _LOW) << shift
        if byte < _HIGH:
            return value, at
        shift += _SEVEN
        if shift > np.uint64(63):
            break
    return value, MALFORMED


@njit(cache=True, nogil=True, inline="always")
def short_varint(word):  # type: ignore[no-untyped-def]
    """Return the number (int64) at the begin of a word, and how many bytes it takes; 9 if more."""
    ends = ~word & np.uint64(0x8080808080808080)
    # What is behind it goes, as do the highest bits; then seven bits each move together.
    word &= ((ends & (~ends + _ONE)) << _ONE) - _ONE
    word = (word & np.uint64(0x007F007F007F007F)) | ((word & np.uint64(0x7F007F007F007F00)) >> _ONE)
    word = (word & np.uint64(0x00003FFF00003FFF)) | (
        (word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    )
    word = (word & np.uint64(0x0FFFFFFF)) | ((word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    return np.int64(word), np.int64(zeros_below(ends) >> np.uint64(3)) + 1


@njit(cache=True, nogil=True)
def _any_field(data, at, stop):  # type: ignore[no-untyped-def]
    tag, at = varint(data, at, stop)
    if at < 0:
        return 0, 0, 0, MALFORMED
    number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
    if number == 0:
        return 0, 0, 0, MALFORMED
    if wire == LENGTH:
        length, at = varint(data, at, stop)
        if at < 0 or length > np.uint64(stop - at):
            return 0, 0, 0, MALFORMED
        return number, wire, at, at + np.int64(length)
    if wire == VARINT:
        _, end = varint(data, at, stop)
        return number, wire, at, end
    if wire == FIXED64 and stop - at >= 8:
        return number, wire, at, at + 8
    if wire == FIXED32 and stop - at >= 4:
        return number, wire, at, at + 4
    return 0, 0, 0, MALFORMED


@njit(cache=True, nogil=True, inline="always")
def field(data, at, stop):  # type: ignore[no-untyped-def]
    """Read the field at a position.

    Returns its number, its wire type, where its content begins and where it ends; the last is
    `MALFORMED` if it is no field.
    """
    # Nearly all: a small number, and less than 128 bytes.
    if stop - at >= 2:
        tag, length = np.int64(data[np.uint64(at)]), np.int64(data[np.uint64(at + 1)])
        if 8 <= tag < 128 and tag & 7 == LENGTH and length < 128 and length <= stop - at - 2:
            return tag >> 3, LENGTH, at + 2, at + 2 + length
    return _any_field(data, at, stop)


@njit(cache=True, nogil=True)
def list_of(data, at, stop):  # type: ignore[no-untyped-def]
    """Return where the list of a ``Feature`` begins, and its kind or `MALFORMED`."""
    kind, begin = 0, at
    while at < stop:
        start = at
        number, wire, _, at = field(data, at, stop)
        if at < 0:
            return 0, MALFORMED
        if wire == LENGTH and BYTES <= number <= INTEGERS and number != kind:
            # Of several lists the last counts; it begins where the kind changed last.
            kind, begin = number, start
    return begin, kind


@njit(cache=True, nogil=True)
def count_values(data, at, stop, kind):  # type: ignore[no-untyped-def]
    """Return the number of values of a ``Feature``'s list, or `MALFORMED`."""
    count = 0
    while at < stop:
        number, wire, inner, at = field(data, at, stop)
        if at < 0:
            return MALFORMED
        if number != kind or wire != LENGTH:
            continue
        while inner < at:
            number, wire, content, inner = field(data, inner, at)
            if inner < 0:
                return MALFORMED
            if number != 1:
                continue
            if wire == LENGTH and kind == INTEGERS:
                for i in range(content, inner):
                    count += data[i] < 128
            elif wire == LENGTH and kind == FLOATS:
                count += (inner - content) // 4
            elif (
                (wire == LENGTH and kind == BYTES)
                or (wire == VARINT and kind == INTEGERS)
                or (wire == FIXED32 and kind == FLOATS)
            ):
                count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def packed_integers(data, at, stop, out, count, end):  # type: ignore[no-untyped-def]
    """Write integers (int64) into ``out[count:end]``; return where the next would be written.

    More than there is room for are counted only. `MALFORMED` if the last is cut off.
    """
    while at < stop:
        value, at = varint(data, at, stop)
        if at < 0:
            return MALFORMED
        if count < end:
            out[count] = np.int64(value)
        count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def packed_floats(data, at, stop, out, count, end):  # type: ignore[no-untyped-def]
    """Write floats, as the uint32 of their bits, as `packed_integers` does."""
    if (stop - at) % 4:
        return MALFORMED
    while at < stop:
        if count < end:
            out[count] = half_word(data, at)
        count += 1
        at += 4
    return count


@njit(cache=True, nogil=True)
def integers(data, at, stop, out, start, end):  # type: ignore[no-untyped-def]
    """Write a ``Feature``'s integers (int64) into ``out[start:end]``; return their number.

    More than there is room for are counted only. `MALFORMED` if it is no list of integers.
    """
    count = start
    while at < stop:
        number, wire, inner, at = field(data, at, stop)
        if at < 0:
            return MALFORMED
        if number != INTEGERS or wire != LENGTH:
            continue
        while inner < at:
            number, wire, content, inner = field(data, inner, at)
            if inner < 0:
                return MALFORMED
            if number != 1 or (wire != LENGTH and wire != VARINT):
                continue
            count = packed_integers(data, content, inner, out, count, end)
            if count < 0:
                return MALFORMED
    return count - start


@njit(cache=True, nogil=True)
def floats(data, at, stop, out, start, end):  # type: ignore[no-untyped-def]
    """Write a ``Feature``'s floats, as the uint32 of their bits, as `integers` does."""
    count = start
    while at < stop:
        number, wire, inner, at = field(data, at, stop)
        if at < 0:
            return MALFORMED
        if number != FLOATS or wire != LENGTH:
            continue
        while inner < at:
            number, wire, content, inner = field(data, inner, at)
            if inner < 0:
                return MALFORMED
            if number != 1 or (wire != LENGTH and wire != FIXED32):
                continue
            count = packed_floats(data, content, inner, out, count, end)
            if count < 0:
                return MALFORMED
    return count - start


@njit(cache=True, nogil=True)
def strings(data, at, stop, out, start, end):  # type: ignore[no-untyped-def]
    """Write where a ``Feature``'s byte strings begin and end (…, 2), as `integers` does."""
    count = start
    while at < stop:
        number, wire, inner, at = field(data, at, stop)
        if at < 0:
            return MALFORMED
        if number != BYTES or wire != LENGTH:
            continue
        while inner < at:
            number, wire, content, inner = field(data, inner, at)
            if inner < 0:
                return MALFORMED
            if number == 1 and wire == LENGTH:
                if count < end:
                    out[count, 0] = content
                    out[count, 1] = inner
                count += 1
    return count - start


@njit(cache=True, nogil=True)
def varints(values, out):  # type: ignore[no-untyped-def]
    """Write numbers (uint64) as varints into ``out``, ten bytes each at most; return how many."""
    at = 0
    for value in values:
        rest = value
        while rest >= _HIGH:
            out[at] = np.uint8((rest & _LOW) | _HIGH)
            rest >>= _SEVEN
            at += 1
        out[at] = np.uint8(rest)
        at += 1
    return at
