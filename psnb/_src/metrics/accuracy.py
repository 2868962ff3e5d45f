"""Accuracy: how often the predicted class is the right one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psnb._src.checks import is_number
from psnb._src.metrics.checked_examples import binary, classes, column, numbers, weights_of
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.weighted_mean import WeightedMean
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class Accuracy(WeightedMean):
    r"""The share of right predictions, :math:`\sum_i w_i [\hat y_i = y_i] / \sum_i w_i`.

    With one score for each example, the prediction is 1 if the score is above ``threshold``, as in
    Keras's ``BinaryAccuracy``; with one for each class, it is the class with the highest score, the
    first of equal ones.

    Parameters
    ----------
    threshold : float
        0.5 suits probabilities, 0 suits logits. Without meaning for scores of classes.

    Raises
    ------
    ConfigurationError
        If it is not a number.

    Examples
    --------
    >>> import psnb
    >>> accuracy = psnb.metrics.Accuracy()
    >>> float(accuracy([1, 0, 1, 1], [0.9, 0.4, 0.3, 0.6]))
    0.75
    >>> float(accuracy([2, 0], [[0.1, 0.2, 0.7], [0.3, 0.6, 0.1]]))
    0.5
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not is_number(self.threshold):
            raise ConfigurationError(f"Accuracy: threshold must be a number: {self.threshold!r}")

    def __call__(self, labels: Any, scores: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            Of shape ``(examples,)``: 0 or 1, or the numbers of classes.
        scores : array_like
            Finite numbers of shape ``(examples,)``, or ``(examples, classes)``.
        weights : array_like, optional
            How much each example counts, 0 or more; of shape ``(examples,)``.

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        array = numbers("scores", scores)
        if array.ndim == 2 and array.shape[1] != 1:
            right, array = classes(labels, array)
            hit = array.argmax(axis=1) == right
        else:
            positive = binary(labels)
            hit = (column("scores", array, positive.size) > self.threshold) == positive
        return self.mean_of("hits", hit, weights_of(weights, hit.size))
