"""What several blends come to: one after the other, or of the closures of a round. Pure.

A blend makes ``(1 - share) * value + term`` of each value. So it moves a value part of the way to
another one, wherever the value is by then: what blends of shares from 0 to 1 make of values lies
between these and what was blended in, however late they come and in which order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psnb._src.server.table_operations import BlendValues


def composed(first: BlendValues | None, second: BlendValues) -> BlendValues:
    """Return the blend that does what one after the other does."""
    if first is None:
        return second
    kept = 1 - second.shares
    # Not 1 - (1 - a) * (1 - b), which rounds: shares are 0 where values are only added to.
    return BlendValues(
        second.shares + kept * first.shares,
        second.terms + kept * first.terms,
    )


def averaged(several: Sequence[BlendValues], closures: int) -> BlendValues:
    """Return the blend that gives the average of what each alone would give.

    Closures of which there is none leave the values as they are.
    """
    shares, terms = (
        np.sum(each, axis=0) / each[0].dtype.type(closures)
        for each in zip(*((blend.shares, blend.terms) for blend in several), strict=True)
    )
    return BlendValues(shares, terms)
