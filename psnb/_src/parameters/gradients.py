"""Checks of a gradient before it is sent: is it finite, and what is its norm? Pure.

They are done here, not on the servers, because a server sees only its part of a gradient, and
because a bad gradient must be refused before any server has taken its part.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from psnb._src.excerpt import shown
from psnb._src.server import all_finite
from psnb.errors import ConfigurationError, GradientError


class NonFinite(StrEnum):
    """What happens to a gradient with NaN or infinities."""

    REFUSE = "refuse"
    SKIP = "skip"
    ALLOW = "allow"


def as_nonfinite(value: str, name: str) -> NonFinite:
    """Return the choice, or raise ConfigurationError if there is no such choice."""
    try:
        return NonFinite(value)
    except ValueError:
        choices = ", ".join(repr(choice.value) for choice in NonFinite)
        raise ConfigurationError(
            f"{name!r}: nonfinite must be one of {choices}, found {shown(value)}"
        ) from None


def must_skip(gradient: np.ndarray, choice: NonFinite, what: str) -> bool:
    """Return whether a gradient, or rows of it, must be left out.

    Raises
    ------
    GradientError
        If it is not finite and must be refused.
    """
    if choice is NonFinite.ALLOW or all_finite(gradient):
        return False
    if choice is NonFinite.SKIP:
        return True
    bad = np.argwhere(~np.isfinite(gradient))
    first = tuple(bad[0].tolist())
    raise GradientError(
        f"{what}: {len(bad)} of {gradient.size} numbers are not finite, the first {gradient[first]}"
        f" at {first}; nothing was changed. Mend the model (a smaller learning rate, clipnorm=), "
        "or make the parameter with nonfinite='skip' to leave such updates out"
    )


def split_finite(
    ids: np.ndarray, gradients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids with finite gradients only, these gradients, then each other id once.

    An id with one bad gradient is left out with all of its gradients: their sum would be bad.
    """
    bad = np.unique(ids[~np.isfinite(gradients).all(axis=1)])
    good = ~np.isin(ids, bad)
    return ids[good], gradients[good], bad
