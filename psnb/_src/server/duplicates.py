"""Repeated ids: find the distinct ones, and add up the gradients of equal ids. Pure."""

from __future__ import annotations

import numpy as np

from psnb._src.first_rows import read_only
from psnb._src.server import kernels
from psnb._src.server.memory import scratch

_SAMPLE = 1024


def often_repeated(ids: np.ndarray) -> bool:
    """Estimate from the first ids (uint64) whether `distinct` would return far fewer."""
    sample = ids[:_SAMPLE]
    return sample.size >= 64 and distinct(sample)[0].size < 0.75 * sample.size


def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ids, and the position of each of ``ids`` among them.

    Parameters
    ----------
    ids : numpy.ndarray
        uint64 ``(n,)``.

    Returns
    -------
    tuple of numpy.ndarray
        The distinct ids in the order of their first appearance, uint64 ``(m,)``; a position in them
        for each of ``ids``, intp ``(n,)``.
    """
    found, position = scratch(ids.size, np.uint64), scratch(ids.size, np.intp)
    heads = scratch(kernels.heads_size(ids.size), np.int32)
    n = kernels.find_distinct(read_only(ids), found, position, heads)
    return found[:n], position


def summed(ids: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each id once, in the order of first appearance, with the sum of its gradients."""
    found, position = distinct(ids)
    sums = scratch((found.size, gradients.shape[1]), gradients.dtype)
    add_up(gradients, position, sums)
    return found, sums


def add_up(gradients: np.ndarray, position: np.ndarray, out: np.ndarray) -> bool:
    """Add up the gradients of each position, in their order, and tell whether all are finite.

    Parameters
    ----------
    gradients : numpy.ndarray
        ``(n, dim)``, contiguous.
    position : numpy.ndarray
        The position of each gradient's id, ``(n,)``, as `distinct` returns it.
    out : numpy.ndarray
        ``(m, dim)``; is overwritten.
    """
    nothing, _ = kernels.add_up(read_only(gradients), position, out, 0)
    return bool(nothing == 0)
