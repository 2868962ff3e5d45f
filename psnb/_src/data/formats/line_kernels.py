"""Finding where lines end, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.data.formats.words import WORD, bytes_above, word_at, zeros_below

NEWLINE, RETURN = 10, 13

_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)
_ONES = np.uint64(0x0101010101010101)
_ALL = np.uint64(0x8080808080808080)


@njit(cache=True, nogil=True, inline="always")
def _no_newline(data, at):  # type: ignore[no-untyped-def]
    """Return whether four words have none."""
    a = word_at(data, at) ^ _NEWLINES
    b = word_at(data, at + WORD) ^ _NEWLINES
    c = word_at(data, at + 2 * WORD) ^ _NEWLINES
    d = word_at(data, at + 3 * WORD) ^ _NEWLINES
    # A bit of these is one if a byte is zero. (Mycroft's test; only that some is zero is sure.)
    a, b, c, d = ~a & (a - _ONES), ~b & (b - _ONES), ~c & (c - _ONES), ~d & (d - _ONES)
    return (a | b | c | d) & _ALL == 0


@njit(cache=True, nogil=True)
def cut_lines(data, limit, starts, ends):  # type: ignore[no-untyped-def]
    r"""Find lines that begin before ``limit``, as many as fit into ``starts`` and ``ends``.

    Those get where each begins and ends, without ``\n`` or ``\r\n``. What comes after the last
    newline is no line.

    Returns
    -------
    tuple of int
        How many there are, and where what follows them begins.
    """
    count, begin, at = 0, 0, 0
    while at < data.size:
        while at + 4 * WORD <= data.size and _no_newline(data, at):
            at += 4 * WORD
        if at == data.size:
            break
        if at + WORD <= data.size:
            # Of bytes that differ from a newline in no bit, the highest bit is left.
            marks = bytes_above(word_at(data, at) ^ _NEWLINES, 0) ^ _ALL
            width = WORD
        else:
            marks = np.uint64(128 if data[np.uint64(at)] == NEWLINE else 0)
            width = 1
        while marks:
            end = at + np.int64(zeros_below(marks) >> np.uint64(3))
            if count == starts.size or begin >= limit:
                return count, begin
            starts[count] = begin
            has_return = end > begin and data[np.uint64(end - 1)] == RETURN
            ends[count] = end - 1 if has_return else end
            begin = int(end) + 1
            count += 1
            marks &= marks - np.uint64(1)
        at += width
    return count, begin
