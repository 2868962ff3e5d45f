"""Checks of hyperparameters, for optimizers and schedules. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from psnb._src.checks import is_integer
from psnb._src.excerpt import shown
from psnb.errors import ConfigurationError


def require_number(
    owner: Any, name: str, *, positive: bool = False, below: float | None = None
) -> None:
    """Make a field of a frozen dataclass a float, or raise ConfigurationError.

    It must be finite, not below 0 (or above 0, if ``positive``) and, if given, below ``below``.
    """
    value = getattr(owner, name)
    what = "finite and above 0" if positive else "finite and not below 0"
    good = is_finite(value) and (value > 0 if positive else value >= 0)
    if below is not None:
        what += f", below {below:g}"
        good = good and value < below
    if not good:
        raise refusal(owner, name, f"a number, {what}")
    object.__setattr__(owner, name, float(value))  # not a numpy or JAX number: for JSON and pickles


def is_finite(value: Any) -> bool:
    """Return whether something is a finite real number, of NumPy or JAX too; a bool is not."""
    try:
        return not isinstance(value, bool) and np.ndim(value) == 0 and math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def require_steps(owner: Any, name: str) -> None:
    """Make a field of a frozen dataclass an int of 1 or more, or raise ConfigurationError."""
    value = getattr(owner, name)
    if not is_integer(value) or value < 1:
        raise refusal(owner, name, "a whole number of steps, 1 or more")
    object.__setattr__(owner, name, int(value))


def require_flag(owner: Any, name: str) -> None:
    """Make a field of a frozen dataclass a bool, or raise ConfigurationError."""
    value = getattr(owner, name)
    if not isinstance(value, bool | np.bool):
        raise refusal(owner, name, "True or False")
    object.__setattr__(owner, name, bool(value))


def refusal(owner: Any, name: str, what: str) -> ConfigurationError:
    """Return the error that says what a field must be."""
    return ConfigurationError(
        f"{type(owner).__name__}({name}={shown(getattr(owner, name))}): {name} must be {what}"
    )
