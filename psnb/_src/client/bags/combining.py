"""Bags: rows of several ids combined into one, and its gradient spread over them. Pure.

Bags are given as ``(values, offsets)``. First, what does not depend on the rows is computed: the
distinct ids, and the factor of each id in each bag. Rows are then combined, and gradients spread,
with the same factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from psnb._src.server import kernels
from psnb._src.server.hashing import distinct
from psnb._src.server.kernels import read_only
from psnb._src.server.tables.bags import MEMBER, sum_by_id, sum_rows
from psnb._src.server.tables.operations import BagMembers
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
def _winners(rows, take, bag, out):  # type: ignore[no-untyped-def]
    """Write the row with the largest number, by column and bag; -1 stays if there is none."""
    for i in range(take.size):
        for j in range(rows.shape[1]):
            best = out[bag[i], j]
            if best < 0 or rows[take[i], j] > rows[best, j]:
                out[bag[i], j] = take[i]


@njit(cache=True, nogil=True)
def _deal(position, bounds, factors, part, place, out_position, out_factors, lengths):  # type: ignore[no-untyped-def]
    """Write the members of bags by the part that has their ids, each part's in their order.

    ``part`` and ``place`` say of each id which that is, and where the id is there. ``lengths`` gets
    how many members each part has of each bag, ``(parts, bags)``. Returns where each part's end.
    """
    stops = np.zeros(lengths.shape[0] + 1, np.int64)
    for i in range(position.size):
        stops[part[position[i]] + 1] += 1
    for i in range(lengths.shape[0]):
        stops[i + 1] += stops[i]
    ends = stops[:-1]
    for bag in range(lengths.shape[1]):
        for i in range(bounds[bag], bounds[bag + 1]):
            at = part[position[i]]
            out_position[ends[at]] = place[position[i]]
            if factors.size:
                out_factors[ends[at]] = factors[i]
            lengths[at, bag] += 1
            ends[at] += 1
    return ends


@dataclass(frozen=True, slots=True)
class Bags:
    """Bags of ids, ready to be combined.

    Attributes
    ----------
    combiner : Combiner
        How each becomes one row.
    ids : numpy.ndarray
        All distinct ids, uint64 ``(m,)``, in the order of their first appearance.
    members : BagMembers
        Which of them are in each bag, with factors if they are weighted.
    scale : numpy.ndarray or None
        What each bag's sum is multiplied by, ``(count, 1)``; None for 1.
    """

    combiner: Combiner
    ids: np.ndarray
    members: BagMembers
    scale: np.ndarray | None

    @property
    def count(self) -> int:
        """How many bags."""
        return self.members.bounds.size - 1

    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of each bag, ``(count, dim)``, from the rows of ``ids``."""
        if self.combiner is Combiner.MAX:
            out = np.zeros((self.count, rows.shape[1]), rows.dtype)
            bag, column, row = self._winners(rows)
            out[bag, column] = rows[row, column]
            return out
        out = np.empty((self.count, rows.shape[1]), rows.dtype)
        sum_rows(self.members, rows, out)
        return self.scaled(out)

    def spread(self, gradients: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """Return the gradient of each of ``ids``, ``(m, dim)``, from the bags' gradients.

        ``rows`` are the rows of ``ids``; only the combiner ``max`` needs them.
        """
        out = np.zeros((self.ids.size, gradients.shape[1]), gradients.dtype)
        if rows is not None:
            bag, column, row = self._winners(rows)
            np.add.at(out, (row, column), gradients[bag, column])
        else:
            sum_by_id(self.members, self.scaled(gradients), out)
        return out

    def scaled(self, sums: np.ndarray) -> np.ndarray:
        """Return the sums of bags, or their gradients, times the scale of each."""
        return sums if self.scale is None else sums * self.scale

    def total(self, counts: np.ndarray) -> np.ndarray:
        """Return, for each of ``ids``, the sum of the counts of the bags that it is in."""
        return np.bincount(self.members.position, counts[self.bag()], self.ids.size)

    def bag(self) -> np.ndarray:
        """Return which bag each member is in, int64 ``(n,)``."""
        return np.repeat(np.arange(self.count), np.diff(self.members.bounds))

    def divided(self, parts: Sequence[Any]) -> list[tuple[BagMembers, np.ndarray]]:
        """Return what parts of ``ids`` have, by their positions: members, and of which bags.

        Bags of which a part has no member are left out there.
        """
        of, count = self.members, self.count
        if len(parts) == 1:
            lengths = np.diff(of.bounds)[None]
            position, factors, starts, stops = of.position, of.factors, [0], [of.position.size]
        else:
            part, place = np.empty(self.ids.size, np.int64), np.empty(self.ids.size, MEMBER)
            for number, at in enumerate(parts):
                part[at], place[at] = number, np.arange(at.size)
            position, factors = np.empty_like(of.position), np.empty_like(of.factors)
            lengths = np.zeros((len(parts), count), np.int64)
            given = read_only(of.position), read_only(of.bounds), read_only(of.factors)
            stops = _deal(*given, part, place, position, factors, lengths).tolist()
            starts = [0, *stops[:-1]]
        found = []
        for start, stop, own in zip(starts, stops, lengths, strict=True):
            bags = np.flatnonzero(own)
            bounds = np.append(0, np.cumsum(own[bags]))
            members = BagMembers(position[start:stop], bounds, factors[start:stop])
            found.append((members, bags))
        return found

    def give_finite(self, gradients: np.ndarray) -> bool:
        """Return whether all of what they spread is finite for sure, without spreading it."""
        of = self.members
        most = np.abs(of.factors).sum(dtype=np.float64) if of.factors.size else of.position.size
        largest = kernels.norm(self.scaled(gradients)) * max(1.0, float(most))
        return largest < float(np.finfo(gradients.dtype).max)

    def _winners(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each bag and column that has a largest number, and the row with it."""
        found = np.full((self.count, rows.shape[1]), -1, np.int64)
        _winners(read_only(rows), self.members.position, self.bag(), found)
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
    if padding_idx is not None:
        real = ids != np.uint64(padding_idx)
        bounds = np.append(0, np.cumsum(real))[bounds]
        ids, weights = ids[real], None if weights is None else weights[real]
    found, position = distinct(ids)
    factors, scale = _factors(weights, bounds, kind, dtype)
    return Bags(kind, found, BagMembers(position.astype(MEMBER), bounds, factors), scale)


def _factors(
    weights: np.ndarray | None, bounds: np.ndarray, kind: Combiner, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the factors of members, and the scale of bags."""
    counts = np.diff(bounds)
    if weights is None:
        divisors = np.maximum(counts, 1)[:, None]
        if kind is Combiner.MEAN:
            scale = (1.0 / divisors).astype(dtype)
        elif kind is Combiner.SQRTN:
            scale = (1.0 / np.sqrt(divisors)).astype(dtype)
        else:
            scale = None
        return np.empty(0, dtype), scale
    if kind is Combiner.SUM:
        return weights.copy(), None
    # By member: a bag's scale alone might be too large a number.
    wide, bag = weights.astype(np.float64), np.repeat(np.arange(counts.size), counts)
    divisors = (
        np.bincount(bag, wide, counts.size)
        if kind is Combiner.MEAN
        else np.sqrt(np.bincount(bag, wide * wide, counts.size))
    )
    inverse = np.divide(1.0, divisors, out=np.zeros(counts.size), where=divisors != 0)
    return (wide * inverse[bag]).astype(dtype), None
