"""Descriptions of the features of ``tf.train.Example`` messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from psnb._src.data.formats.wire import BYTES, FLOATS, INTEGERS
from psnb._src.excerpt import shown
from psnb.errors import ConfigurationError

_DTYPES = {BYTES: np.dtype(object), FLOATS: np.dtype(np.float32), INTEGERS: np.dtype(np.int64)}

NAMES = {0: "nothing", BYTES: "bytes", FLOATS: "float32", INTEGERS: "int64"}
"""The kinds of lists, for people."""


def _kind_of(dtype: Any) -> int:
    try:
        if dtype in (bytes, "bytes"):
            return BYTES
        kinds = [kind for kind in (FLOATS, INTEGERS) if np.dtype(dtype) == _DTYPES[kind]]
    except (TypeError, ValueError):  # of an array, for example
        kinds = []
    if not kinds:
        raise ConfigurationError(
            f"a feature's dtype is {shown(dtype)}: an Example holds int64, float32 or bytes"
        )
    return kinds[0]


@dataclass(frozen=True)
class FixedLen:
    """A feature with the same number of values in each example.

    Its column is an array of shape (examples, *shape), of int64, float32 or bytes objects.

    Parameters
    ----------
    shape : tuple of int, or int
        The shape of one example's values.
    dtype : dtype
        int64, float32 or bytes.
    default : array-like, optional
        The values of an example without the feature, which is an error by default. Broadcasts to
        the shape.

    Raises
    ------
    ConfigurationError
        If the dtype, the shape or the default is not possible.
    """

    shape: tuple[int, ...]
    dtype: Any
    default: Any = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        object.__setattr__(self, "shape", shape)
        if any(not isinstance(size, (int, np.integer)) or size < 0 for size in shape):
            raise ConfigurationError(f"a feature's shape is {shape}: not sizes of at least 0")
        if _kind_of(self.dtype) and self.default is not None:
            try:
                self.rows(1)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"a feature's default is {shown(self.default)}: not {self.dtype} of "
                    f"shape {shape}"
                ) from error

    @cached_property
    def kind(self) -> int:
        """The kind of list that holds it."""
        return _kind_of(self.dtype)

    @cached_property
    def size(self) -> int:
        """The number of values of an example."""
        return prod(self.shape)

    def rows(self, count: int) -> np.ndarray:
        """Return the column of examples without the feature."""
        column = np.empty((count, *self.shape), _DTYPES[self.kind])
        if self.default is not None:
            column[...] = np.asarray(self.default, column.dtype)
        return column


@dataclass(frozen=True)
class VarLen:
    """A feature with any number of values in an example, none where it is missing.

    Its column is a `Ragged` of int64, float32 or bytes objects.

    Parameters
    ----------
    dtype : dtype
        int64, float32 or bytes.

    Raises
    ------
    ConfigurationError
        If the dtype is not possible.
    """

    dtype: Any

    def __post_init__(self) -> None:
        _kind_of(self.dtype)

    @cached_property
    def kind(self) -> int:
        """The kind of list that holds it."""
        return _kind_of(self.dtype)


Feature = FixedLen | VarLen


def check_features(features: Mapping[str, Feature]) -> None:
    """Raise `ConfigurationError` if these are not features."""
    if not features:
        raise ConfigurationError("features is empty: name at least one")
    for name, feature in features.items():
        if not isinstance(name, str) or not isinstance(feature, (FixedLen, VarLen)):
            raise ConfigurationError(
                f"features has {name!r}: {feature!r}; give names with FixedLen or VarLen"
            )
