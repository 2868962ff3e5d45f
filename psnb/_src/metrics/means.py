"""WeightedMean: metrics that are a mean over examples, or a function of some. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from psnb._src.metrics.checks import (
    NO_EXAMPLES,
    binary,
    classes,
    column,
    numbers,
    probabilities,
    require_finite,
    weights_of,
    why_undefined,
)
from psnb._src.metrics.exact_sums import exact_total, rounded, to_totals, to_words, whole_total
from psnb._src.metrics.forms import ExactSums
from psnb._src.metrics.metric import MergeableMetric, MetricState
from psnb._src.metrics.rows import SumRows
from psnb._src.metrics.slices import SLICES, sliced
from psnb._src.utils.checks import integer, is_number
from psnb.errors import ConfigurationError


def products(what: str, terms: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return terms times weights, each rounded to float64; bools stay bools without weights."""
    if weights is None:
        return terms if terms.dtype == bool else terms.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        return require_finite(f"{what} times the weights", terms * weights)


def total(terms: np.ndarray) -> int:
    """Return the exact sum of bools or float64 numbers."""
    if terms.dtype == bool:
        return whole_total(int(np.count_nonzero(terms)))
    return exact_total(terms)


class Slicing(NamedTuple):
    """How a batch is cut into slices."""

    by: Any = None
    slices: int = SLICES


@dataclass(frozen=True)
class MetricOfSums(MergeableMetric):
    """The state is a few exact sums."""

    sums: ClassVar[int] = 2

    @property
    def form(self) -> ExactSums:
        """The sums."""
        return ExactSums(self.sums)

    @property
    def rows(self) -> SumRows:
        """The sums of each slice."""
        return SumRows(self.sums)

    def state_of(
        self, columns: Sequence[np.ndarray], weights: np.ndarray | None, slicing: Slicing
    ) -> MetricState:
        """Return a state of sums, from what each example adds to each: bool or float64."""
        if slicing.by is None:
            return MetricState(self, to_words([total(each) for each in columns]))
        size, rows = columns[0].size, partial(self.rows.of, columns)
        return sliced(self, slicing.by, slicing.slices, size, weights, rows)


