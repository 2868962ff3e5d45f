"""RankingMetric: the base of metrics of the order in which scores put the examples. Pure."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct

from psnb._src.metrics.metric import (
    DIGIT_BITS,
    DIGITS,
    NO_EXAMPLES,
    UNIT,
    BucketCounts,
    ExactSums,
    MergeableMetric,
    MetricState,
    MetricStates,
    ScoreCounts,
    StateForm,
    binary,
    carried,
    classes,
    column,
    exact_total,
    numbers,
    probabilities,
    require_finite,
    rounded,
    to_totals,
    to_words,
    weights_of,
    whole_total,
)
from psnb._src.utils.checks import from_config, integer, is_number, to_config
from psnb._src.utils.files import typed
from psnb.errors import ConfigurationError

_MOST_BUCKETS = 1 << 24

_LEAST = 2.0**-42
"""The smallest weight, which loses a part of 2**-31 of itself at most."""


@dataclass(frozen=True)
class RankingMetric(MergeableMetric):
    """A metric of how many positives and negatives there are at each score."""

    buckets: int | None = 4096

    def __post_init__(self) -> None:
        if self.buckets is not None:
            integer(f"{type(self).__name__}: buckets", self.buckets, 2, _MOST_BUCKETS)

    @property
    def form(self) -> StateForm:
        """Counts of buckets, or of scores."""
        return ScoreCounts() if self.buckets is None else BucketCounts(self.buckets)

    def __call__(self, labels: Any, scores: Any, weights: Any = None) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            0 or 1, of shape ``(examples,)``.
        scores : array_like
            Numbers of the same shape: from 0 to 1, or, without buckets, any finite ones.
        weights : array_like, optional
            How much each example counts, of the same shape: 0, or from ``2**-42`` on, and
            ``2**32`` in one batch. They are rounded to multiples of ``2**-72``, so that counts are
            whole and adding them is exact: from ``2**-20`` on none changes, smaller ones by at
            most a part of ``2**-31``, which `error_bound` includes.

        Raises
        ------
        ConfigurationError
            If shapes, dtypes or numbers are not such.
        """
        positive = binary(labels)
        size, side = positive.size, positive.astype(np.intp)
        digits = _digits(weights_of(weights, size))
        if self.buckets is None:
            array = column("scores", scores, size).astype(np.float64) + 0.0  # no negative zero
            counts = np.zeros((DIGITS, 2, size), np.int64)
            counts[: len(digits), side, np.arange(size)] = digits
            return MetricState(self, ScoreCounts().of(array, counts))
        array = probabilities("scores", scores, size).astype(np.float64, copy=False)
        places = (array * (self.buckets - 1)).astype(np.intp) + self.buckets * side
        counts = self.form.zeros()
        if weights is None:  # no further digits
            found = np.bincount(places, minlength=2 * self.buckets).reshape(2, self.buckets)
            np.multiply(found, UNIT, out=counts[0])
            return MetricState(self, counts)
        for digit, each in enumerate(digits):
            found = np.bincount(places, each, 2 * self.buckets)
            counts[digit] = found.reshape(2, self.buckets)
        return MetricState(self, carried(counts))

    def error_bound(self, state: MetricState) -> float:
        """Return by how much the value of a state differs at most from the exact area.

        NaN if there is no value. Without buckets it is 0, or ``2**-29`` if weights were rounded.
        """
        if isinstance(self.evaluate(state.array), str):
            return math.nan
        counts = self._counts(state.array)
        # Four products and sums of weights, each off by a part of 2**-31 at most.
        rounded = 2.0**-29 if counts[1:].any() else 0.0
        return rounded + (0.0 if self.buckets is None else self.largest_error(*_values(counts)))

    @abstractmethod
    def largest_error(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return by how much the area may be off, from the counts of each bucket."""

    def levels(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the negatives and positives of each level of scores, from the lowest: float64."""
        return _values(self._counts(array))

    def _counts(self, array: np.ndarray) -> np.ndarray:
        return ScoreCounts().counts(array) if self.buckets is None else array


def _values(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the negatives and positives of counts in digits, as float64."""
    total = np.zeros(counts.shape[1:])
    for each in counts[::-1]:
        total = total / (1 << DIGIT_BITS) + each
    negatives, positives = total / UNIT
    return negatives, positives


def _digits(weights: np.ndarray | None) -> list[Any]:
    """Return how many units each example counts, and the further digits."""
    if weights is None:
        return [UNIT]
    if weights.sum() * UNIT >= 2.0**52:  # what bincount adds up in float64 must be exact
        raise ConfigurationError(f"weights must be 2**32 at most in a batch, found {weights.sum()}")
    if lost := np.count_nonzero((weights < _LEAST) & (weights > 0)):
        raise ConfigurationError(
            f"{lost} weights are below 2**-42, and would not count exactly: multiply all by the "
            "same number, so that they are about 1"
        )
    digits, rest = [], weights * UNIT
    for _ in range(DIGITS - 1):
        digits.append(np.floor(rest))
        rest = (rest - digits[-1]) * (1 << DIGIT_BITS)
    return [*digits, np.rint(rest)]


def why_undefined(negatives: float, positives: float) -> str:
    """Return why these counts of classes give no value; empty if they do."""
    if not negatives and not positives:
        return "no examples, or all of weight 0"
    if not positives:
        return "no positive examples"
    return "" if negatives else "no negative examples"


@dataclass(frozen=True)
class AUC(RankingMetric):
    r"""The chance that a positive example scores higher than a negative one.

    .. math::

        \frac{\sum_{i: y_i = 1} \sum_{j: y_j = 0} w_i w_j \left([s_i > s_j] + \tfrac12 [s_i = s_j]
        \right)}{\sum_{i: y_i = 1} w_i \sum_{j: y_j = 0} w_j}

    In buckets, as in Paddle's ``auc``: a score ``s`` from 0 to 1 falls into the bucket ``floor(s *
    (buckets - 1))``, and the scores of one bucket count as equal. With ``P`` positives and ``N``
    negatives, of which a bucket ``b`` has ``p_b`` and ``n_b``, the value is off by at most
    ``sum(p_b * n_b) / (2 * P * N)``: half of the pairs that fall into one bucket. `error_bound`
    returns it for a state. The state is an array of ``2 * buckets`` counts, of 24 bytes each.

    The area has no value if there are only positives or only negatives: it is NaN, and
    `MetricState.reason` says why.

    Fawcett, *An introduction to ROC analysis*, Pattern Recognition Letters 27, 2006.

    Parameters
    ----------
    buckets : int or None
        How many buckets, from 2 to ``2**24``. None for the exact area, also of scores that are no
        probabilities: **its state grows** by 56 bytes for each score that was not seen before.

    Raises
    ------
    ConfigurationError
        If it is neither.

    Examples
    --------
    >>> import psnb
    >>> auc = psnb.metrics.AUC()
    >>> state = auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    >>> float(state), auc.error_bound(state)
    (0.75, 0.0)
    >>> auc([1, 1], [0.3, 0.4])
    <psnb.MetricState AUC(buckets=4096): no negative examples>
    """

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the area."""
        negatives, positives = self.levels(array)
        below = np.cumsum(negatives)
        reason = why_undefined(negatives.sum(), positives.sum())
        pairs = positives @ (below - negatives / 2)
        return reason or float(pairs / positives.sum() / negatives.sum())

    def largest_error(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return it: half of the pairs that fall into one bucket."""
        return float(positives @ negatives / 2 / positives.sum() / negatives.sum())


@dataclass(frozen=True)
class PRAUC(RankingMetric):
    r"""The average precision :math:`\sum_t (R_t - R_{t-1}) P_t` over the thresholds.

    From the highest score down, :math:`P_t` is the share of positives among what scores at least
    ``t``, and :math:`R_t` the share of the positives that this has. It does not interpolate between
    thresholds, which would be too optimistic (Davis, Goadrich, *The Relationship Between
    Precision-Recall and ROC Curves*, ICML 2006); as scikit-learn's ``average_precision_score``.

    Buckets are those of `AUC`. The order within a bucket is unknown: `error_bound` says how far
    off the value can be, from the best and the worst order.

    Without positives it has no value: it is NaN, and `MetricState.reason` says why.

    Parameters
    ----------
    buckets : int or None
        How many buckets, from 2 to ``2**24``. None for the exact area, also of scores that are no
        probabilities: **its state grows** by 56 bytes for each score that was not seen before.

    Raises
    ------
    ConfigurationError
        If it is neither.

    Examples
    --------
    >>> import psnb
    >>> pr_auc = psnb.metrics.PRAUC()
    >>> round(float(pr_auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])), 4)
    0.8333
    """

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the area."""
        negatives, positives = self.levels(array)
        if not positives.any():
            return "no positive examples"
        hits, false = _from_above(positives), _from_above(negatives)
        return float(positives @ _share(hits, false) / positives.sum())

    def largest_error(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return it, from the best and the worst order within buckets."""
        hits, false = _from_above(positives), _from_above(negatives)
        share = _share(hits, false)
        best = _share(hits, false - negatives)  # its positives come first
        worst = _share(hits - positives, false)  # last; the first of them has a higher precision
        return float(positives @ np.maximum(best - share, share - worst) / positives.sum())


def _from_above(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts[::-1])[::-1]


def _share(hits: np.ndarray, false: np.ndarray) -> np.ndarray:
    """Return the precision; 0 where nothing has such a score."""
    return hits / np.maximum(hits + false, np.finfo(np.float64).tiny)


# WeightedMean: the base of metrics that are a mean over examples, or a function of one. Pure.


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


def cross_entropy(positive: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return what each example adds to the log loss, in nats: float64."""
    # As scikit-learn: a float32 of exactly 0 or 1 stands for what float32 rounds to it.
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


# States of metrics as JSON can hold them, for checkpoints; without pickle. Pure.

_ALL: tuple[type[MergeableMetric], ...] = (
    *(Accuracy, AUC, Calibration, LogLoss, MAE, Mean),
    *(NormalizedEntropy, PRAUC, RMSE, TopK),
)
_METRICS: dict[str, type] = {each.__name__: each for each in _ALL}

_MOST_BYTES = 1 << 20
"""The state of an exact AUC grows with its scores; one that is larger than this is left out."""


def saved_states(states: Mapping[str, MetricState]) -> dict[str, Any]:
    """Return states by name; those of users' own metrics, and large ones, are left out."""
    return {
        name: {
            "metric": to_config(state.metric),
            "array": base64.b64encode(zlib.compress(state.array.tobytes(), 1)).decode(),
        }
        for name, state in states.items()
        if type(state.metric) in _ALL and state.array.nbytes <= _MOST_BYTES
    }


def loaded_states(saved: Any) -> MetricStates:
    """Return the states that `saved_states` was given.

    Raises
    ------
    ValueError
        If these are none.
    """
    found = typed(saved, dict[str, _SavedState])
    return MetricStates({name: _state(name, each) for name, each in found.items()})


class _SavedState(Struct, forbid_unknown_fields=True):
    metric: dict[str, Any]
    array: str  # base64 of packed numbers


def _state(name: str, saved: _SavedState) -> MetricState:
    metric = from_config(f"metric {name!r:.80}", saved.metric, _METRICS)
    zeros = metric.form.zeros()
    try:
        packed = base64.b64decode(saved.array, validate=True)
        data = zlib.decompressobj().decompress(packed, _MOST_BYTES)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"the state of {name!r:.80} is damaged: {error}") from error
    array = np.frombuffer(data, zeros.dtype).reshape(-1, *zeros.shape[1:]).copy()
    return MetricState(metric, array)
