"""Activities: what the threads of a worker do at the moment, for people who wait for it.

Each thread writes its own, the event loop reads them: operations on a dict and on a list are
atomic. Compiling is seen in whatever thread it happens, as closures wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from numba.core import event

_doing: dict[int, tuple[str, float]] = {}  # by thread: what, and since when


_compiling: list[str] = []  # functions, the outermost first


class Activity:
    """Notes what a thread does in a block; since when, is that of its outermost block.

    A class, as each closure is such a block: a generator would take three times as long.
    """

    __slots__ = ("_before", "_thread", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._before = _doing.get(self._thread)
        since = self._before[1] if self._before else time.monotonic()
        _doing[self._thread] = self._what, since

    def __exit__(self, *exc_info: object) -> None:
        if self._before:
            _doing[self._thread] = self._before
        else:
            del _doing[self._thread]


def longest(threads: Iterable[int | None]) -> tuple[str, float]:
    """Return what is being done for the longest time by one of these threads, and for how long.

    Nothing, and zero seconds, if none of them does anything.
    """
    busy = [found for each in threads if each is not None and (found := _doing.get(each))]
    if not busy:
        return "", 0.0
    what, since = min(busy, key=lambda each: each[1])
    compiling = _compiling[:1]  # another thread may end it in this moment
    return f"compiling {compiling[0]}" if compiling else what, time.monotonic() - since


class _Listener(event.Listener):
    """Called for what numba compiles, and not for what it finds compiled already."""

    def on_start(self, event: Any) -> None:
        _compiling.append(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        _compiling.pop()


event.register("numba:compile", _Listener())
