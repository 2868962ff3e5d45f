"""MergeableMetric: a description of a metric; MetricState: its value for examples. Pure.

States are immutable, so any thread may use them. For the wire their arrays are packed: most of the
numbers are zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.metrics.forms import StateForm
from psnb._src.metrics.rows import RowKind
from psnb._src.metrics.slice_table import SliceTable
from psnb._src.utils.config import Described
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.text import Named
from psnb.errors import ConfigurationError


class MetricState(SaysWhatToUse):
    """A metric of some examples; made by calling the metric, and by adding two states.

    Adding is exact, bit for bit the same in any order: sums are kept without rounding,
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
            raise ConfigurationError(f"this array is not a state of {metric}")
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

    @property
    def slices(self) -> SliceTable:
        """The values by slice, the worst first; empty if the metric was called without ``by``."""
        return self._metric.slice_table(self._array)

    @property
    def coverage(self) -> float:
        """Of which share of the examples the value is, by weight.

        1 of nearly all metrics; less of a metric of groups that holds a sample of them, as they are
        more than its ``capacity``.
        """
        return self._metric.coverage(self._array)

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
        one, two = self._array, other._array
        same = self._metric == other._metric and one.dtype == two.dtype and one.shape == two.shape
        return same and one.tobytes() == two.tobytes()

    def __repr__(self) -> str:
        value = self.reason or f"{self.result():.6g}"
        part = "" if self.coverage == 1 else f", of {self.coverage:.1%} of the examples"
        return f"<psnb.MetricState {self._metric}: {value}{part}>"

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


class MetricStates(Mapping[str, MetricState]):
    """What closures have reported up to a moment, merged; a mapping from names to `MetricState`.

    It never changes, so it marks a moment: `since` returns what came after it, exactly. Any thread
    may use it, and any number of marks can be kept; they do not know of each other.

    Parameters
    ----------
    states : mapping of str to MetricState
        What was merged under each name.

    Examples
    --------
    >>> import psnb
    >>> auc = psnb.metrics.AUC()
    >>> first = auc([0, 1], [0.2, 0.9])
    >>> mark = psnb.metrics.MetricStates({"auc": first})
    >>> now = psnb.metrics.MetricStates({"auc": first + auc([0, 1], [0.6, 0.1])})
    >>> now.results()
    {'auc': 0.5}
    >>> now.since(mark).results()
    {'auc': 0.0}
    """

    __slots__ = ("_states",)

    def __init__(self, states: Mapping[str, MetricState]) -> None:
        self._states = Named(states, "metric")

    def __getitem__(self, name: str) -> MetricState:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def results(self) -> dict[str, float]:
        """Return the value of each metric; NaN for one that has none."""
        found = {name: state.result() for name, state in self._states.items()}
        return Named(found, "metric")

    def slices(self) -> dict[str, SliceTable]:
        """Return the values by slice of each metric that was called with ``by``, worst first."""
        tables = {name: state.slices for name, state in self._states.items()}
        return {name: table for name, table in tables.items() if table}

    def since(self, earlier: Mapping[str, MetricState]) -> MetricStates:
        """Return the states since an earlier moment; unchanged names are left out.

        Parameters
        ----------
        earlier : mapping of str to MetricState
            From the same coordinator. A metric that is another one by now counts from its start.
        """
        later = {}
        for name, state in self._states.items():
            before = earlier.get(name)
            known = before is not None and before.metric == state.metric
            news = state - before if known and before is not None else state
            if news != state.metric.empty():
                later[name] = news
        return MetricStates(later)

    def __repr__(self) -> str:
        results = ", ".join(f"{name} {value:.4g}" for name, value in self.results().items())
        return f"<psnb.MetricStates {results or 'nothing reported'}>"


def united(earlier: Mapping[str, MetricState], later: Mapping[str, MetricState]) -> MetricStates:
    """Return what was reported earlier or later; a metric that is another one now, only later."""
    found = dict(earlier)
    for name, state in later.items():
        known = name in found and found[name].metric == state.metric
        found[name] = joined([found[name], state]) if known else state
    return MetricStates(found)


