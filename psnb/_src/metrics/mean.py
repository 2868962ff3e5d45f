"""Mean: of a loss or any other number of each example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.metrics.checked_examples import column, weights_of
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.weighted_mean import WeightedMean


@dataclass(frozen=True)
class Mean(WeightedMean):
    r"""The mean :math:`\sum_i w_i x_i / \sum_i w_i`.

    The state is two exact sums; see `MetricState`.

    Examples
    --------
    >>> import psnb
    >>> mean = psnb.metrics.Mean()
    >>> float(mean([1.0, 2.0]) + mean([6.0]))
    3.0
    """

    def __call__(self, values: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        values : array_like
            Finite numbers of shape ``(examples,)``, or one number.
        weights : array_like, optional
            How much each counts, 0 or more; of the same shape. By default each counts 1.

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        array = column("values", values).astype(np.float64, copy=False)
        return self.mean_of("values", array, weights_of(weights, array.size))
