"""Where tables write their results: if possible, into memory that is sent without a copy. Pure.

The caller that runs an operation says where its result goes (`going_to`); a table asks `empty` for
a new array. The setting is per thread and per asyncio task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

Lend = Callable[[tuple[int, ...], np.dtype], np.ndarray | None]
"""Returns an array of a shape and dtype, or None if there is none to lend."""

_lend: ContextVar[Lend | None] = ContextVar("psnb answers", default=None)


@contextmanager
def going_to(lend: Lend) -> Iterator[None]:
    """Have answers written to what ``lend`` returns."""
    token = _lend.set(lend)
    try:
        yield
    finally:
        _lend.reset(token)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array for an answer, not filled yet."""
    lend = _lend.get()
    lent = None if lend is None else lend(shape, dtype)
    return np.empty(shape, dtype) if lent is None else lent
