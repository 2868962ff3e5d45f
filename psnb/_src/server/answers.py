"""Where tables write their results: if possible, into memory that is sent without a copy. Pure.

The caller that runs an operation says where its result goes (`lending_answers`); a table asks `answer_array` for
a new array. The setting is per thread and per asyncio task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType

import numpy as np

Lend = Callable[[tuple[int, ...], np.dtype], np.ndarray | None]
"""Returns an array of a shape and dtype, or None if there is none to lend."""

_lend: ContextVar[Lend | None] = ContextVar("psnb answers", default=None)


class lending_answers:  # noqa: N801  # a context manager is named for what it reads as
    """Have answers written to what ``lend`` returns.

    A class, because a generator takes two microseconds for each request.
    """

    __slots__ = ("_lend", "_token")

    def __init__(self, lend: Lend) -> None:
        self._lend = lend

    def __enter__(self) -> None:
        self._token = _lend.set(self._lend)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _lend.reset(self._token)


def answer_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array for an answer, not filled yet."""
    lend = _lend.get()
    lent = None if lend is None else lend(shape, dtype)
    return np.empty(shape, dtype) if lent is None else lent
