"""PRAUC: the area under the curve of precision over recall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnb._src.metrics.ranking_metric import RankingMetric


@dataclass(frozen=True)
class PRAUC(RankingMetric):
    r"""The average precision :math:`\sum_t (R_t - R_{t-1}) P_t` over the thresholds.

    From the highest score down, :math:`P_t` is the share of positives among what scores at least
    ``t``, and :math:`R_t` the share of the positives that this has. It does not interpolate between
    thresholds, which would be too optimistic (Davis, Goadrich, *The Relationship Between
    Precision-Recall and ROC Curves*, ICML 2006); as scikit-learn's ``average_precision_score``.

    Buckets are those of `AUC`. The order within a bucket is unknown: `error_bound` tells how far
    off the value can be, from the best and the worst order.

    Without positives it has no value: it is NaN, and `MetricState.reason` says why.

    Parameters
    ----------
    buckets : int or None
        How many buckets, from 2 to ``2**24``. None for the exact area, also of scores that are no
        probabilities: **its state grows** by 56 bytes for each score that was not seen before.

    Raises
    ------
    ConfigurationError
        If it is neither.

    Examples
    --------
    >>> import psnb
    >>> pr_auc = psnb.metrics.PRAUC()
    >>> round(float(pr_auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])), 4)
    0.8333
    """

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the area."""
        negatives, positives = self.levels(array)
        if not positives.any():
            return "no positive examples"
        hits, false = _from_above(positives), _from_above(negatives)
        return float(positives @ _share(hits, false) / positives.sum())

    def largest_error(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return it, from the best and the worst order within buckets."""
        hits, false = _from_above(positives), _from_above(negatives)
        told = _share(hits, false)
        best = _share(hits, false - negatives)  # its positives come first
        worst = _share(hits - positives, false)  # last; the first of them has a higher precision
        return float(positives @ np.maximum(best - told, told - worst) / positives.sum())


def _from_above(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts[::-1])[::-1]


def _share(hits: np.ndarray, false: np.ndarray) -> np.ndarray:
    """Return the precision; 0 where nothing has such a score."""
    return hits / np.maximum(hits + false, np.finfo(np.float64).tiny)
