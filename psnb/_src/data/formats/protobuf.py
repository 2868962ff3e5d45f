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

from psnb._src.data.formats.words import WORD, half_word, word_at, zeros_below

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
    # The bytes behind it are cleared, as are the highest bits; then groups of seven bits move
    # together.
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
    `MALFORMED` if it is not a field.
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
            # The last of several lists counts; it begins where the kind changed last.
            kind, begin = number, start
    return begin, kind


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
def _values(data, at, stop, kind, numbers, bits, spans, start, end):  # type: ignore[no-untyped-def]
    """Write a ``Feature``'s values into ``[start:end]`` of the output of its kind.

    Integers (int64) go into ``numbers``, the uint32 of floats' bits into ``bits``, and where byte
    strings begin and end into ``spans``, (…, 2).

    Returns how many there are: more than there is room for are counted only. `MALFORMED` if it is
    no list of this kind.
    """
    count = start
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
            if kind == INTEGERS and wire in (LENGTH, VARINT):
                count = packed_integers(data, content, inner, numbers, count, end)
            elif kind == FLOATS and wire in (LENGTH, FIXED32):
                count = packed_floats(data, content, inner, bits, count, end)
            elif kind == BYTES and wire == LENGTH:
                if count < end:
                    spans[count, 0] = content
                    spans[count, 1] = inner
                count += 1
            if count < 0:
                return MALFORMED
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


MISSING = -2
"""In place of a number of values: there is no such feature, or it holds nothing."""

_ONE_BIT, _FOUR_BYTES, _SIX_BYTES = np.uint64(1), np.uint64(2**32 - 1), np.uint64(2**48 - 1)
_FIRST, _SECOND = 1 << 3 | LENGTH, 2 << 3 | LENGTH

OTHER_KIND = -8
"""Less the kind that the feature has, in place of a number of values: another one than wanted."""


