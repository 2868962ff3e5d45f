"""RMSE: the root of the mean squared error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.metrics.checked_examples import require_finite
from psnb._src.metrics.mae import differences
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.weighted_mean import WeightedMean


@dataclass(frozen=True)
class RMSE(WeightedMean):
    r"""The root mean squared error, :math:`\sqrt{\sum_i w_i (y_i - p_i)^2 / \sum_i w_i}`.

    The state is two exact sums, of squares and of weights.

    Examples
    --------
    >>> import psnb
    >>> rmse = psnb.metrics.RMSE()
    >>> float(rmse([1.0, 2.0], [4.0, 6.0])) == (25 / 2) ** 0.5
    True
    """

    def __call__(self, labels: Any, predictions: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch; the arguments are those of `MAE`."""
        errors, checked = differences(labels, predictions, weights)
        with np.errstate(over="ignore"):
            squares = require_finite("squared errors", errors * errors)
        return self.mean_of("squared errors", squares, checked)

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the root of the mean."""
        mean = super().evaluate(array)
        return mean if isinstance(mean, str) else math.sqrt(mean)
