"""Seeds of shuffles. Pure."""

from __future__ import annotations

import operator
import secrets

from psnb._src.checks import is_integer
from psnb.errors import ConfigurationError


def as_seed(method: str, seed: int | None) -> int:
    """Return the seed, or a random one if it is None.

    Raises
    ------
    ConfigurationError
        If it is not an integer.
    """
    if seed is None:
        return secrets.randbits(63)
    if not is_integer(seed):
        raise ConfigurationError(
            f"{method}: seed must be an integer, found a {type(seed).__name__}"
        )
    return operator.index(seed)
