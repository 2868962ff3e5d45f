"""AUC: the area under the ROC curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnb._src.metrics.ranking_metric import RankingMetric, why_undefined


@dataclass(frozen=True)
class AUC(RankingMetric):
    r"""The chance that a positive example scores higher than a negative one.

    .. math::

        \frac{\sum_{i: y_i = 1} \sum_{j: y_j = 0} w_i w_j \left([s_i > s_j] + \tfrac12 [s_i = s_j]
        \right)}{\sum_{i: y_i = 1} w_i \sum_{j: y_j = 0} w_j}

    In buckets, as in Paddle's ``auc``: a score ``s`` from 0 to 1 falls into the bucket ``floor(s *
    (buckets - 1))``, and the scores of one bucket count as equal. With ``P`` positives and ``N``
    negatives, of which a bucket ``b`` has ``p_b`` and ``n_b``, the value is off by at most
    ``sum(p_b * n_b) / (2 * P * N)``: half of the pairs that fall into one bucket. `error_bound`
    tells it for a state. The state is an array of ``2 * buckets`` counts, of 24 bytes each.

    The area has no value if there are only positives or only negatives: it is NaN, and
    `MetricState.reason` says why.

    Fawcett, *An introduction to ROC analysis*, Pattern Recognition Letters 27, 2006.

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
    >>> auc = psnb.metrics.AUC()
    >>> state = auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    >>> float(state), auc.error_bound(state)
    (0.75, 0.0)
    >>> auc([1, 1], [0.3, 0.4])
    <psnb.MetricState AUC(buckets=4096): no negative examples>
    """

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the area."""
        negatives, positives = self.levels(array)
        below = np.cumsum(negatives)
        reason = why_undefined(negatives.sum(), positives.sum())
        pairs = positives @ (below - negatives / 2)
        return reason or float(pairs / positives.sum() / negatives.sum())

    def largest_error(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return it: half of the pairs that fall into one bucket."""
        return float(positives @ negatives / 2 / positives.sum() / negatives.sum())
