"""RowKind: the rows of which states by slice are made, and how rows of equal keys are added. Pure.

A state by slice is a table: each row says of which slice it is, and has a part of the state of that
slice's examples. Only what is not zero has a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psnb._src.metrics.exact_sums import (
    WORDS,
    exact_totals,
    to_totals,
    to_words,
    whole_total,
)
from psnb._src.metrics.forms import DIGITS, ScoreCounts, carried

NO_CUT = np.uint64(2**64 - 1)
"""The bound of what has all of its keys."""

_COUNT = ("<i8", (DIGITS,))


class RowKind(ABC):
    """The rows of a kind of metric; their first field is the number of their slice."""

    dtype: np.dtype
    cut = False
    """Whether there is a bound to the groups of each slice."""

    @abstractmethod
    def added(
        self, rows: np.ndarray, cuts: np.ndarray, count: int, share: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of ``count`` slices in order, those of equal keys added; and the cuts.

        Of rows that are bounded, each slice has one of ``share`` equal parts at most.
        """

    @abstractmethod
    def negative(self, rows: np.ndarray) -> np.ndarray:
        """Return rows that take these away."""

    def fit(self, rows: np.ndarray) -> bool:
        """Return whether these rows can be ones of this kind."""
        return True

    @abstractmethod
    def array(self, rows: np.ndarray, cut: np.uint64) -> np.ndarray:
        """Return the state of the metric itself, of the rows of one slice, and its cut."""


def summed(rows: np.ndarray, keys: Sequence[str], counts: Sequence[str]) -> np.ndarray:
    """Return rows sorted by keys, those of equal ones added; without those that are all zero."""
    together = _sortable([rows[key] for key in keys])
    # Tables behind each other are sorted runs, which a stable sort only merges.
    order = np.argsort(together, kind="stable")
    ranked = together[order]
    new = np.ones(ranked.size, bool)
    np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
    first = np.flatnonzero(new)
    made, counted = rows[order[first]], np.zeros(first.size, bool)
    for name in counts:
        digits = np.zeros((DIGITS, first.size), np.int64)
        for digit in range(DIGITS):
            column = rows[name][:, digit]
            if first.size and (digit == 0 or column.any()):
                digits[digit] = np.add.reduceat(column[order], first)
        made[name] = carried(digits).T
        counted |= digits.any(axis=0)
    return made if counted.all() else made[counted]


def _sortable(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return the columns as bytes of which the order is that of the numbers, the first first."""
    parts = []
    for column in columns:
        if column.dtype.kind == "f":  # as whole numbers: those below 0 have the highest bit
            bits = np.ascontiguousarray(column).view(np.int64)
            column = np.where(bits < 0, ~bits, bits ^ np.int64(-(2**63))).view(np.uint64)
        swapped = column.astype(column.dtype.newbyteorder(">"))
        parts.append(swapped.view("u1").reshape(column.size, column.dtype.itemsize))
    together = np.concatenate(parts, axis=1)
    return together.view(f"S{together.shape[1]}").reshape(-1)


@dataclass(frozen=True)
class SumRows(RowKind):
    """A few exact sums: a row for each slice.

    Parameters
    ----------
    sums : int
        How many.
    """

    sums: int

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        """The slice and its sums, as in `ExactSums`."""
        return np.dtype([("slice", "<u4"), ("words", "<u8", (self.sums, WORDS))])

    def of(self, columns: Sequence[np.ndarray], owners: np.ndarray) -> np.ndarray:
        """Return the rows of examples, of what each adds to each sum, and their slices."""
        totals, count = [], int(owners.max(initial=-1)) + 1
        for column in columns:
            if column.dtype == bool:
                found = np.bincount(owners[column], minlength=count)
                totals.append([whole_total(each) for each in found.tolist()])
            else:
                totals.append(exact_totals(column, owners, count))
        return self._made([[*each] for each in zip(*totals, strict=True)])

    def added(
        self, rows: np.ndarray, cuts: np.ndarray, count: int, share: int
    ) -> tuple[np.ndarray, np.ndarray]:
        totals = [[0] * self.sums for _ in range(count)]
        found = iter(to_totals(rows["words"].reshape(-1, WORDS)))
        for number in rows["slice"].tolist():
            own = totals[number]
            for place in range(self.sums):
                own[place] += next(found)
        return self._made(totals), cuts

    def negative(self, rows: np.ndarray) -> np.ndarray:
        negated, found = rows.copy(), to_totals(rows["words"].reshape(-1, WORDS))
        negated["words"] = to_words([-each for each in found]).reshape(-1, self.sums, WORDS)
        return negated

    def array(self, rows: np.ndarray, cut: np.uint64) -> np.ndarray:
        found = rows["words"].reshape(-1, self.sums, WORDS)
        return np.ascontiguousarray(found[0] if len(found) else np.zeros((self.sums, WORDS), "<u8"))

    def _made(self, totals: list[list[int]]) -> np.ndarray:
        """Return a row for each slice whose sums are not all zero."""
        held = [number for number, each in enumerate(totals) if any(each)]
        made = np.zeros(len(held), self.dtype)
        made["slice"] = held
        words = to_words([each for number in held for each in totals[number]])
        made["words"] = words.reshape(-1, self.sums, WORDS)
        return made


@dataclass(frozen=True)
class ScoreRows(RowKind):
    """How many negatives and positives each score of a slice has, or each bucket.

    Parameters
    ----------
    buckets : int or None
        How many buckets; None for scores.
    """

    buckets: int | None
    dtype = np.dtype(
        [("slice", "<u4"), ("score", "<f8"), ("negatives", *_COUNT), ("positives", *_COUNT)]
    )

    def added(
        self, rows: np.ndarray, cuts: np.ndarray, count: int, share: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return summed(rows, ("slice", "score"), ("negatives", "positives")), cuts

    def fit(self, rows: np.ndarray) -> bool:
        scores = rows["score"]
        return self.buckets is None or bool(((scores >= 0) & (scores < self.buckets)).all())

    def negative(self, rows: np.ndarray) -> np.ndarray:
        found = rows.copy()
        found["negatives"] *= -1
        found["positives"] *= -1
        return found

    def array(self, rows: np.ndarray, cut: np.uint64) -> np.ndarray:
        if self.buckets is None:
            made = np.empty(rows.size, ScoreCounts().zeros().dtype)
            for name in made.dtype.names or ():
                made[name] = rows[name]
            return made
        counts = np.zeros((DIGITS, 2, self.buckets), "<i8")
        places = rows["score"].astype(np.intp)
        counts[:, 0, places], counts[:, 1, places] = rows["negatives"].T, rows["positives"].T
        return counts
