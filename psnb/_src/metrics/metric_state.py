"""MetricState: what a metric has seen, as a small array. Immutable, so any thread may use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from psnb._src.foreign_names import SaysWhatToUse
from psnb._src.metrics.packed_array import Packed, packed, unpacked
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from psnb._src.metrics.mergeable_metric import MergeableMetric


class MetricState(SaysWhatToUse):
    """A metric of some examples; made by calling the metric, and by adding two states.

    Adding is exact and does not depend on the order, to the bit: sums are kept without rounding,
    counts as whole numbers. So it does not matter which worker came first, and a part that was
    added can be subtracted again.

    A state pickles to a few bytes for each count that is not zero.

    Parameters
    ----------
    metric : MergeableMetric
        What it is a state of.
    array : numpy.ndarray
        Of the metric's dtype and shape; it is not copied, and becomes read-only.

    Raises
    ------
    ConfigurationError
        If the array is not one of this metric.

    Examples
    --------
    >>> import psnb
    >>> auc = psnb.metrics.AUC()
    >>> state = auc([0, 1], [0.2, 0.9]) + auc([1, 0], [0.6, 0.7])
    >>> float(state)
    0.75
    >>> state - auc([0, 1], [0.2, 0.9]) == auc([1, 0], [0.6, 0.7])
    True
    """

    __slots__ = ("_array", "_metric")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, metric: MergeableMetric, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray) or not metric.form.fits(array):
            raise ConfigurationError(f"this array is no state of {metric}")
        array.setflags(write=False)
        self._metric, self._array = metric, array

    @property
    def metric(self) -> MergeableMetric:
        """What it is a state of."""
        return self._metric

    @property
    def array(self) -> np.ndarray:
        """The state itself, read-only."""
        return self._array

    def result(self) -> float:
        """Return the metric's value; NaN if it has none, and `reason` says why."""
        value = self._metric.evaluate(self._array)
        return math.nan if isinstance(value, str) else value

    @property
    def reason(self) -> str:
        """Why there is no value, for example as no example was seen; empty if there is one."""
        value = self._metric.evaluate(self._array)
        return value if isinstance(value, str) else ""

    def __float__(self) -> float:
        return self.result()

    def __add__(self, other: MetricState) -> MetricState:
        if not isinstance(other, MetricState):
            return NotImplemented
        return joined([self, other])

    def __sub__(self, other: MetricState) -> MetricState:
        if not isinstance(other, MetricState):
            return NotImplemented
        _require_same(self, other, "subtracted")
        return MetricState(self._metric, self._metric.form.subtract(self._array, other._array))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MetricState):
            return NotImplemented
        return self._metric == other._metric and np.array_equal(self._array, other._array)

    def __repr__(self) -> str:
        reason = self.reason
        return f"<psnb.MetricState {self._metric}: {reason or f'{self.result():.6g}'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._metric, *packed(self._array))


def joined(states: Sequence[MetricState]) -> MetricState:
    """Return the sum of states of one metric, of which there is one at least."""
    metric = states[0].metric
    for each in states[1:]:
        _require_same(states[0], each, "added")
    return MetricState(metric, metric.form.join([each.array for each in states]))


def _require_same(state: MetricState, other: MetricState, done: str) -> None:
    if state.metric != other.metric:
        raise ConfigurationError(
            f"a state of {other.metric} cannot be {done}: the other is of {state.metric}"
        )


def _unpickled(metric: MergeableMetric, *parts: Any) -> MetricState:
    array: Packed = parts
    return MetricState(metric, unpacked(array))
