"""StateForm: the arrays of a metric's states, and how two are joined. Pure.

Joining is exact, so the result is the same bit for bit in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psnb._src.metrics.exact_sums import WORDS, to_totals, to_words
from psnb.errors import ConfigurationError

UNIT = 1 << 20
"""Counts are kept as whole multiples of ``1 / UNIT``, so that weights need not be whole."""

DIGITS = 3
"""A count is a number of units and two further digits, as of a number with places behind the point.

So it holds every weight from 1 / `UNIT` on as float64 has it."""

DIGIT_BITS = 26
"""Bits of each further digit: float64 sums of 2**27 of them are exact."""


class StateForm(ABC):
    """The arrays of a metric's states."""

    @abstractmethod
    def zeros(self) -> np.ndarray:
        """Return the state of no examples."""

    @abstractmethod
    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the state of the examples of all, of which there is one at least."""

    @abstractmethod
    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Return the state of the other examples, of which ``whole`` has more than ``part``."""

    def to_bytes(self, array: np.ndarray) -> bytes:
        """Return a state as bytes, of which `of_bytes` makes it again."""
        return array.tobytes()

    def of_bytes(self, data: bytes) -> np.ndarray:
        """Return the state; raises ValueError if it has another size."""
        empty = self.zeros()
        return np.frombuffer(data, empty.dtype).reshape(-1, *empty.shape[1:]).copy()

    def fits(self, array: np.ndarray) -> bool:
        """Return whether an array has the dtype and shape of such a state."""
        empty = self.zeros()
        return array.dtype == empty.dtype and array.shape == empty.shape


@dataclass(frozen=True)
class ExactSums(StateForm):
    """A few exact sums: uint64 of shape ``(sums, 34)``.

    Parameters
    ----------
    sums : int
        How many.
    """

    sums: int

    def zeros(self) -> np.ndarray:
        return np.zeros((self.sums, WORDS), "<u8")

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return to_words([sum(totals) for totals in zip(*map(to_totals, arrays), strict=True)])

    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        pairs = zip(to_totals(whole), to_totals(part), strict=True)
        return to_words([one - other for one, other in pairs])


@dataclass(frozen=True)
class BucketCounts(StateForm):
    """How many negatives and positives each bucket has: int64, ``(DIGITS, 2, buckets)``.

    Parameters
    ----------
    buckets : int
        How many.
    """

    buckets: int

    def zeros(self) -> np.ndarray:
        return np.zeros((DIGITS, 2, self.buckets), "<i8")

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        total = arrays[0].copy()
        for each in arrays[1:]:
            total += each
            carried(total)  # each time: a sum that overflows twice may be positive again
        return total

    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        return carried(whole - part)


@dataclass(frozen=True)
class ScoreCounts(StateForm):
    """How many negatives and positives each score has, by score: three fields, ``(scores,)``.

    The counts have their `DIGITS` behind each other.
    """

    def zeros(self) -> np.ndarray:
        count = ("<i8", (DIGITS,))
        return np.zeros(0, [("score", "<f8"), ("negatives", *count), ("positives", *count)])

    def of(self, scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the state of scores that may repeat, with counts ``(DIGITS, 2, scores)``."""
        # Stable sorting takes next to no time for sorted arrays behind each other.
        order = np.argsort(scores, kind="stable")
        ranked = scores[order]
        new = np.ones(ranked.size, bool)
        np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
        first = np.flatnonzero(new)
        made = np.empty(first.size, self.zeros().dtype)
        made["score"] = ranked[first]
        negatives, positives = (_sums(counts[:, side], order, first) for side in range(2))
        made["negatives"], made["positives"] = negatives.T, positives.T
        counted = negatives.any(axis=0) | positives.any(axis=0)
        return made if counted.all() else made[counted]

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        joined = np.concatenate(arrays)
        return self.of(joined["score"], self.counts(joined))

    def counts(self, array: np.ndarray) -> np.ndarray:
        """Return the counts of a state, ``(DIGITS, 2, scores)``."""
        return np.stack([array["negatives"].T, array["positives"].T], axis=1)

    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        negated = part.copy()
        negated["negatives"] *= -1
        negated["positives"] *= -1
        return self.join([whole, negated])

    def fits(self, array: np.ndarray) -> bool:
        return array.dtype == self.zeros().dtype and array.ndim == 1


def _sums(digits: np.ndarray, order: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the sums of groups, ``(DIGITS, groups)``, of digits ``(DIGITS, scores)``.

    Further digits are mostly zero, and then not sorted: only small and odd weights have them.
    """
    found = np.zeros((DIGITS, first.size), np.int64)
    for digit, each in enumerate(digits):
        if first.size and (digit == 0 or each.any()):
            # Not bincount, whose float64 sums hold 53 bits.
            found[digit] = np.add.reduceat(each[order], first)
    return carried(found)


def carried(counts: np.ndarray) -> np.ndarray:
    """Bring digits (the first axis) that were added into their range; in place."""
    for digit in range(DIGITS - 1, 0, -1):
        if counts[digit].any():
            counts[digit - 1] += counts[digit] >> DIGIT_BITS
            counts[digit] &= (1 << DIGIT_BITS) - 1
    if counts.size and counts[0].min() < 0:
        raise ConfigurationError(
            "a count of a metric would be negative, or 2**43 and more: subtract only a state of "
            "some of the same examples, and scale weights to about 1"
        )
    return counts
