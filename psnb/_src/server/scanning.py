"""Compiled loops over all rows of a table: those nearest to queries, and norms. Pure.

They compute in float64, whatever the rows are, and each row in the same order of additions: equal
rows have equal scores, wherever they are and whatever is asked at the same time. (A product of
matrices has not: BLAS rounds the rows at the edges of its blocks in another way.)

As in `psnb._src.server.kernels`, numba caches the machine code.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numba import njit


class Metric(IntEnum):
    """What makes a row near: the cosine or the product with the query, or the distance to it."""

    COSINE = 0
    DOT = 1
    L2 = 2


_COSINE, _L2 = int(Metric.COSINE), int(Metric.L2)


@njit(cache=True, nogil=True, inline="always")
def _farther(key, number, other_key, other_number):  # type: ignore[no-untyped-def]
    return key > other_key or (key == other_key and number > other_number)


@njit(cache=True, nogil=True)
def _sift_up(keys, found, at):  # type: ignore[no-untyped-def]
    key, number = keys[at], found[at]
    while at:
        above = (at - 1) >> 1
        if not _farther(key, number, keys[above], found[above]):
            break
        keys[at], found[at] = keys[above], found[above]
        at = above
    keys[at], found[at] = key, number


@njit(cache=True, nogil=True)
def _sift_down(keys, found):  # type: ignore[no-untyped-def]
    key, number = keys[0], found[0]
    at, below = 0, 1
    while below < keys.size:
        other = below + 1
        if other < keys.size and _farther(keys[other], found[other], keys[below], found[below]):
            below = other
        if not _farther(keys[below], found[below], key, number):
            break
        keys[at], found[at] = keys[below], found[below]
        at, below = below, 2 * below + 1
    keys[at], found[at] = key, number


# Sums may be taken in any order, or the loops are four times as slow; but the same for each row.
@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def keep_nearest(rows, ids, queries, metric, keys, found, count):  # type: ignore[no-untyped-def]
    """Keep the ids of the rows that are nearest to each query; return how many are kept of each.

    Parameters
    ----------
    rows : numpy.ndarray
        Floats, ``(n, dim)``. Those with numbers that are not finite are left out.
    ids : numpy.ndarray
        uint64 ``(n,)``; of equally near rows, those of smaller ids are kept.
    queries : numpy.ndarray
        float64 ``(q, dim)``; of length 1, if ``metric`` is the cosine.
    metric : int
        One of `Metric`.
    keys, found : numpy.ndarray
        float64 and uint64, ``(q, k)``: a heap for each query, with the farthest in front. The key
        of a row is its squared distance, or else its score with the other sign.
    count : int
        How many they have from rows before.
    """
    for i in range(ids.size):
        square = 0.0
        for j in range(queries.shape[1]):
            number = np.float64(rows[i, j])
            square += number * number
        if not math.isfinite(square):
            continue
        for q in range(queries.shape[0]):
            key = 0.0
            if metric != _L2:
                for j in range(queries.shape[1]):
                    key -= np.float64(rows[i, j]) * queries[q, j]
                if metric == _COSINE and square > 0:
                    key /= math.sqrt(square)
            else:
                for j in range(queries.shape[1]):
                    number = np.float64(rows[i, j]) - queries[q, j]
                    key += number * number
            if count < keys.shape[1]:
                keys[q, count], found[q, count] = key, ids[i]
                _sift_up(keys[q], found[q], count)
            elif _farther(keys[q, 0], found[q, 0], key, ids[i]):
                keys[q, 0], found[q, 0] = key, ids[i]
                _sift_down(keys[q], found[q])
        count = min(count + 1, keys.shape[1])
    return count


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def row_norms(rows, out):  # type: ignore[no-untyped-def]
    """Write the Euclidean norm of each row, in float64; not finite if one of its numbers is not."""
    for i in range(out.size):
        square = 0.0
        for j in range(rows.shape[1]):
            number = np.float64(rows[i, j])
            square += number * number
        out[i] = math.sqrt(square)
