"""WeightedMean: the base of metrics that are a mean over examples, or a function of one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnb._src.metrics.checked_examples import NO_EXAMPLES, require_finite
from psnb._src.metrics.exact_sum import exact_total, rounded, to_totals, to_words, whole_total
from psnb._src.metrics.mergeable_metric import MergeableMetric
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.state_form import ExactSums


def total(what: str, terms: np.ndarray, weights: np.ndarray | None) -> int:
    """Return an exact sum of terms times weights; each product is rounded to float64."""
    if terms.dtype == bool and weights is None:
        return whole_total(int(np.count_nonzero(terms)))
    if weights is None:
        return exact_total(terms.astype(np.float64, copy=False))
    with np.errstate(over="ignore"):
        return exact_total(require_finite(f"{what} times the weights", terms * weights))


@dataclass(frozen=True)
class WeightedMean(MergeableMetric):
    """The state is two exact sums: of terms times weights, and of weights."""

    @property
    def form(self) -> ExactSums:
        """Two sums."""
        return ExactSums(2)

    def mean_of(self, what: str, terms: np.ndarray, weights: np.ndarray | None) -> MetricState:
        """Return the state of these terms, float64 or bool, one for each example."""
        whole = whole_total(terms.size) if weights is None else exact_total(weights)
        return MetricState(self, to_words([total(what, terms, weights), whole]))

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the mean, rounded once."""
        terms, weights = to_totals(array)
        return rounded(terms, weights) if weights else NO_EXAMPLES
