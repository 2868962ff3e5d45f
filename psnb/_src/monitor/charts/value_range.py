"""The range of values that a chart shows: outliers do not set it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEW = 20
"""Values of a line up to which all are shown, as of one an epoch."""

_QUANTILES = (0.05, 0.95)
_REACH = 1.5
"""How far beyond the quantiles values are shown, in distances between them."""

_UNSETTLED = 0.1
"""The part of an epoch in which a mean over it is of few examples."""


def shown_range(
    lines: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], epochs: Sequence[float] = ()
) -> tuple[float, float] | None:
    """Return the least and the greatest value that a chart of lines shows.

    The browser's charts do the same: ``valueRange`` in ``extension/src/dashboard/axes.ts``.

    Parameters
    ----------
    lines : sequence of tuple of numpy.ndarray
        Of each the places, in their order, the values, and their averages; any value may be not
        finite.
    epochs : sequence of float
        The places where epochs begin, in their order.

    Returns
    -------
    tuple of float or None
        None if no value is finite.

    Examples
    --------
    >>> import numpy as np
    >>> values = np.array([1000.0, *np.linspace(0.5, 1.0, 100)])
    >>> shown_range([(np.arange(101), values, values)])
    (0.5, 1.0)
    """
    ranges = [_range(_settled(*line, epochs)) for line in lines]
    known = [each for each in ranges if each is not None]
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _range(values: np.ndarray) -> tuple[float, float] | None:
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    if values.size > FEW:
        low, high = np.quantile(values, _QUANTILES)
        reach = _REACH * (high - low)
        if reach > 0:  # else it is a constant with exceptions, which are all that there is to see
            values = values[(values >= low - reach) & (values <= high + reach)]
    return float(values.min()), float(values.max())


def _settled(
    places: np.ndarray, values: np.ndarray, averages: np.ndarray, epochs: Sequence[float]
) -> np.ndarray:
    """Return the values that may set the scale.

    A value that is its own average is a mean over the epoch so far: of its first batches, it jumps.
    """
    if not len(epochs) or not len(values) or not np.array_equal(values, averages, equal_nan=True):
        return values
    begins = np.array(epochs)
    ends = np.append(begins[1:], max(places[-1], begins[-1]))
    epoch = np.searchsorted(begins, places, "right") - 1
    inside = places - begins[epoch] > _UNSETTLED * (ends - begins)[epoch]
    rest = values[inside | (epoch < 0)]
    return rest if rest.size else values
