"""What a batch is like and where it is from, in a line: to find what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from psnb._src.runtime import latest_element

_SHOWN = 8


def batch_summary(fields: Iterable[tuple[str, np.ndarray]]) -> str:
    """Return shapes of a batch's fields, and the range of those that are floats.

    Fields with numbers that are not finite come first. At the end is which element of its dataset
    the closure took last: the batch, unless it made the batch of several.
    """
    bad, good = [], []
    for name, array in fields:
        shape = list(array.shape)
        if array.dtype.kind != "f" or not array.size:
            good.append(f"{name} {shape} {array.dtype}")
            continue
        finite = array[np.isfinite(array)]
        span = f"{finite.min():.3g} to {finite.max():.3g}" if finite.size else "nothing finite"
        told = f"{name} {shape} {span}"
        if missing := array.size - finite.size:
            bad.append(f"{told}, {missing} not finite")
        else:
            good.append(told)
    told_of = [*bad, *good]
    more = f"; and {len(told_of) - _SHOWN} more" if len(told_of) > _SHOWN else ""
    taken = latest_element()
    source = f"; it is {taken} (elements count from 0)" if taken else ""
    return "; ".join(told_of[:_SHOWN]) + more + source
