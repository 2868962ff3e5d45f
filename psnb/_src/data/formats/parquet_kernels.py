"""Looking through values of Parquet files, compiled by numba."""

from __future__ import annotations

from numba import njit

from psnb._src.data.formats.crc import half_word


@njit(cache=True, nogil=True)
def longest_value(data):  # type: ignore[no-untyped-def]
    """Return the length of the longest of byte strings, each after its length in four bytes."""
    longest = at = 0
    while at + 4 <= data.size:
        size = int(half_word(data, at))
        longest = max(longest, min(size, data.size))
        at += 4 + size
    return longest
