"""Checks of the arrays that metrics are given. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from psnb._src.utils.arrays import untracked
from psnb.errors import ConfigurationError

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
            # For example bfloat16, which numpy does not know. Text and objects are not numbers;
            # numbers of 128 bits may not fit.
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


def why_undefined(negatives: float, positives: float) -> str:
    """Return why these counts of classes give no value; empty if they do."""
    if not negatives and not positives:
        return NO_EXAMPLES
    if not positives:
        return "no positive examples"
    return "" if negatives else "no negative examples"
