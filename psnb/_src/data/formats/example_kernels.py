"""Parsing many ``tf.train.Example`` messages at once, compiled by numba.

One pass over each message: the values of features of fixed size are written where they belong as
they are met; of the others it is noted where they are, and they are read when it is known how many
there are.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.data.formats.wire import (
    BYTES,
    FLOATS,
    INTEGERS,
    LENGTH,
    MALFORMED,
    count_values,
    field,
    floats,
    integers,
    list_of,
    packed_floats,
    packed_integers,
    short_varint,
    strings,
)
from psnb._src.data.formats.words import WORD, word_at

MISSING = -2
"""In place of a number of values: there is no such feature, or it holds nothing."""

_ONE, _FOUR_BYTES, _SIX_BYTES = np.uint64(1), np.uint64(2**32 - 1), np.uint64(2**48 - 1)
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
def _values(data, at, stop, kind, numbers, bits, spans, start, end):  # type: ignore[no-untyped-def]
    """Write a feature's values into the output of its kind; return how many there are."""
    if kind == INTEGERS:
        return integers(data, at, stop, numbers, start, end)
    if kind == FLOATS:
        return floats(data, at, stop, bits, start, end)
    return strings(data, at, stop, spans, start, end)


@njit(cache=True, nogil=True)
def parse_messages(  # type: ignore[no-untyped-def]
    data, starts, ends, names, offsets, kinds, sizes, places, optional, outputs, missing, spots
):
    """Parse messages, up to the first that is not in order.

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
        Of a feature of fixed size, where in the output of its kind its values begin, those of one
        message after those of another. Of others, their row in ``spots``.
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
    # Messages of one file mostly have the same fields in the same order: what came next after the
    # fields before is looked for first.
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
                                differs &= (_ONE << np.uint64(8 * (length - k))) - _ONE
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
def varying_offsets(data, spots, kind, offsets):  # type: ignore[no-untyped-def]
    """Write the offsets of the values of a feature of any size; return how many are in order."""
    offsets[0] = 0
    for i in range(offsets.size - 1):
        count = count_values(data, spots[i, 0], spots[i, 1], kind)
        if count < 0:
            return i
        offsets[i + 1] = offsets[i] + count
    return offsets.size - 1


@njit(cache=True, nogil=True)
def varying_values(data, spots, kind, offsets, outputs):  # type: ignore[no-untyped-def]
    """Write the values that `varying_offsets` counted; return how many messages are in order."""
    numbers, bits, spans = outputs
    for i in range(offsets.size - 1):
        at, stop, start, end = spots[i, 0], spots[i, 1], offsets[i], offsets[i + 1]
        if _values(data, at, stop, kind, numbers, bits, spans, start, end) != end - start:
            return i
    return offsets.size - 1
