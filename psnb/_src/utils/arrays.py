"""Arrays from lists, tensors and columns of numbers; no integer of 64 bits is rounded. Pure.

An id is 64 bits: -1 and ``2**64 - 1`` are one id. NumPy makes floats, which have 53, of lists with
integers on both sides of 2**63, of signed and unsigned ones together and of columns with missing
values. So each door that takes ids takes them with `integers_of`, and no other way.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.utils.text import ARGUMENT, truncate
from psnb.errors import InvalidArrayError

_MASK = 2**64 - 1
_INEXACT = 2.0**53
"""From here on, float64 does not hold every integer."""


def untracked(value: Any) -> Any:
    """Return the values of a tensor of torch, which NumPy takes, and anything else as it is.

    bfloat16, which NumPy lacks, becomes float32. Likewise for tensors in lists, of which NumPy
    makes floats if they are unsigned.
    """
    if isinstance(value, list | tuple) and value:
        of_tensors = isinstance(value[0], list | tuple) or hasattr(value[0], "detach")
        return [untracked(each) for each in value] if of_tensors else value
    if not hasattr(value, "detach") or not hasattr(value, "cpu"):
        return value
    plain = value.detach().cpu()
    array = (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
    return array if array.ndim else array[()]  # a scalar, as NumPy has them in lists


def integers_of(value: Any, what: str) -> np.ndarray:
    """Return an array of integers of any dtype, none of which was rounded.

    Parameters
    ----------
    value : array_like of int
        Lists, also nested ones, arrays of NumPy, JAX and Arrow, tensors, and columns of data
        frames, also of objects that are integers. Where some are below 0 and others from 2**63 on,
        all become the same bits as uint64.
    what : str
        What they are, for the error.

    Raises
    ------
    InvalidArrayError
        If they are anything but integers of 64 bits; the error says what to do.
    """
    if type(value) is np.ndarray and value.dtype.kind in "iu":
        return value  # nearly always, and 50 times a batch
    array = _array(value, what)
    if array.dtype.kind in "iu":
        return array
    brings_dtype = hasattr(value, "dtype")
    if not array.size and (array.dtype.kind == "O" or not brings_dtype):
        return array.astype(np.int64)  # an empty list has no dtype, and objects have no type
    if array.dtype.kind == "O" or not brings_dtype:
        exact = array if array.dtype.kind == "O" else np.array(value, object)
        numbers = _numbers(exact)
        if numbers is not None:
            return _fitting(numbers, what).reshape(exact.shape)
    raise InvalidArrayError(f"{what}: expected integers, found {found_in(array)}")


def _array(value: Any, what: str) -> np.ndarray:
    if np.ma.is_masked(value):
        raise InvalidArrayError(f"{what}: expected integers, found masked ones: fill them")
    try:
        return np.asarray(untracked(value))
    except (TypeError, ValueError, OverflowError) as error:
        bags = "; of bags take .values, and .offsets in lookup_bags" * hasattr(value, "offsets")
        lists = "; of lists that differ in length, psnb.data.Ragged.from_rows makes bags"
        raise InvalidArrayError(
            f"{what} are not an array: {truncate(str(error), ARGUMENT)}"
            f"{bags or lists * isinstance(value, list)}"
        ) from error


def _numbers(exact: np.ndarray) -> list[int] | None:
    """Return Python's integers, of NumPy's and of scalars of frameworks, or None of others."""
    found = []
    for each in exact.flat:
        if isinstance(each, (bool, np.bool_)) or getattr(each, "shape", ()) != ():
            return None
        try:
            found.append(operator.index(untracked(each)))  # torch's index is signed
        except TypeError:
            return None
    return found


def _fitting(numbers: list[int], what: str) -> np.ndarray:
    low, high = min(numbers), max(numbers)
    if low < -(2**63) or high > _MASK:
        bad = low if low < -(2**63) else high
        raise InvalidArrayError(f"{what}: the integer {bad} does not fit 64 bits")
    if low >= 0 or high < 2**63:
        return np.array(numbers, dtype_of(low, high))
    return np.array([number & _MASK for number in numbers], np.uint64)


def found_in(array: np.ndarray) -> str:
    """Return a text: what was found in place of numbers, and what to do about it."""
    kind = array.dtype.kind
    values = array.reshape(-1).tolist() if kind == "O" else []
    if kind in "SUT" or any(isinstance(each, (str, bytes)) for each in values):
        return "text: psnb.hash_ids makes ids of it"
    missing = any(
        # The second are pandas', whose comparisons have no truth; the last is NaN.
        each is None
        or type(each).__name__ in ("NAType", "NaTType")
        or (isinstance(each, float) and each != each)
        for each in values
    )
    if missing or (kind == "f" and np.isnan(array).any()):
        return f"missing values, in {array.dtype}: fill them where the column is read"
    if kind == "f":
        return (
            f"dtype {array.dtype}, which holds integers up to 2**{np.finfo(array.dtype).nmant + 1} "
            "alone: convert the column where it is read"
        )
    return f"dtype {array.dtype}"


def frame_text(value: Any) -> str:
    """Return what to give in place of a data frame, which is no dict; empty for anything else."""
    if isinstance(value, Mapping) or not hasattr(value, "columns") or not hasattr(value, "shape"):
        return ""
    # polars and Arrow have no dicts of columns by that name.
    way = "dict(frame)" if hasattr(value, "iloc") else "psnb.data.Dataset.from_table(frame)"
    return f"a batch is a dict of columns, which {way} makes of a frame"


def bits_of(array: np.ndarray) -> np.ndarray:
    """Return integers as contiguous uint64 of the same shape: negative ones as their bits."""
    signed = array.dtype.kind == "i"
    wide = np.ascontiguousarray(array, np.int64 if signed else np.uint64)
    return wide.view(np.uint64).reshape(array.shape)


def array_of(value: Any) -> np.ndarray:
    """Return what `numpy.asarray` does, except that integers stay integers.

    NumPy makes float64 of a list that has integers on both sides of 2**63, or NumPy's own signed
    and unsigned ones. Here it is int64 if it can be, else uint64.

    Raises
    ------
    ValueError
        If no 64-bit type holds all of them.
    """
    value = untracked(value)
    array = np.asarray(value)
    if array.dtype == np.float64 and not hasattr(value, "dtype"):
        with np.errstate(invalid="ignore"):
            large = bool((np.abs(array) >= _INEXACT).any())
    else:
        large = array.dtype == object and not hasattr(value, "dtype")
    if not large:
        return array
    exact = np.array(value, object)
    if exact.shape != array.shape or not all(
        isinstance(each, (int, np.integer)) and not isinstance(each, bool) for each in exact.flat
    ):
        return array
    return exact.astype(dtype_of(int(exact.min()), int(exact.max())))


def dtype_of(low: int, high: int) -> np.dtype:
    """Return the 64-bit type that holds integers from ``low`` to ``high``.

    Raises
    ------
    ValueError
        If there is none.
    """
    for dtype in (np.dtype(np.int64), np.dtype(np.uint64)):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    raise ValueError(f"no 64-bit type holds integers from {low} to {high}: use float64, or str")


def joint_dtype(arrays: Iterable[np.ndarray]) -> np.dtype:
    """Return the dtype of joined arrays: `numpy.result_type`, except that integers stay integers.

    An empty list, of which NumPy makes float64, does not count if there are others.

    Raises
    ------
    ValueError
        If no 64-bit type holds all of the integers.
    """
    given = list(arrays)
    given = [each for each in given if each.size or each.dtype != np.float64] or given
    found = np.result_type(*{each.dtype for each in given})
    if found.kind != "f" or any(each.dtype.kind not in "iu" for each in given):
        return found
    some = [each for each in given if each.size]
    low = min((int(each.min()) for each in some), default=0)
    return dtype_of(low, max((int(each.max()) for each in some), default=0))


def concatenated(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays end to end along their first axis, as `joint_dtype` says."""
    dtypes = {each.dtype for each in arrays}
    if len(dtypes) == 1:
        return np.concatenate(arrays)
    return np.concatenate(arrays, dtype=joint_dtype(arrays), casting="unsafe")
