"""What arrays must be before numpy or a compiled loop takes them. Pure.

Compiled loops check no bounds, and numpy converts or broadcasts other dtypes and shapes where it
can. So whatever comes to a table, from a file or another process, is checked here first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from psnb.errors import IdOutOfRangeError, InvalidArrayError

Form = tuple[np.dtype, tuple[int, ...]]
"""The dtype and shape of an array."""

ID, POSITION = np.dtype(np.uint64), np.dtype(np.int64)


def form(what: str, array: Any) -> Form:
    """Return the form of an array, or raise InvalidArrayError if it is not an array."""
    # Numpy returns a scalar from computations on arrays without axes.
    if not isinstance(array, np.ndarray | np.generic):
        raise InvalidArrayError(f"{what}: expected an array, found {type(array).__name__}")
    return array.dtype, array.shape


def forms(what: str, arrays: Mapping[str, Any]) -> dict[str, Form]:
    """Return the forms of a parameter's arrays; InvalidArrayError if one is not an array."""
    return {name: form(f"{name} of {what!r}", array) for name, array in arrays.items()}


def check_form(what: str, found: Form, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise InvalidArrayError unless a form is this one: nothing is converted or broadcast."""
    if found != (dtype, shape):
        raise InvalidArrayError(
            f"{what}: expected {dtype} of shape {shape}, found {found[0]} of shape {found[1]}"
        )


def check_array(what: str, array: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise InvalidArrayError unless an array has this form."""
    check_form(what, form(what, array), dtype, shape)


def check_ids(what: str, ids: Any) -> None:
    """Raise InvalidArrayError unless these are ids: uint64, one axis."""
    check_flat(what, form(what, ids), ID)


def check_distinct(what: str, ids: np.ndarray) -> None:
    """Raise InvalidArrayError if one of the ids is there twice."""
    ordered = np.sort(ids)  # faster than a hash map
    if (ordered[1:] == ordered[:-1]).any():
        found, counts = np.unique(ids, return_counts=True)
        most = counts.argmax()
        raise InvalidArrayError(f"{what}: id {found[most]} is there {counts[most]} times")


def check_within(what: str, numbers: np.ndarray, low: int, high: int) -> None:
    """Raise IdOutOfRangeError unless all numbers are from ``low`` to ``high``, both included."""
    if numbers.size:
        least, most = int(numbers.min()), int(numbers.max())
        if least < low or most > high:
            bad = least if least < low else most
            raise IdOutOfRangeError(f"{what}: expected {low} to {high}, found {bad}")


def check_positions(what: str, rows: Any, count: int) -> None:
    """Raise ConfigurationError unless these are positions below ``count``: int64, one axis."""
    check_flat(what, form(what, rows), POSITION)
    check_within(what, rows, 0, count - 1)


def check_flat(what: str, found: Form, dtype: np.dtype) -> int:
    """Return how many numbers there are, or raise InvalidArrayError unless they are of one axis."""
    kind, shape = found
    if kind != dtype or len(shape) != 1:
        raise InvalidArrayError(
            f"{what}: expected {dtype} of one axis, found {kind} of shape {shape}"
        )
    return shape[0]
