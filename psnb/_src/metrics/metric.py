"""MergeableMetric: the base of all metrics. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.utils.arrays import untracked
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb.errors import ConfigurationError

# Exact sums of float64 numbers: the same bit for bit in any order and grouping. Pure.
#
# Every finite float64 is a whole multiple of 2**-1074. So a sum of them is a whole number of such
# units, and adding whole numbers rounds nothing. A sum is kept as that number in two's complement,
# in 34 words of 64 bits: room for 2**77 of the largest numbers. It is rounded once, when it is
# read.
#
# After the long accumulator of Kulisch, *Computer Arithmetic and Validity*, 2013, ch. 8; grouping
# numbers by their exponents first is as in Neal, *Fast exact summation using small and large
# superaccumulators*, 2015.

WORDS = 34
"""Words of uint64, the lowest first, in which a sum is kept: 272 bytes."""

FRACTION_BITS = 1074
"""Binary digits behind the point."""

_HALF = 26  # bits of the lower half of a fraction of 53 bits
_MOST = 1 << 20  # numbers summed in float64 at once: 2**20 halves of 27 bits stay below 2**53


def exact_total(numbers: np.ndarray) -> int:
    """Return the sum of finite float64 numbers, of shape ``(n,)``, in units of 2**-1074."""
    total = 0
    for start in range(0, numbers.size, _MOST):
        bits = np.ascontiguousarray(numbers[start : start + _MOST], np.float64).view(np.int64)
        exponents = (bits >> 52) & 0x7FF
        fractions = (bits & (1 << 52) - 1) | ((exponents > 0).astype(np.int64) << 52)
        np.negative(fractions, out=fractions, where=bits < 0)
        # In units of 2**-1074 a number is its fraction, shifted; those below 2**-1022 are not.
        shifts = np.maximum(exponents, 1) - 1
        lowest = int(shifts.min())
        shifts -= lowest
        # Each sum of halves is a whole number below 2**53, so it is exact.
        uppers = np.bincount(shifts, fractions >> _HALF).tolist()
        lowers = np.bincount(shifts, fractions & (1 << _HALF) - 1).tolist()
        for shift, (upper, lower) in enumerate(zip(uppers, lowers, strict=True), lowest):
            if upper or lower:
                total += (int(upper) << _HALF) + int(lower) << shift
    return total


def whole_total(number: int) -> int:
    """Return a whole number in units of 2**-1074."""
    return number << FRACTION_BITS


def to_words(totals: Sequence[int]) -> np.ndarray:
    """Return sums as an array of shape ``(sums, 34)`` and dtype uint64."""
    packed = b"".join(total.to_bytes(8 * WORDS, "little", signed=True) for total in totals)
    return np.frombuffer(packed, "<u8").reshape(len(totals), WORDS)


def to_totals(words: np.ndarray) -> list[int]:
    """Return what `to_words` was given."""
    return [int.from_bytes(row.tobytes(), "little", signed=True) for row in words]


def rounded(numerator: int, denominator: int = 1 << FRACTION_BITS) -> float:
    """Return the float64 nearest to a fraction; infinite if it is too large for one."""
    try:
        return numerator / denominator  # Python rounds a fraction of whole numbers once
    except OverflowError:
        return float("inf") if (numerator > 0) == (denominator > 0) else float("-inf")


# Packing the arrays of states for the wire: most of their numbers are zero. Pure.

Packed = tuple[Any, tuple[int, ...], str, int, bytes, bytes]
"""Dtype and shape; dtype of the values, and how far to shift them; places and values."""


def packed(array: np.ndarray) -> Packed:
    """Return an array of whole numbers as the places and values of those that are not zero.

    The places take 2 or 4 bytes each, or one bit for each number, whichever is less. The binary
    zeros that all values have at their end are left out, and they take as few bytes as the largest
    allows. An array with fields is taken as it is.
    """
    if array.dtype.names:
        return array.dtype.descr, array.shape, "", 0, b"", array.tobytes()
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
        return np.frombuffer(packed_values, dtype).reshape(shape)
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


# MetricState: what a metric has seen, as a small array. Immutable, so any thread may use it.


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


# MetricStates: the states of several metrics by name, at one moment. Immutable.


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
        self._states = dict(states)

    def __getitem__(self, name: str) -> MetricState:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def results(self) -> dict[str, float]:
        """Return the value of each metric; NaN for one that has none."""
        return {name: state.result() for name, state in self._states.items()}

    def since(self, earlier: Mapping[str, MetricState]) -> MetricStates:
        """Return what was merged after an earlier moment; names without news are left out.

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


