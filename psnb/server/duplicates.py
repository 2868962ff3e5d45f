"""Duplicates: ids that are several times in one push, whose gradients are summed. Pure."""

from __future__ import annotations

import numpy as np

from psnb.server import kernels


def summed(ids: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each id once, in the order of first appearance, with the sum of its gradients."""
    distinct, rows = np.unique(ids, return_inverse=True)
    order, sums = np.empty(ids.size, np.int64), np.empty_like(gradients)
    scratch = np.full(distinct.size, -1, np.int32)
    n = kernels.sum_duplicates(rows, kernels.read_only(gradients), scratch, order, sums)
    return distinct[order[:n]], sums[:n]
