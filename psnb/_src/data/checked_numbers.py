"""Checking numbers that users pass. Pure."""

from __future__ import annotations

import operator
import secrets
from typing import Any

from psnb.errors import ConfigurationError


def at_least(method: str, name: str, value: Any, least: int) -> int:
    """Return an integer.

    Raises
    ------
    ConfigurationError
        If it is none, or below ``least``.
    """
    number = _integer(method, name, value)
    if number < least:
        raise ConfigurationError(f"{method}: {name} must be at least {least}, found {number}")
    return number


def as_seed(method: str, seed: int | None) -> int:
    """Return a seed, at random if there is none.

    Raises
    ------
    ConfigurationError
        If it is no integer.
    """
    return secrets.randbits(63) if seed is None else _integer(method, "seed", seed)


def _integer(method: str, name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigurationError(
            f"{method}: {name} must be an integer, found a {type(value).__name__}"
        ) from None
