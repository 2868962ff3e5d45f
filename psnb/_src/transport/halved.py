"""Halved: an array of float32 that travels with 16 bits each. Pure.

All of an array is multiplied by one power of two, so that its largest number is just below 2**15,
and rounded to float16. So numbers of any size travel, gradients of a mean over many examples too:
each arrives with a relative error of at most 2**-11, or with an absolute error of at most 2**-39 of
the largest one. What is rounded once is not changed by the next rounding, as when a server passes
a push on to a copy. (Torchrec and Horovod send float16 without a common power; there small
gradients become zero.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from psnb._src.transport.message import Message

_TOP, _MOST = 15, 127
"""Numbers are below two to the power of the first (float16 goes up to 65504), and multiplied by two
to the power of the second at most, which float32 can hold."""


class Halved(Message, frozen=True):
    """An array on its way.

    Attributes
    ----------
    halves : float16 numpy.ndarray
        What travels.
    exponent : int
        They are two to the power of this times too large.
    """

    halves: np.ndarray
    exponent: int

    def wide(self) -> np.ndarray:
        """Return the array again."""
        return np.multiply(self.halves, np.float32(2.0**-self.exponent), dtype=np.float32)


def halved(array: np.ndarray) -> Halved:
    """Return an array of float32 as it travels; NaN and infinities travel as they are."""
    largest = max(array.max(initial=0), -array.min(initial=0))
    if not np.isfinite(largest):
        largest = np.abs(array[np.isfinite(array)]).max(initial=0)
    exponent = min(_MOST, _TOP - int(np.frexp(largest)[1])) if largest else 0
    return Halved((array * np.float32(2.0**exponent)).astype(np.float16), exponent)


def widened(found: Any) -> Any:
    """Return an array again that has been halved, and all else as it is."""
    return found.wide() if isinstance(found, Halved) else found
