"""MAE: the mean absolute error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.metrics.checked_examples import column, require_finite, weights_of
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.weighted_mean import WeightedMean


def differences(
    labels: Any, predictions: Any, weights: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return labels minus predictions as float64, and the weights."""
    right = column("labels", labels).astype(np.float64, copy=False)
    array = column("predictions", predictions, right.size).astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        errors = require_finite("labels minus predictions", right - array)
    return errors, weights_of(weights, right.size)


@dataclass(frozen=True)
class MAE(WeightedMean):
    r"""The mean absolute error, :math:`\sum_i w_i |y_i - p_i| / \sum_i w_i`.

    The state is two exact sums, of absolute errors and of weights.

    Examples
    --------
    >>> import psnb
    >>> mae = psnb.metrics.MAE()
    >>> float(mae([1.0, 2.0], [4.0, 1.0]))
    2.0
    """

    def __call__(self, labels: Any, predictions: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels, predictions : array_like
            Finite numbers of shape ``(examples,)``.
        weights : array_like, optional
            How much each example counts, 0 or more; of the same shape.

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        errors, checked = differences(labels, predictions, weights)
        return self.mean_of("errors", np.abs(errors), checked)
