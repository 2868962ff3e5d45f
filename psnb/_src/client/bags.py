"""Bags: rows of several ids combined into one, and its gradient spread over them. Pure.

Bags are given as ``(values, offsets)``. First, what does not depend on the rows is computed: the
distinct ids, and the factor of each id in each bag. Rows are then combined, and gradients spread,
with the same factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from psnb._src.server.kernels import read_only
from psnb._src.utils.checks import choice
from psnb._src.utils.text import shown
from psnb.errors import InvalidArrayError


class Combiner(StrEnum):
    """How the rows of a bag become one."""

    MEAN = "mean"
    SUM = "sum"
    SQRTN = "sqrtn"
    MAX = "max"


@njit(cache=True, nogil=True)
def _add_rows(source, take, put, factors, out):  # type: ignore[no-untyped-def]
    """Add ``factors[i] * source[take[i]]`` to ``out[put[i]]``."""
    for i in range(take.size):
        for j in range(source.shape[1]):
            out[put[i], j] += factors[i] * source[take[i], j]


@njit(cache=True, nogil=True)
def _winners(rows, take, bag, out):  # type: ignore[no-untyped-def]
    """Write the row with the largest number, by column and bag; -1 stays if there is none."""
    for i in range(take.size):
        for j in range(rows.shape[1]):
            best = out[bag[i], j]
            if best < 0 or rows[take[i], j] > rows[best, j]:
                out[bag[i], j] = take[i]


@dataclass(frozen=True, slots=True)
class Bags:
    """Bags of ids, ready to be combined.

    Attributes
    ----------
    count : int
        How many bags.
    combiner : Combiner
        How each becomes one row.
    ids : numpy.ndarray
        All distinct ids, uint64 ``(m,)``.
    position : numpy.ndarray
        Where in ``ids`` each member of a bag is, int64 ``(n,)``.
    bag : numpy.ndarray
        Which bag each member is in, int64 ``(n,)``.
    factors : numpy.ndarray
        The factor of each member's row, ``(n,)``.
    """

    count: int
    combiner: Combiner
    ids: np.ndarray
    position: np.ndarray
    bag: np.ndarray
    factors: np.ndarray

    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of each bag, ``(count, dim)``, from the rows of ``ids``."""
        out = np.zeros((self.count, rows.shape[1]), rows.dtype)
        if self.combiner is Combiner.MAX:
            bag, column, row = self._winners(rows)
            out[bag, column] = rows[row, column]
        else:
            _add_rows(read_only(rows), self.position, self.bag, self.factors, out)
        return out

    def spread(self, gradients: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """Return the gradient of each of ``ids``, ``(m, dim)``, from the bags' gradients.

        ``rows`` are the rows of ``ids``; only the combiner ``max`` needs them.
        """
        out = np.zeros((self.ids.size, gradients.shape[1]), gradients.dtype)
        if rows is not None:
            bag, column, row = self._winners(rows)
            np.add.at(out, (row, column), gradients[bag, column])
        else:
            _add_rows(read_only(gradients), self.bag, self.position, self.factors, out)
        return out

    def total(self, counts: np.ndarray) -> np.ndarray:
        """Return, for each of ``ids``, the sum of the counts of the bags that it is in."""
        return np.bincount(self.position, counts[self.bag], self.ids.size)

    def _winners(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each bag and column that has a largest number, and the row with it."""
        found = np.full((self.count, rows.shape[1]), -1, np.int64)
        _winners(read_only(rows), self.position, self.bag, found)
        bag, column = np.nonzero(found >= 0)
        return bag, column, found[bag, column]


def make_bags(
    ids: np.ndarray,
    offsets: ArrayLike,
    include_last_offset: bool,
    combiner: str,
    weights: np.ndarray | None,
    padding_idx: int | None,
    dtype: np.dtype,
    what: str,
) -> Bags:
    """Return the bags, after checks.

    Raises
    ------
    ConfigurationError
        If there is no such combiner.
    InvalidArrayError
        If ids, offsets and weights do not fit each other.
    """
    kind = Combiner(choice(f"{what}: combiner", combiner, [each.value for each in Combiner]))
    if ids.ndim != 1:
        raise InvalidArrayError(f"{what}: values must have one axis, found shape {ids.shape}")
    starts = np.asarray(offsets)
    if starts.size == 0:
        starts = starts.astype(np.int64)
    if starts.ndim != 1 or starts.dtype.kind not in "iu":
        raise InvalidArrayError(
            f"{what}: offsets must be integers along one axis, found {shown(offsets)}"
        )
    starts = starts.astype(np.int64)
    ends = starts.size > 0 and starts[-1] == ids.size
    if include_last_offset:
        if not ends:
            raise InvalidArrayError(
                f"{what}: with include_last_offset=True, offsets must end with the number of "
                f"values, which is {ids.size}"
            )
        starts = starts[:-1]
    bounds = np.append(starts, ids.size)
    if bounds[0] != 0 or (np.diff(bounds) < 0).any():
        raise InvalidArrayError(
            f"{what}: offsets must start with 0, never fall and end within the {ids.size} values"
        )
    if ends and not include_last_offset:
        # A last bag without ids, or the end of the last bag? Only the caller knows.
        raise InvalidArrayError(
            f"{what}: offsets end with {ids.size}, the number of values. If that is where the last "
            "bag ends, as in a Ragged, say include_last_offset=True or pass the Ragged itself; if "
            f"a last bag without ids begins there, append {ids.size} once more and say so, too"
        )
    if weights is not None and kind is Combiner.MAX:
        raise InvalidArrayError(f"{what}: the combiner 'max' takes no weights")
    bag = np.repeat(np.arange(starts.size), np.diff(bounds))
    factors = np.ones(ids.size, dtype) if weights is None else weights
    if padding_idx is not None:
        real = ids != np.uint64(padding_idx)
        ids, bag, factors = ids[real], bag[real], factors[real]
    distinct, position = np.unique(ids, return_inverse=True)
    return Bags(
        starts.size, kind, distinct, position, bag, _normalised(factors, bag, starts.size, kind)
    )


def _normalised(factors: np.ndarray, bag: np.ndarray, count: int, kind: Combiner) -> np.ndarray:
    wide = factors.astype(np.float64)
    if kind is Combiner.MEAN:
        divisors = np.bincount(bag, wide, count)
    elif kind is Combiner.SQRTN:
        divisors = np.sqrt(np.bincount(bag, wide * wide, count))
    else:
        return factors.copy()
    inverse = np.divide(1.0, divisors, out=np.zeros(count), where=divisors != 0)
    normalised: np.ndarray = (wide * inverse[bag]).astype(factors.dtype)
    return normalised