@dataclass(frozen=True)
class MergeableMetric(SaysWhatToUse, Described, ABC):
    """A description of a metric, without any data: frozen, and cheap to pickle.

    Call it with a batch to get a `MetricState`. States of equal metrics can be added.

    Attributes
    ----------
    best : float
        The best value, by which slices are sorted: infinite if a higher one is better, minus
        infinity if a lower one is, 1 of a quotient.
    """

    best: ClassVar[float] = math.inf

    @property
    @abstractmethod
    def form(self) -> StateForm:
        """What arrays its states are."""

    @abstractmethod
    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the value of a state's array, or a text that says why it has none."""

    @property
    def rows(self) -> RowKind | None:
        """What its states by slice are made of; None if it cannot be taken by slice."""
        return None

    def whole(self, array: np.ndarray) -> np.ndarray:
        """Return a state's array of all slices together."""
        return array

    def slice_table(self, array: np.ndarray) -> SliceTable:
        """Return the values by slice of a state's array."""
        return SliceTable()

    def coverage(self, array: np.ndarray) -> float:
        """Return of which share of the examples the value of a state's array is."""
        return 1.0

    def empty(self) -> MetricState:
        """Return the state of no examples; adding it changes nothing."""
        return MetricState(self, self.form.zeros())


Packed = tuple[Any, tuple[int, ...], str, int, bytes, bytes]
"""Dtype and shape; dtype of the values, and how far to shift them; places and values."""


def packed(array: np.ndarray) -> Packed:
    """Return an array of whole numbers as the places and values of those that are not zero.

    The places take 2 or 4 bytes each, or one bit for each number, whichever is less. The binary
    zeros that all values have at their end are left out, and they take as few bytes as the largest
    allows. Of an array with fields, these are its bytes.
    """
    if array.dtype.names:
        data = np.frombuffer(array.tobytes(), "u1")
        held = data != 0
        those = data[held].tobytes()
        return array.dtype.descr, array.shape, "", 0, np.packbits(held).tobytes(), those
    flat = array.ravel()
    places = np.flatnonzero(flat)
    values = flat[places]
    together = int(np.bitwise_or.reduce(values)) if values.size else 1
    shift = (together & -together).bit_length() - 1
    values >>= values.dtype.type(shift)
    smallest = np.min_scalar_type(values.max()) if values.size else np.dtype("u1")
    few = _dtype_of_places(flat)
    bits = few.itemsize * 8 * places.size > flat.size
    return (
        array.dtype.str,
        array.shape,
        smallest.newbyteorder("<").str,
        shift,
        (np.packbits(flat != 0) if bits else places.astype(few)).tobytes(),
        values.astype(smallest).tobytes(),
    )


def unpacked(parts: Packed) -> np.ndarray:
    """Return the array."""
    dtype, shape, smallest, shift, where, packed_values = parts
    if not smallest:
        kind = np.dtype(dtype)
        data = np.zeros(kind.itemsize * math.prod(shape), "u1")
        held = np.unpackbits(np.frombuffer(where, "u1"), count=data.size).view(bool)
        data[held] = np.frombuffer(packed_values, "u1")
        return data.view(kind).reshape(shape)
    array = np.zeros(shape, dtype)
    flat = array.reshape(-1)
    values = np.frombuffer(packed_values, smallest).astype(dtype)
    values <<= values.dtype.type(shift)
    few = _dtype_of_places(flat)
    if few.itemsize * 8 * values.size > flat.size:
        flat[np.unpackbits(np.frombuffer(where, "u1"), count=flat.size).view(bool)] = values
    else:
        flat[np.frombuffer(where, few)] = values
    return array


def _dtype_of_places(flat: np.ndarray) -> np.dtype[Any]:
    return np.dtype("<u2" if flat.size <= 1 << 16 else "<u4")
