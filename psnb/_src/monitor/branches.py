"""Branches: which points lead to the present parameters, and which were abandoned. Pure.

Parameters that go back begin a branch, and the points since the moment to which they went belong to
one that was abandoned. This is decided here alone, for figures, pages and lists of runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psnb._src.monitor.history import Rewind


class Cut(NamedTuple):
    """Where parameters went back, and what of the branch that ends there was not abandoned.

    Attributes
    ----------
    step, time, examples
        As of a `Rewind`.
    kept : float
        Of the points between the cut before and this one, the time of the last that was not
        abandoned, or a later one; 0 if all were.
    """

    step: int
    time: float
    examples: float
    kept: float


class Part(NamedTuple):
    """Points of a series that are drawn as one line.

    Attributes
    ----------
    points : slice
        Of the series. An abandoned part begins with the point where it leaves the one before.
    abandoned : bool
        Whether parameters went back to a moment before them.
    """

    points: slice
    abandoned: bool


def cuts(rewinds: Sequence[Rewind]) -> list[Cut]:
    """Return where a history that went back is cut, in order."""
    times = [each.time for each in rewinds]
    kept = [0.0] * len(times)
    at = len(times)
    while at:  # the one with which the branch began that is followed backwards
        back = rewinds[at - 1].back
        at = bisect_left(times, back)
        kept[at] = back
    return [Cut(*each[:-1], until) for each, until in zip(rewinds, kept, strict=True)]


def parts(times: np.ndarray, cut_at: Sequence[Cut]) -> list[Part]:
    """Return the parts of a series whose points have these times; none is empty.

    The browser's charts do the same: ``parts`` in ``extension/src/dashboard/store.ts``.

    Examples
    --------
    >>> import numpy as np
    >>> went_back = cuts([Rewind(step=4, time=4.5, examples=128.0, back=2.5)])
    >>> [each.abandoned for each in parts(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), went_back)]
    [False, True, False]
    """
    found: list[Part] = []
    start = 0
    for cut in cut_at:
        begin = start
        for time, abandoned in ((cut.kept, False), (cut.time, True)):
            stop = int(np.searchsorted(times, time, "right"))
            if stop > start:
                found.append(Part(slice(start - (start > begin), stop), abandoned))
                start = stop
    if len(times) > start:
        found.append(Part(slice(start, len(times)), False))
    return found


def kept_points(points: np.ndarray, cut_at: Sequence[Cut]) -> np.ndarray:
    """Return the points that were not abandoned, of those that have a ``time``."""
    every = [points[each.points] for each in parts(points["time"], cut_at) if not each.abandoned]
    return np.concatenate(every) if every else points[:0]
