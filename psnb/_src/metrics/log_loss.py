"""LogLoss: the binary cross entropy of probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.metrics.checked_examples import binary, probabilities, weights_of
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.weighted_mean import WeightedMean


def cross_entropy(positive: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return what each example adds to the log loss, in nats: float64."""
    # As scikit-learn: a float32 of exactly 0 or 1 stands for what float32 cannot tell from it.
    margin = float(np.finfo(predictions.dtype).eps)
    clipped = np.clip(predictions.astype(np.float64), margin, 1 - margin)
    return -np.where(positive, np.log(clipped), np.log1p(-clipped))


@dataclass(frozen=True)
class LogLoss(WeightedMean):
    r"""The mean of :math:`-y_i \ln p_i - (1 - y_i) \ln(1 - p_i)`, in nats.

    Probabilities of 0 and 1 are moved by the resolution of their dtype, as scikit-learn's
    ``log_loss`` does, so the loss of a certain error is finite: 36 in float64, 16 in float32.

    Good, *Rational Decisions*, Journal of the Royal Statistical Society B 14, 1952.

    Examples
    --------
    >>> import psnb
    >>> log_loss = psnb.metrics.LogLoss()
    >>> round(float(log_loss([1, 0], [0.8, 0.4])), 4)
    0.367
    """

    def __call__(self, labels: Any, predictions: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            0 or 1, of shape ``(examples,)``.
        predictions : array_like
            The probabilities of 1, from 0 to 1, of the same shape.
        weights : array_like, optional
            How much each example counts, 0 or more; of the same shape.

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        positive = binary(labels)
        array = probabilities("predictions", predictions, positive.size)
        losses = cross_entropy(positive, array)
        return self.mean_of("losses", losses, weights_of(weights, positive.size))
