"""Parsing Paddle's MultiSlot text, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.data.formats.parse_numbers import OK, UNKNOWN, is_space, read_float, read_unsigned
from psnb._src.data.formats.short_numbers import short_float, short_unsigned
from psnb._src.data.formats.words import WORD, word_at

_ZERO, _NINE = np.uint64(48), np.uint64(9)

EMPTY, FEW_SLOTS, COUNT, FEW_VALUES, SIZE, TRAILING = 11, 12, 13, 14, 15, 16
"""What is wrong with a line: it is empty; ends before a slot; has junk for a count; ends before a
slot's last value; a slot has not as many as its shape; something follows the last slot."""


@njit(cache=True, nogil=True, inline="always")
def _skip(data, at, stop):  # type: ignore[no-untyped-def]
    while at < stop and is_space(data[np.uint64(at)]):
        at += 1
    return at


@njit(cache=True, nogil=True)
def parse_lines(  # type: ignore[no-untyped-def]
    data, starts, ends, sizes, is_float, is_text, counts, totals, numbers, floats, unknown
):
    """Parse lines, up to the first that is not in order.

    Parameters
    ----------
    data : array of uint8
        The lines, in ``starts[i]:ends[i]``.
    sizes : array of int64
        How many values each slot must have; -1 if any number.
    is_float : array of bool
        Whether a slot holds floats.
    is_text : array of bool
        Whether a slot holds words: of each, ``numbers`` gets where it begins, times 2**32, and
        where it ends.
    counts : array of int64, shape (lines, slots)
        Gets how many values each slot has.
    totals : array of int64, shape (slots,)
        Gets their sums.
    numbers, floats : arrays of uint64 and float32
        Get the values, in the order of the file. Each must have room for half as many as there are
        bytes.
    unknown : array of int32, shape (room of floats, 4)
        Gets those floats that are yet to be read: their index, where they begin and
        end, their slot.

    Returns
    -------
    tuple of int
        How many lines are in order; of the next the slot, the position and what is wrong, `OK` if
        there is none; how many values in ``unknown`` there are, of all lines met.
    """
    totals[:] = 0
    number, real, left = 0, 0, 0
    last = data.size - 2 * WORD
    for i in range(starts.size):
        at, stop = starts[i], ends[i]
        if _skip(data, at, stop) == stop:
            return i, 0, at, EMPTY, left
        for slot in range(sizes.size):
            at = _skip(data, at, stop)
            if at == stop:
                return i, slot, at, FEW_SLOTS, left
            begin = at
            many = np.uint64(data[np.uint64(at)]) - _ZERO
            if many <= _NINE and at + 1 < stop and is_space(data[np.uint64(at + 1)]):
                # One digit, as nearly all.
                at += 1
            else:
                many, at, wrong = read_unsigned(data, at, stop)
                if wrong != OK:
                    return i, slot, begin, COUNT, left
            # A value takes two bytes at least, with the space before it.
            if many > np.uint64(stop - at) // np.uint64(2):
                return i, slot, begin, FEW_VALUES, left
            count = np.int64(many)
            if sizes[slot] >= 0 and count != sizes[slot]:
                return i, slot, begin, SIZE, left
            counts[i, slot] = count
            if is_float[slot]:
                for _ in range(count):
                    at = _skip(data, at, stop)
                    if at == stop:
                        return i, slot, begin, FEW_VALUES, left
                    if at <= last:
                        value, size = short_float(word_at(data, at), word_at(data, at + WORD))
                        if size > 0:
                            floats[real] = value
                            real += 1
                            at += size
                            continue
                    begin_value = at
                    value, at, wrong = read_float(data, at, stop)
                    if wrong == UNKNOWN:
                        unknown[left, 0] = real
                        unknown[left, 1] = begin_value
                        unknown[left, 2] = at
                        unknown[left, 3] = slot
                        left += 1
                    floats[real] = value
                    real += 1
            elif is_text[slot]:
                for _ in range(count):
                    at = _skip(data, at, stop)
                    if at == stop:
                        return i, slot, begin, FEW_VALUES, left
                    begin_value = at
                    while at < stop and not is_space(data[np.uint64(at)]):
                        at += 1
                    numbers[number] = np.uint64(begin_value) << np.uint64(32) | np.uint64(at)
                    number += 1
            else:
                for _ in range(count):
                    at = _skip(data, at, stop)
                    if at == stop:
                        return i, slot, begin, FEW_VALUES, left
                    if at <= last:
                        id_, size = short_unsigned(word_at(data, at), word_at(data, at + WORD))
                        if size > 0:
                            numbers[number] = id_
                            number += 1
                            at += size
                            continue
                    begin_value = at
                    value, at, wrong = read_unsigned(data, at, stop)
                    if wrong != OK:
                        return i, slot, begin_value, wrong, left
                    numbers[number] = value
                    number += 1
        at = _skip(data, at, stop)
        if at != stop:
            return i, sizes.size - 1, at, TRAILING, left
        for slot in range(sizes.size):
            totals[slot] += counts[i, slot]
    return starts.size, 0, 0, OK, left


@njit(cache=True, nogil=True)
def spread(counts, is_float, begins, rows, numbers, floats, slot_numbers, slot_floats, offsets):  # type: ignore[no-untyped-def]
    """Put the values of each slot one after the other.

    ``begins`` says where each slot's begin in ``slot_numbers`` or ``slot_floats``; it is moved to
    where they end. Where those of each line begin goes into the row of ``offsets`` (int64,
    (…, lines + 1)) that ``rows`` says, if it is not negative.
    """
    number, real = 0, 0
    lines, slots = counts.shape
    offsets[:, 0] = 0
    for i in range(lines):
        for slot in range(slots):
            count, at, row = counts[i, slot], begins[slot], rows[slot]
            if is_float[slot]:
                for j in range(count):
                    slot_floats[at + j] = floats[real + j]
                real += count
            else:
                for j in range(count):
                    slot_numbers[at + j] = numbers[number + j]
                number += count
            begins[slot] = at + count
            if row >= 0:
                offsets[row, i + 1] = offsets[row, i] + count