# StateForm: what arrays the states of a metric are, and how two are joined. Pure.
#
# Joining is exact, so the result is the same bit for bit in any order.

UNIT = 1 << 20
"""Counts are kept as whole multiples of ``1 / UNIT``, so that weights need not be whole."""

DIGITS = 3
"""A count is a number of units and two further digits, as of a number with places behind the point.

So it holds every weight from 1 / `UNIT` on as float64 has it."""

DIGIT_BITS = 26
"""Bits of each further digit: float64 sums of 2**27 of them are exact."""


class StateForm(ABC):
    """The arrays of a metric's states."""

    @abstractmethod
    def zeros(self) -> np.ndarray:
        """Return the state of no examples."""

    @abstractmethod
    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the state of the examples of all, of which there is one at least."""

    @abstractmethod
    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Return the state of the other examples, of which ``whole`` has more than ``part``."""

    @abstractmethod
    def fits(self, array: np.ndarray) -> bool:
        """Return whether an array has the dtype and shape of such a state."""


@dataclass(frozen=True)
class ExactSums(StateForm):
    """A few exact sums: uint64 of shape ``(sums, 34)``; see `psnb._src.metrics.metric`.

    Parameters
    ----------
    sums : int
        How many.
    """

    sums: int

    def zeros(self) -> np.ndarray:
        return np.zeros((self.sums, WORDS), "<u8")

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return to_words([sum(totals) for totals in zip(*map(to_totals, arrays), strict=True)])

    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        pairs = zip(to_totals(whole), to_totals(part), strict=True)
        return to_words([one - other for one, other in pairs])

    def fits(self, array: np.ndarray) -> bool:
        return array.dtype == np.dtype("<u8") and array.shape == (self.sums, WORDS)


@dataclass(frozen=True)
class BucketCounts(StateForm):
    """How many negatives and positives each bucket has: int64, ``(DIGITS, 2, buckets)``.

    Parameters
    ----------
    buckets : int
        How many.
    """

    buckets: int

    def zeros(self) -> np.ndarray:
        return np.zeros((DIGITS, 2, self.buckets), "<i8")

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        total = arrays[0].copy()
        for each in arrays[1:]:
            total += each
            carried(total)  # each time: what overflows twice may be positive again
        return total

    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        return carried(whole - part)

    def fits(self, array: np.ndarray) -> bool:
        return array.dtype == np.dtype("<i8") and array.shape == self.zeros().shape


