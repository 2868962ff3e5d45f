"""What blends come to, one after the other. Pure.

A blend makes ``(1 - share) * value + term`` of each value. So it moves a value part of the way to
another one, wherever the value is by then: what blends of shares from 0 to 1 make of values lies
between these and what was blended in, however late they come and in which order.
"""

from __future__ import annotations

import numpy as np

from psnb._src.server.table_operations import BlendValues


def composed(first: BlendValues | None, second: BlendValues) -> BlendValues:
    """Return the blend that does what one after the other does."""
    if first is None:
        return second
    shares, terms = first.shares.copy(), first.terms.copy()
    compose(shares, terms, second, np.empty_like(shares))
    return BlendValues(shares, terms)


def compose(shares: np.ndarray, terms: np.ndarray, second: BlendValues, kept: np.ndarray) -> None:
    """Change the shares and terms of a blend so that it does what ``second`` does after it, too.

    ``kept`` is memory of their shape; no other is taken.
    """
    np.subtract(1, second.shares, out=kept)
    # Not 1 - (1 - a) * (1 - b), which rounds: shares are 0 where values are only added to.
    shares *= kept
    shares += second.shares
    terms *= kept
    terms += second.terms
