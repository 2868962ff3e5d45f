"""Quantization: rows in fewer bits, and the error of that. Pure."""

from __future__ import annotations

import math

import numpy as np

from psnb.errors import ConfigurationError

STORED = ("float64", "float32", "float16", "int8")
"""The dtypes that rows are stored in."""

_LEVELS = 127


def quantized(rows: np.ndarray, stored: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return rows in another dtype, and for int8 the scale of each row (float32 ``(n,)``).

    Raises
    ------
    ConfigurationError
        If numbers are too large for it; or for int8, if they are not finite.
    """
    if stored == "int8":
        if not np.isfinite(rows).all():
            raise ConfigurationError("rows that are not finite cannot be stored in int8")
        scales = (np.abs(rows).max(axis=1, initial=0) / _LEVELS).astype(np.float32)
        divisors = np.where(scales > 0, scales, 1)[:, None]
        levels = np.rint(rows / divisors).clip(-_LEVELS, _LEVELS)
        return levels.astype(np.int8), scales
    with np.errstate(over="ignore"):
        found = rows.astype(stored)
    if (np.isinf(found) & np.isfinite(rows)).any():
        raise ConfigurationError(
            f"rows have numbers that are too large for {stored}: at most {np.finfo(stored).max}"
        )
    return found, None


def restored(stored: np.ndarray, scales: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Return rows from their stored form."""
    found = stored.astype(dtype, copy=False)
    if scales is not None:
        found *= scales[:, None]  # a copy: int8 is none of the dtypes of rows
    return found


class RowError:
    """The error of all numbers that were stored so far."""

    def __init__(self) -> None:
        self._most, self._squares, self._count = 0.0, 0.0, 0

    def add(self, rows: np.ndarray, found: np.ndarray) -> None:
        """Count rows, and what is restored of them."""
        known = np.isfinite(rows)
        error = (found[known].astype(np.float64) - rows[known]).ravel()
        self._most = max(self._most, float(np.abs(error).max(initial=0)))
        self._squares += float(error @ error)
        self._count += error.size

    def summary(self) -> dict[str, float]:
        """Return the largest error of a number, and the root of the mean square."""
        return {"max": self._most, "rms": math.sqrt(self._squares / max(1, self._count))}