@dataclass(frozen=True)
class WeightedMean(MetricOfSums):
    """The state is two exact sums: of terms times weights, and of weights."""

    best = -math.inf

    def mean_of(
        self, what: str, terms: np.ndarray, weights: np.ndarray | None, slicing: Slicing
    ) -> MetricState:
        """Return the state of these terms, float64 or bool, one for each example."""
        counts = np.ones(terms.size, bool) if weights is None else weights
        return self.state_of([products(what, terms, weights), counts], weights, slicing)

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the mean, rounded once."""
        terms, weights = to_totals(array)
        return rounded(terms, weights) if weights else NO_EXAMPLES


@dataclass(frozen=True)
class TopK(WeightedMean):
    r"""The share of examples whose class is among the ``k`` highest scores.

    :math:`\sum_i w_i [r_i < k] / \sum_i w_i`, where :math:`r_i` is how many classes come before the
    right one: a higher score comes first, and of equal scores the lower number. So a model that
    scores all classes alike gains nothing, and ``TopK(1)`` is `Accuracy`.

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
    best = math.inf

    def __post_init__(self) -> None:
        integer("TopK: k", self.k, 1)

    def __call__(
        self,
        labels: Any,
        scores: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            The numbers of classes, of shape ``(examples,)``.
        scores : array_like
            Finite numbers of shape ``(examples, classes)``.
        weights : array_like, optional
            How much each example counts, 0 or more; of shape ``(examples,)``.
        by : array_like, optional
            A key for each example, by which the metric is taken too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described.
        """
        right, array = classes(labels, scores)
        own = array[np.arange(right.size), right][:, np.newaxis]
        earlier = np.arange(array.shape[1]) < right[:, np.newaxis]
        before = (array > own) | ((array == own) & earlier)
        hit = np.count_nonzero(before, axis=1) < self.k
        return self.mean_of("hits", hit, weights_of(weights, hit.size), Slicing(by, slices))


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

    def __call__(
        self,
        values: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        values : array_like
            Finite numbers of shape ``(examples,)``, or one number.
        weights : array_like, optional
            How much each counts, 0 or more; of the same shape. By default each counts 1.
        by : array_like, optional
            A key for each example, by which the metric is taken too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described.
        """
        array = column("values", values).astype(np.float64, copy=False)
        return self.mean_of("values", array, weights_of(weights, array.size), Slicing(by, slices))


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

    def __call__(
        self,
        labels: Any,
        predictions: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels, predictions : array_like
            Finite numbers of shape ``(examples,)``.
        weights : array_like, optional
            How much each example counts, 0 or more; of the same shape.
        by : array_like, optional
            A key for each example, by which the metric is taken too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described.
        """
        errors, checked = differences(labels, predictions, weights)
        return self.mean_of("errors", np.abs(errors), checked, Slicing(by, slices))


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

    def __call__(
        self,
        labels: Any,
        predictions: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch; the arguments are those of `MAE`."""
        errors, checked = differences(labels, predictions, weights)
        with np.errstate(over="ignore"):
            squares = require_finite("squared errors", errors * errors)
        return self.mean_of("squared errors", squares, checked, Slicing(by, slices))

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the root of the mean."""
        mean = super().evaluate(array)
        return mean if isinstance(mean, str) else math.sqrt(mean)


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
    best = math.inf

    def __post_init__(self) -> None:
        if not is_number(self.threshold):
            raise ConfigurationError(f"Accuracy: threshold must be a number: {self.threshold!r}")

    def __call__(
        self,
        labels: Any,
        scores: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            Of shape ``(examples,)``: 0 or 1, or the numbers of classes.
        scores : array_like
            Finite numbers of shape ``(examples,)``, or ``(examples, classes)``.
        weights : array_like, optional
            How much each example counts, 0 or more; of shape ``(examples,)``.
        by : array_like, optional
            A key for each example, by which the metric is taken too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described.
        """
        array = numbers("scores", scores)
        if array.ndim == 2 and array.shape[1] != 1:
            right, array = classes(labels, array)
            hit = array.argmax(axis=1) == right
        else:
            positive = binary(labels)
            hit = (column("scores", array, positive.size) > self.threshold) == positive
        return self.mean_of("hits", hit, weights_of(weights, hit.size), Slicing(by, slices))


def probable(
    labels: Any, predictions: Any, weights: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return labels as bools, the probabilities of 1, and the weights."""
    positive = binary(labels)
    array = probabilities("predictions", predictions, positive.size)
    return positive, array, weights_of(weights, positive.size)


def cross_entropy(positive: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return what each example adds to the log loss, in nats: float64."""
    # As in scikit-learn: a float32 of exactly 0 or 1 stands for a number that float32 rounds to it.
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

    def __call__(
        self,
        labels: Any,
        predictions: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            0 or 1, of shape ``(examples,)``.
        predictions : array_like
            The probabilities of 1, from 0 to 1, of the same shape.
        weights : array_like, optional
            How much each example counts, 0 or more; of the same shape.
        by : array_like, optional
            A key for each example, by which the metric is taken too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described.
        """
        positive, array, checked = probable(labels, predictions, weights)
        losses = cross_entropy(positive, array)
        return self.mean_of("losses", losses, checked, Slicing(by, slices))


@dataclass(frozen=True)
class NormalizedEntropy(MetricOfSums):
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

    sums = 3
    best = -math.inf

    def __call__(
        self,
        labels: Any,
        predictions: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch; the arguments are those of `LogLoss`."""
        positive, array, checked = probable(labels, predictions, weights)
        columns = [
            products("losses", cross_entropy(positive, array), checked),
            products("labels", positive, checked),
            np.ones(positive.size, bool) if checked is None else checked,
        ]
        return self.state_of(columns, checked, Slicing(by, slices))

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the quotient."""
        losses, positives, weights = to_totals(array)
        if reason := why_undefined(weights - positives, positives):
            return reason
        rate = rounded(positives, weights)
        other = rounded(weights - positives, weights)
        return rounded(losses, weights) / -(rate * math.log(rate) + other * math.log(other))


@dataclass(frozen=True)
class Calibration(MetricOfSums):
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

    best = 1.0

    def __call__(
        self,
        labels: Any,
        predictions: Any,
        weights: Any = None,
        *,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch; the arguments are those of `LogLoss`."""
        positive, array, checked = probable(labels, predictions, weights)
        columns = [
            products("labels", positive, checked),
            products("predictions", array.astype(np.float64), checked),
        ]
        return self.state_of(columns, checked, Slicing(by, slices))

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the quotient, rounded once."""
        labels, predictions = to_totals(array)
        if not predictions:
            return "no examples, or all are predicted as 0 or have a weight of 0"
        return rounded(labels, predictions)