@dataclass(frozen=True)
class ScoreCounts(StateForm):
    """How many negatives and positives each score has, by score: three fields, ``(scores,)``.

    The counts have their `DIGITS` behind each other.
    """

    def zeros(self) -> np.ndarray:
        count = ("<i8", (DIGITS,))
        return np.zeros(0, [("score", "<f8"), ("negatives", *count), ("positives", *count)])

    def of(self, scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the state of scores that may repeat, with counts ``(DIGITS, 2, scores)``."""
        # Stable sorting takes next to no time for sorted arrays behind each other.
        order = np.argsort(scores, kind="stable")
        ranked = scores[order]
        new = np.ones(ranked.size, bool)
        np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
        first = np.flatnonzero(new)
        made = np.empty(first.size, self.zeros().dtype)
        made["score"] = ranked[first]
        negatives, positives = (_sums(counts[:, side], order, first) for side in range(2))
        made["negatives"], made["positives"] = negatives.T, positives.T
        counted = negatives.any(axis=0) | positives.any(axis=0)
        return made if counted.all() else made[counted]

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        joined = np.concatenate(arrays)
        return self.of(joined["score"], self.counts(joined))

    def counts(self, array: np.ndarray) -> np.ndarray:
        """Return the counts of a state, ``(DIGITS, 2, scores)``."""
        return np.stack([array["negatives"].T, array["positives"].T], axis=1)

    def subtract(self, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        negated = part.copy()
        negated["negatives"] *= -1
        negated["positives"] *= -1
        return self.join([whole, negated])

    def fits(self, array: np.ndarray) -> bool:
        return array.dtype == self.zeros().dtype and array.ndim == 1


def _sums(digits: np.ndarray, order: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the sums of groups, ``(DIGITS, groups)``, of digits ``(DIGITS, scores)``.

    Further digits are mostly zero: only small and odd weights have them. Those are not sorted.
    """
    found = np.zeros((DIGITS, first.size), np.int64)
    for digit, each in enumerate(digits):
        if first.size and (digit == 0 or each.any()):
            # Not bincount, whose float64 sums hold 53 bits.
            found[digit] = np.add.reduceat(each[order], first)
    return carried(found)


def carried(counts: np.ndarray) -> np.ndarray:
    """Bring digits (the first axis) that were added into their range; in place."""
    for digit in range(DIGITS - 1, 0, -1):
        if counts[digit].any():
            counts[digit - 1] += counts[digit] >> DIGIT_BITS
            counts[digit] &= (1 << DIGIT_BITS) - 1
    if counts.size and counts[0].min() < 0:
        raise ConfigurationError(
            "a count of a metric would be negative, or 2**43 and more: subtract only a state of "
            "some of the same examples, and scale weights to about 1"
        )
    return counts


@dataclass(frozen=True)
class MergeableMetric(SaysWhatToUse, ABC):
    """A description of a metric, without any data: frozen, and cheap to pickle.

    Call it with a batch to get a `MetricState`. States of equal metrics can be added.
    """

    @property
    @abstractmethod
    def form(self) -> StateForm:
        """What arrays its states are."""

    @abstractmethod
    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the value of a state's array, or, in words, why it has none."""

    def empty(self) -> MetricState:
        """Return the state of no examples; adding it changes nothing."""
        return MetricState(self, self.form.zeros())


# Checks of the arrays that metrics are given. Pure.

NO_EXAMPLES = "no examples, or all of weight 0"
"""Why an empty state has no value."""


def numbers(what: str, values: Any) -> np.ndarray:
    """Return an array of numbers as it is: bool, whole or floating-point; of any shape.

    Raises
    ------
    ConfigurationError
        If it is none, or has a NaN or an infinite number.
    """
    try:
        array = np.asarray(untracked(values))
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            # Such as bfloat16, of which numpy knows nothing. Text and objects are not numbers, and
            # those of 128 bits may not fit.
            if array.dtype.kind != "V" or array.dtype.names:
                raise TypeError(f"their dtype is {array.dtype}")
            array = array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{what} must be an array of numbers: {error}") from error
    return require_finite(what, array)


def require_finite(what: str, array: np.ndarray) -> np.ndarray:
    """Return an array of numbers that are all finite."""
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        place = np.argwhere(~finite)[0].tolist()
        raise ConfigurationError(f"{what} must be finite, found {array[tuple(place)]} at {place}")
    return array


def column(what: str, values: Any, size: int | None = None) -> np.ndarray:
    """Return numbers of shape ``(examples,)``; a single number is one example."""
    array = np.atleast_1d(numbers(what, values))
    if array.ndim != 1:
        hint = ": take [:, 0]" if array.ndim == 2 and array.shape[1] == 1 else ""
        raise ConfigurationError(
            f"{what} must have the shape (examples,), found {array.shape}{hint}"
        )
    if size is not None and array.size != size:
        raise ConfigurationError(f"{what} must be {size}, one for each example; found {array.size}")
    return array


def weights_of(weights: Any, size: int) -> np.ndarray | None:
    """Return weights of shape ``(size,)`` as float64; None if there are none."""
    if weights is None:
        return None
    array = column("weights", weights, size).astype(np.float64, copy=False)
    if (array < 0).any():
        raise ConfigurationError(f"weights must be 0 or more, found {array.min()}")
    return array


def binary(labels: Any) -> np.ndarray:
    """Return labels, each 0 or 1, as bools of shape ``(examples,)``."""
    array = column("labels", labels)
    if array.dtype == bool:
        return array
    positive = array == 1
    if not (positive | (array == 0)).all():
        found = array[~positive & (array != 0)][0]
        raise ConfigurationError(f"labels must be 0 or 1, found {found}")
    return positive


def probabilities(what: str, values: Any, size: int) -> np.ndarray:
    """Return numbers from 0 to 1, one for each example, of a floating-point dtype."""
    array = column(what, values, size)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    if array.size and not 0 <= array.min() <= array.max() <= 1:
        found = array[(array < 0) | (array > 1)][0]
        raise ConfigurationError(f"{what} must be between 0 and 1, found {found}")
    return array


def classes(labels: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of shape ``(examples,)`` as int64, and scores ``(examples, classes)``.

    Each label is the number of a class.
    """
    scores = numbers("scores", scores)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ConfigurationError(
            f"scores must have the shape (examples, classes), found {scores.shape}"
        )
    found = column("labels", labels, scores.shape[0])
    with np.errstate(invalid="ignore"):  # of a float that no int64 holds, a wrong one is made
        whole = found.astype(np.int64)
    if not ((whole == found) & (whole >= 0) & (whole < scores.shape[1])).all():
        raise ConfigurationError(
            f"labels must be whole numbers from 0 to {scores.shape[1] - 1}, one for each class"
        )
    return whole, scores
