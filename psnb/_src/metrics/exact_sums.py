"""Exact sums of float64 numbers: the same bit for bit in any order and grouping. Pure.

Every finite float64 is a whole multiple of 2**-1074. So a sum of them is a whole number of such
units, and adding whole numbers rounds nothing. A sum is kept as that number in two's complement,
in 34 words of 64 bits: room for 2**77 of the largest numbers. It is rounded once, when it is
read.

After the long accumulator of Kulisch, *Computer Arithmetic and Validity*, 2013, ch. 8; grouping
numbers by their exponents first is as in Neal, *Fast exact summation using small and large
superaccumulators*, 2015.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WORDS = 34
"""Words of uint64, the lowest first, in which a sum is kept: 272 bytes."""

FRACTION_BITS = 1074
"""Binary digits behind the point."""

_HALF = 26  # bits of the lower half of a fraction of 53 bits
_MOST = 1 << 20  # numbers summed in float64 at once: 2**20 halves of 27 bits stay below 2**53


def exact_total(numbers: np.ndarray) -> int:
    """Return the sum of finite float64 numbers, of shape ``(n,)``, in units of 2**-1074."""
    return exact_totals(numbers, None, 1)[0]


def exact_totals(numbers: np.ndarray, owners: np.ndarray | None, count: int) -> list[int]:
    """Return sums of finite float64 numbers, of shape ``(n,)``, in units of 2**-1074.

    Each number is added to the sum of its owner, from 0 to ``count - 1``; without owners all to the
    first.
    """
    totals = [0] * count
    for start in range(0, numbers.size, _MOST):
        part = slice(start, start + _MOST)
        bits = np.ascontiguousarray(numbers[part], np.float64).view(np.int64)
        exponents = (bits >> 52) & 0x7FF
        fractions = (bits & (1 << 52) - 1) | ((exponents > 0).astype(np.int64) << 52)
        np.negative(fractions, out=fractions, where=bits < 0)
        # In units of 2**-1074 a number is its fraction, shifted; below 2**-1022 it is not shifted.
        places = np.maximum(exponents, 1) - 1
        lowest = int(places.min())
        places -= lowest
        width = int(places.max()) + 1
        if owners is not None:
            places += owners[part] * width
        # Each sum of halves is a whole number below 2**53, so it is exact.
        uppers = np.bincount(places, fractions >> _HALF)
        lowers = np.bincount(places, fractions & (1 << _HALF) - 1)
        held = np.flatnonzero((uppers != 0) | (lowers != 0))
        halves = uppers[held].tolist(), lowers[held].tolist()
        for place, upper, lower in zip(held.tolist(), *halves, strict=True):
            owner, shift = divmod(place, width)
            totals[owner] += (int(upper) << _HALF) + int(lower) << shift + lowest
    return totals


def whole_total(number: int) -> int:
    """Return a whole number in units of 2**-1074."""
    return number << FRACTION_BITS


def to_words(totals: Sequence[int]) -> np.ndarray:
    """Return sums as an array of shape ``(sums, 34)`` and dtype uint64."""
    packed = b"".join(total.to_bytes(8 * WORDS, "little", signed=True) for total in totals)
    return np.frombuffer(packed, "<u8").reshape(len(totals), WORDS)


def to_totals(words: np.ndarray) -> list[int]:
    """Return what `to_words` was given."""
    return [int.from_bytes(row.tobytes(), "little", signed=True) for row in words]


def rounded(numerator: int, denominator: int = 1 << FRACTION_BITS) -> float:
    """Return the float64 nearest to a fraction; infinite if it is too large for one."""
    try:
        return numerator / denominator  # Python rounds a fraction of whole numbers once
    except OverflowError:
        return float("inf") if (numerator > 0) == (denominator > 0) else float("-inf")
