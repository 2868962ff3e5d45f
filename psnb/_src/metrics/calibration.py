"""Calibration: clicks over predicted clicks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.metrics.checked_examples import binary, probabilities, weights_of
from psnb._src.metrics.exact_sum import rounded, to_totals, to_words
from psnb._src.metrics.mergeable_metric import MergeableMetric
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.state_form import ExactSums
from psnb._src.metrics.weighted_mean import total


@dataclass(frozen=True)
class Calibration(MergeableMetric):
    r"""Clicks over predicted clicks (COPC), :math:`\sum_i w_i y_i / \sum_i w_i p_i`.

    1 is best; above it the model predicts too little, below it too much. It has no value if nothing
    is predicted: it is NaN, and `MetricState.reason` says why. The state is two exact sums.

    Graepel et al., *Web-Scale Bayesian Click-Through Rate Prediction for Sponsored Search
    Advertising in Microsoft's Bing Search Engine*, ICML 2010, judge calibration by such quotients.

    Examples
    --------
    >>> import psnb
    >>> copc = psnb.metrics.Calibration()
    >>> float(copc([1, 0, 1], [0.5, 0.5, 0.25]))
    1.6
    """

    @property
    def form(self) -> ExactSums:
        """Sums of labels and of predictions."""
        return ExactSums(2)

    def __call__(self, labels: Any, predictions: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch; the arguments are those of `LogLoss`."""
        positive = binary(labels)
        array = probabilities("predictions", predictions, positive.size).astype(np.float64)
        checked = weights_of(weights, positive.size)
        totals = [total("labels", positive, checked), total("predictions", array, checked)]
        return MetricState(self, to_words(totals))

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the quotient, rounded once."""
        labels, predictions = to_totals(array)
        if not predictions:
            return "no examples, or all are predicted as 0 or have a weight of 0"
        return rounded(labels, predictions)
