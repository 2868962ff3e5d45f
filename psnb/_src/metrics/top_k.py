"""TopK: how often the right class is among the k with the highest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.checks import integer
from psnb._src.metrics.checked_examples import classes, weights_of
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.weighted_mean import WeightedMean


@dataclass(frozen=True)
class TopK(WeightedMean):
    r"""The share of examples whose class is among the ``k`` highest scores.

    :math:`\sum_i w_i [r_i < k] / \sum_i w_i`, where :math:`r_i` is how many classes come before the
    right one: those with a higher score, and of equal ones those with a lower number. So a model
    that scores all classes alike gains nothing, and ``TopK(1)`` is `Accuracy`.

    Parameters
    ----------
    k : int
        1 or more.

    Raises
    ------
    ConfigurationError
        If it is not.

    Examples
    --------
    >>> import psnb
    >>> top_2 = psnb.metrics.TopK(2)
    >>> float(top_2([0, 1], [[0.3, 0.6, 0.1], [0.4, 0.1, 0.5]]))
    0.5
    """

    k: int = 5

    def __post_init__(self) -> None:
        integer("TopK: k", self.k, 1)

    def __call__(self, labels: Any, scores: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            The numbers of classes, of shape ``(examples,)``.
        scores : array_like
            Finite numbers of shape ``(examples, classes)``.
        weights : array_like, optional
            How much each example counts, 0 or more; of shape ``(examples,)``.

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        right, array = classes(labels, scores)
        own = array[np.arange(right.size), right][:, np.newaxis]
        earlier = np.arange(array.shape[1]) < right[:, np.newaxis]
        before = (array > own) | ((array == own) & earlier)
        hit = np.count_nonzero(before, axis=1) < self.k
        return self.mean_of("hits", hit, weights_of(weights, hit.size))
