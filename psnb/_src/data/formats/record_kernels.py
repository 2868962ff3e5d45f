"""Finding the records of a TFRecord file, compiled by numba.

A record is its length (8 bytes, little-endian), the masked CRC of these, the data, and the masked
CRC of the data (4 bytes each).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.data.formats.crc import half_word, masked_crc
from psnb._src.data.formats.words import word_at

HEADER, FOOTER = 12, 4

CUT, BAD_LENGTH, BAD_DATA = 1, 2, 3
"""Why finding records ended: at a part of one, or at one whose length's or data's CRC is wrong."""


@njit(cache=True, nogil=True)
def find_records(data, starts, ends):  # type: ignore[no-untyped-def]
    """Write where the next records' data begin and end (int64), as many as there is room for.

    Returns how many, how many bytes they are, and why there are no more: 0 if the room is used up,
    `CUT`, `BAD_LENGTH` or `BAD_DATA`.
    """
    at = np.int64(0)
    for count in range(starts.size):
        left = data.size - at
        if left < HEADER:
            return count, at, CUT
        if masked_crc(data, at, at + 8) != half_word(data, at + 8):
            return count, at, BAD_LENGTH
        length = word_at(data, at)
        if left < HEADER + FOOTER or length > np.uint64(left - HEADER - FOOTER):
            return count, at, CUT
        start = at + HEADER
        stop = start + np.int64(length)
        if masked_crc(data, start, stop) != half_word(data, stop):
            return count, at, BAD_DATA
        starts[count] = start
        ends[count] = stop
        at = stop + FOOTER
    return starts.size, at, 0
