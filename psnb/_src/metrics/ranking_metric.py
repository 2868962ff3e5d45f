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
from psnb._src.metrics.state_form import (
    DIGIT_BITS,
    DIGITS,
    UNIT,
    BucketCounts,
    ScoreCounts,
    StateForm,
    carried,
)
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

    def __call__(self, labels: Any, scores: Any, weights: Any = None) -> MetricState:
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

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        positive = binary(labels)
        size, side = positive.size, positive.astype(np.intp)
        digits = _digits(weights_of(weights, size))
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

    def error_bound(self, state: MetricState) -> float:
        """Return by how much the value of a state differs at most from the exact area.

        NaN if there is no value. Without buckets it is 0, or ``2**-29`` if weights were rounded.
        """
        if isinstance(self.evaluate(state.array), str):
            return math.nan
        counts = self._counts(state.array)
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


def _digits(weights: np.ndarray | None) -> list[Any]:
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


def why_undefined(negatives: float, positives: float) -> str:
    """Return why these counts of classes give no value; empty if they do."""
    if not negatives and not positives:
        return "no examples, or all of weight 0"
    if not positives:
        return "no positive examples"
    return "" if negatives else "no negative examples"