@njit(cache=True, nogil=True)
def _is_name(data, start, stop, names, offsets, feature):  # type: ignore[no-untyped-def]
    begin = offsets[feature]
    if stop - start != offsets[feature + 1] - begin:
        return False
    for i in range(stop - start):  # noqa: SIM110 - numba compiles no generators
        if data[start + i] != names[begin + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def parse_messages(  # type: ignore[no-untyped-def]
    data, starts, ends, names, offsets, kinds, sizes, places, optional, outputs, missing, spots
):
    """Parse many messages in one call, up to the first invalid one.

    In one pass over each: the values of features of fixed size are written where they belong as
    they are met; of the others it is noted where they are, and they are read when it is known how
    many there are.

    Parameters
    ----------
    data : array of uint8
        The messages, in ``starts[i]:ends[i]``.
    names, offsets : arrays of uint8 and int64
        The names of the features wanted, one after the other, and where each begins; eight bytes
        more than that.
    kinds, sizes : arrays of int64
        The features' kinds, and how many values they must have; -1 if any number.
    places : array of int64
        For a feature of fixed size, where in the output of its kind its values begin, message after
        message. For others, their row in ``spots``.
    optional : array of int64
        The row in ``missing`` of a feature of fixed size that may be missing; -1 if it must not.
    outputs : tuple of arrays
        For integers (int64), for floats (the uint32 of their bits), and for where byte strings
        begin and end (int64, (…, 2)).
    missing : array of uint8, shape (optional features, messages)
        Gets a 1 where one is missing.
    spots : array of int64, shape (features of any size, messages, 2)
        Gets where each's values begin and end.

    Returns
    -------
    tuple of int
        How many messages are in order; of the next one the feature that is not, or -1 if it is no
        message; and what is in place of its number of values.
    """
    numbers, bits, spans = outputs
    features = kinds.size
    found = np.empty(features, np.int64)
    # Messages of one file mostly have the same fields in the same order: the field that came next
    # in the previous message is tried first.
    guesses = np.zeros(features + 1, np.int64)
    last = data.size - 18  # of positions where all words of such an entry are in the data
    for i in range(starts.size):
        found[:] = MISSING
        met = 0
        at, bottom = starts[i], ends[i]
        while at < bottom:
            number, wire, outer, at = field(data, at, bottom)
            if at < 0:
                return i, -1, MALFORMED
            if number != 1 or wire != LENGTH:
                continue
            while outer < at:
                feature = guesses[met]
                kind, size = kinds[feature], sizes[feature]
                begin, length = offsets[feature], offsets[feature + 1] - offsets[feature]
                if size >= 0 and kind != BYTES and outer + length <= last:
                    # Laid out as nearly all are: name, then value, packed, no length above 127.
                    head = np.int64(word_at(data, outer) & _FOUR_BYTES)
                    end = outer + 2 + ((head >> 8) & 255)
                    inner = outer + 4 + length
                    left = end - inner
                    head ^= _FIRST | _FIRST << 16 | length << 24
                    if head & ~0x7F00 == 0 and end <= at and left >= 6:
                        tail = np.int64(word_at(data, inner) & _SIX_BYTES)
                        tail ^= _SECOND | (kind << 3 | LENGTH) << 16 | _FIRST << 32
                        same = tail == (left - 2) << 8 | (left - 4) << 24 | (left - 6) << 40
                        for k in range(0, length, WORD):
                            differs = word_at(data, outer + 4 + k) ^ word_at(names, begin + k)
                            if length - k < WORD:
                                differs &= (_ONE_BIT << np.uint64(8 * (length - k))) - _ONE_BIT
                            same &= differs == 0
                        if same:
                            content, start = inner + 6, places[feature] + i * size
                            if kind == FLOATS:
                                stop = packed_floats(data, content, end, bits, start, start + size)
                            else:
                                value, width = short_varint(word_at(data, content))
                                if size == 1 and width == end - content and width <= WORD:
                                    numbers[start] = value
                                    stop = start + 1
                                else:
                                    stop = packed_integers(
                                        data, content, end, numbers, start, start + size
                                    )
                            found[feature] = stop - start if stop >= 0 else MALFORMED
                            met, outer = min(met + 1, features), end
                            continue
                number, wire, inner, outer = field(data, outer, at)
                if outer < 0:
                    return i, -1, MALFORMED
                if number != 1 or wire != LENGTH:
                    continue
                key_start, key_stop, value_start, value_stop = inner, inner, inner, inner
                while inner < outer:
                    number, wire, content, inner = field(data, inner, outer)
                    if inner < 0:
                        return i, -1, MALFORMED
                    if wire == LENGTH and number == 1:
                        key_start, key_stop = content, inner
                    elif wire == LENGTH and number == 2:
                        value_start, value_stop = content, inner
                if not _is_name(data, key_start, key_stop, names, offsets, feature):
                    feature = 0
                    while feature < features and not _is_name(
                        data, key_start, key_stop, names, offsets, feature
                    ):
                        feature += 1
                    if feature == features:
                        continue
                    guesses[met] = feature
                met = min(met + 1, features)
                begin, kind = list_of(data, value_start, value_stop)
                if kind < 0:
                    return i, -1, MALFORMED
                if kind == 0:
                    found[feature] = MISSING
                elif kind != kinds[feature]:
                    found[feature] = OTHER_KIND - kind
                elif sizes[feature] < 0:
                    spots[places[feature], i, 0] = begin
                    spots[places[feature], i, 1] = value_stop
                    found[feature] = 0
                else:
                    start = places[feature] + i * sizes[feature]
                    end = start + sizes[feature]
                    found[feature] = _values(
                        data, begin, value_stop, kind, numbers, bits, spans, start, end
                    )
        for feature in range(features):
            count = found[feature]
            if sizes[feature] < 0:
                if count == MISSING:
                    spots[places[feature], i, 0] = 0
                    spots[places[feature], i, 1] = 0
                elif count < 0:
                    return i, feature, count
            elif count != sizes[feature]:
                if count != MISSING or optional[feature] < 0:
                    return i, feature, count
                missing[optional[feature], i] = 1
    return starts.size, -1, 0


@njit(cache=True, nogil=True)
def varying_values(data, spots, kind, room, offsets, outputs):  # type: ignore[no-untyped-def]
    """Write the values of a feature of any size, and their offsets; return how many are in order.

    The output of its kind must have ``room`` for as many as there may be.
    """
    numbers, bits, spans = outputs
    offsets[0] = 0
    for i in range(offsets.size - 1):
        at, stop, start = spots[i, 0], spots[i, 1], offsets[i]
        count = _values(data, at, stop, kind, numbers, bits, spans, start, room)
        if count < 0:
            return i
        offsets[i + 1] = start + count
    return offsets.size - 1
