"""RankingMetric: metrics of the order in which scores put the examples. Pure."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.metrics.checks import binary, column, probabilities, weights_of, why_undefined
from psnb._src.metrics.forms import (
    DIGIT_BITS,
    DIGITS,
    UNIT,
    BucketCounts,
    ScoreCounts,
    StateForm,
    carried,
)
from psnb._src.metrics.metric import MergeableMetric, MetricState
from psnb._src.metrics.rows import ScoreRows
from psnb._src.metrics.slices import SLICES, sliced
from psnb._src.utils.checks import integer
from psnb.errors import ConfigurationError

_MOST_BUCKETS = 1 << 24

_LEAST = 2.0**-42
"""The smallest weight, which loses a part of 2**-31 of itself at most."""


@dataclass(frozen=True)
class RankingMetric(MergeableMetric):
    """A metric of how many positives and negatives there are at each score."""

    buckets: int | None = 4096

    def __post_init__(self) -> None:
        if self.buckets is not None:
            integer(f"{type(self).__name__}: buckets", self.buckets, 2, _MOST_BUCKETS)

    @property
    def form(self) -> StateForm:
        """Counts of buckets, or of scores."""
        return ScoreCounts() if self.buckets is None else BucketCounts(self.buckets)

    @property
    def rows(self) -> ScoreRows:
        """The counts of each slice."""
        return ScoreRows(self.buckets)

    def __call__(
        self,
        labels: Any,
        scores: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            0 or 1, of shape ``(examples,)``.
        scores : array_like
            Numbers of the same shape: from 0 to 1, or, without buckets, any finite ones.
        weights : array_like, optional
            How much each example counts, of the same shape: 0, or from ``2**-42`` on, and
            ``2**32`` in one batch. They are rounded to multiples of ``2**-72``, so that counts are
            whole and adding them is exact: from ``2**-20`` on none changes, smaller ones by at
            most a part of ``2**-31``, which `error_bound` includes.
        by : array_like, optional
            A key for each example, by which the metric is taken too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described.
        """
        positive = binary(labels)
        size, side = positive.size, positive.astype(np.intp)
        digits = digits_of(weights_of(weights, size))
        if by is not None:
            return self._by(by, slices, positive, scores, digits, weights)
        if self.buckets is None:
            array = column("scores", scores, size).astype(np.float64) + 0.0  # no negative zero
            counts = np.zeros((DIGITS, 2, size), np.int64)
            counts[: len(digits), side, np.arange(size)] = digits
            return MetricState(self, ScoreCounts().of(array, counts))
        array = probabilities("scores", scores, size).astype(np.float64, copy=False)
        places = (array * (self.buckets - 1)).astype(np.intp) + self.buckets * side
        counts = self.form.zeros()
        if weights is None:  # no further digits
            found = np.bincount(places, minlength=2 * self.buckets).reshape(2, self.buckets)
            np.multiply(found, UNIT, out=counts[0])
            return MetricState(self, counts)
        for digit, each in enumerate(digits):
            found = np.bincount(places, each, 2 * self.buckets)
            counts[digit] = found.reshape(2, self.buckets)
        return MetricState(self, carried(counts))

    def _by(
        self,
        by: Any,
        slices: int,
        positive: np.ndarray,
        scores: Any,
        digits: list[Any],
        weights: Any,
    ) -> MetricState:
        size = positive.size
        if self.buckets is None:
            levels = column("scores", scores, size).astype(np.float64) + 0.0
        else:
            array = probabilities("scores", scores, size).astype(np.float64, copy=False)
            levels = (array * (self.buckets - 1)).astype(np.intp).astype(np.float64)

        def rows(owners: np.ndarray) -> np.ndarray:
            made = np.zeros(size, self.rows.dtype)
            made["slice"], made["score"] = owners, levels
            for digit, each in enumerate(digits):
                made["negatives"][:, digit] = np.where(positive, 0, each)
                made["positives"][:, digit] = np.where(positive, each, 0)
            return made

        return sliced(self, by, slices, size, weights_of(weights, size), rows)

    def error_bound(self, state: MetricState) -> float:
        """Return by how much the value of a state differs at most from the exact area.

        NaN if there is no value. Without buckets it is 0, or ``2**-29`` if weights were rounded. Of
        a state by slice, it is that of all examples.
        """
        array = state.metric.whole(state.array)
        if isinstance(self.evaluate(array), str):
            return math.nan
        counts = self._counts(array)
        # Four products and sums of weights, each off by a part of 2**-31 at most.
        rounded = 2.0**-29 if counts[1:].any() else 0.0
        return rounded + (0.0 if self.buckets is None else self.largest_error(*_values(counts)))

    @abstractmethod
    def largest_error(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return by how much the area may be off, from the counts of each bucket."""

    def levels(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the negatives and positives of each level of scores, from the lowest: float64."""
        return _values(self._counts(array))

    def _counts(self, array: np.ndarray) -> np.ndarray:
        return ScoreCounts().counts(array) if self.buckets is None else array


def _values(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the negatives and positives of counts in digits, as float64."""
    total = np.zeros(counts.shape[1:])
    for each in counts[::-1]:
        total = total / (1 << DIGIT_BITS) + each
    negatives, positives = total / UNIT
    return negatives, positives


def digits_of(weights: np.ndarray | None) -> list[Any]:
    """Return how many units each example counts, and the further digits."""
    if weights is None:
        return [UNIT]
    if weights.sum() * UNIT >= 2.0**52:  # what bincount adds up in float64 must be exact
        raise ConfigurationError(f"weights must be 2**32 at most in a batch, found {weights.sum()}")
    if lost := np.count_nonzero((weights < _LEAST) & (weights > 0)):
        raise ConfigurationError(
            f"{lost} weights are below 2**-42, and would not count exactly: multiply all by the "
            "same number, so that they are about 1"
        )
    digits, rest = [], weights * UNIT
    for _ in range(DIGITS - 1):
        digits.append(np.floor(rest))
        rest = (rest - digits[-1]) * (1 << DIGIT_BITS)
    return [*digits, np.rint(rest)]


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
    returns it for a state. The state is an array of ``2 * buckets`` counts, of 24 bytes each.

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
        """Return half of the pairs that fall into one bucket."""
        return float(positives @ negatives / 2 / positives.sum() / negatives.sum())


@dataclass(frozen=True)
class PRAUC(RankingMetric):
    r"""The average precision :math:`\sum_t (R_t - R_{t-1}) P_t` over the thresholds.

    From the highest score down, :math:`P_t` is the share of positives among what scores at least
    ``t``, and :math:`R_t` the share of the positives that this has. It does not interpolate between
    thresholds, which would be too optimistic (Davis, Goadrich, *The Relationship Between
    Precision-Recall and ROC Curves*, ICML 2006); as scikit-learn's ``average_precision_score``.

    Buckets are those of `AUC`. The order within a bucket is unknown: `error_bound` says how far
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
        """Return the error from the best and the worst order within buckets."""
        hits, false = _from_above(positives), _from_above(negatives)
        share = _share(hits, false)
        best = _share(hits, false - negatives)  # if its positives come first
        worst = _share(hits - positives, false)  # if last; the first of them is more precise
        return float(positives @ np.maximum(best - share, share - worst) / positives.sum())


def _from_above(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts[::-1])[::-1]


def _share(hits: np.ndarray, false: np.ndarray) -> np.ndarray:
    """Return the precision; 0 where nothing has such a score."""
    return hits / np.maximum(hits + false, np.finfo(np.float64).tiny)
