"""NormalizedEntropy: the log loss beside that of always predicting the mean label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.metrics.checked_examples import binary, probabilities, weights_of
from psnb._src.metrics.exact_sum import rounded, to_totals, to_words
from psnb._src.metrics.log_loss import cross_entropy
from psnb._src.metrics.mergeable_metric import MergeableMetric
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.ranking_metric import why_undefined
from psnb._src.metrics.state_form import ExactSums
from psnb._src.metrics.weighted_mean import total


@dataclass(frozen=True)
class NormalizedEntropy(MergeableMetric):
    r"""The log loss divided by the entropy of the labels; below 1 something was learned.

    .. math:: \frac{\mathrm{LogLoss}}{-\bar y \ln \bar y - (1 - \bar y) \ln(1 - \bar y)}

    :math:`\bar y` is the mean label. Unlike the log loss, it can be compared between data with
    different rates of positives. It has no value if all labels are equal: it is NaN, and
    `MetricState.reason` says why. The state is three exact sums.

    He et al., *Practical Lessons from Predicting Clicks on Ads at Facebook*, ADKDD 2014.

    Examples
    --------
    >>> import psnb
    >>> entropy = psnb.metrics.NormalizedEntropy()
    >>> float(entropy([1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]))
    1.0
    """

    @property
    def form(self) -> ExactSums:
        """Sums of losses, of positives and of weights."""
        return ExactSums(3)

    def __call__(self, labels: Any, predictions: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch; the arguments are those of `LogLoss`."""
        positive = binary(labels)
        array = probabilities("predictions", predictions, positive.size)
        checked = weights_of(weights, positive.size)
        totals = [
            total("losses", cross_entropy(positive, array), checked),
            total("labels", positive, checked),
            total("weights", np.ones(positive.size, bool), checked),
        ]
        return MetricState(self, to_words(totals))

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the quotient."""
        losses, positives, weights = to_totals(array)
        if reason := why_undefined(weights - positives, positives):
            return reason
        rate = rounded(positives, weights)
        other = rounded(weights - positives, weights)
        return rounded(losses, weights) / -(rate * math.log(rate) + other * math.log(other))
