"""Blend: what a step does to values that it moves beside those that learn. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Blend(NamedTuple):
    """Makes ``(1 - share) * value + term`` of each element of a variable.

    It stands where a gradient would in pushes, needs no optimizer, and in mode `Sync` the blends of
    a round are averaged as gradients are. A change that was computed from a value is right for that
    value alone; what is blended in is right for whatever value there is when it comes.

    Attributes
    ----------
    shares, terms : numpy.ndarray
        Of the variable's shape and dtype. A share of 0 adds the term (a count), one of 1 sets it,
        one between moves the value so far towards ``term / share`` (a moving average).
    """

    shares: np.ndarray
    terms: np.ndarray
