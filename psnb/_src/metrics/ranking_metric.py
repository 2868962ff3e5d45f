"""RankingMetric: the base of metrics of the order in which scores put the examples. Pure."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.checks import integer
from psnb._src.metrics.checked_examples import binary, column, probabilities, weights_of
from psnb._src.metrics.mergeable_metric import MergeableMetric
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.state_form import UNIT, BucketCounts, ScoreCounts, StateForm
from psnb.errors import ConfigurationError

_MOST_BUCKETS = 1 << 24


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

    def __call__(self, labels: Any, scores: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            0 or 1, of shape ``(examples,)``.
        scores : array_like
            Numbers of the same shape: from 0 to 1, or, without buckets, any finite ones.
        weights : array_like, optional
            How much each example counts, of the same shape: 0, or from ``2**-20`` on, and
            ``2**32`` in one batch. They are rounded to multiples of ``2**-20``, about a millionth,
            so that counts are whole and adding them is exact.

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        positive = binary(labels)
        size, side = positive.size, positive.astype(np.intp)
        units = _units(weights_of(weights, size))
        if self.buckets is None:
            array = column("scores", scores, size).astype(np.float64) + 0.0  # no negative zero
            counts = np.zeros((2, size), np.int64)
            counts[side, np.arange(size)] = units
            return MetricState(self, ScoreCounts().of(array, counts))
        array = probabilities("scores", scores, size).astype(np.float64, copy=False)
        places = (array * (self.buckets - 1)).astype(np.intp) + self.buckets * side
        whole = isinstance(units, int)
        counts = np.bincount(places, None if whole else units, 2 * self.buckets)
        counts = counts.astype("<i8", copy=False).reshape(2, self.buckets)
        if whole:
            counts *= units
        return MetricState(self, counts)

    def error_bound(self, state: MetricState) -> float:
        """Return by how much the value of a state differs at most from the exact area.

        0 without buckets; NaN if there is no value.
        """
        if isinstance(self.evaluate(state.array), str):
            return math.nan
        return 0.0 if self.buckets is None else self.largest_error(*self.levels(state.array))

    @abstractmethod
    def largest_error(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return by how much the area may be off, from the counts of each bucket."""

    def levels(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the negatives and positives of each level of scores, from the lowest: float64."""
        if self.buckets is None:
            array = np.stack([array["negatives"], array["positives"]])
        negatives, positives = array.astype(np.float64) / UNIT
        return negatives, positives


def _units(weights: np.ndarray | None) -> np.ndarray | int:
    """Return how many units each example counts."""
    if weights is None:
        return UNIT
    rounded = np.rint(weights * UNIT)
    if rounded.sum() >= 2.0**52:  # what bincount adds up in float64 must be exact
        raise ConfigurationError(f"weights must be 2**32 at most in a batch, found {weights.sum()}")
    if lost := np.count_nonzero((rounded == 0) & (weights > 0)):
        raise ConfigurationError(
            f"{lost} weights are below 2**-20, and would count nothing: multiply all by the same "
            "number, so that they are about 1"
        )
    return rounded


def why_undefined(negatives: float, positives: float) -> str:
    """Return why these counts of classes give no value; empty if they do."""
    if not negatives and not positives:
        return "no examples, or all of weight 0"
    if not positives:
        return "no positive examples"
    return "" if negatives else "no negative examples"
