"""Ids that are there more than once: each once, and their gradients added up. Pure."""

from __future__ import annotations

import numpy as np

from psnb.server import kernels


def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each id once, and where among these each of ``ids`` is.

    Parameters
    ----------
    ids : numpy.ndarray
        uint64 ``(n,)``.

    Returns
    -------
    tuple of numpy.ndarray
        The distinct ids in the order of their first appearance, uint64 ``(m,)``; a position in them
        for each of ``ids``, int32 ``(n,)``.
    """
    found, position = np.empty(ids.size, np.uint64), np.empty(ids.size, np.int32)
    n = kernels.find_distinct(kernels.read_only(ids), found, position)
    return found[:n], position


def summed(ids: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each id once, in the order of first appearance, with the sum of its gradients."""
    found, position = distinct(ids)
    sums = np.empty((found.size, gradients.shape[1]), gradients.dtype)
    kernels.add_up(kernels.read_only(gradients), position, sums)
    return found, sums
