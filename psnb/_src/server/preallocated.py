"""PreallocatedPages: memory of a server that is there already, for copies that requests wait for.

The system provides a page of memory when it is first written, which takes five times as long as
to copy a page into it. So one of the server's `StandbyThreads` writes to all pages ahead, while
requests go on, until there is enough room. A chunk that was taken belongs to its taker; it goes
back to the system with its last reference.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from psnb._src.utils.standby import StandbyThreads

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

from psnb._src.server.memory import in_small_pages

CHUNK = 1 << 22
"""Bytes of a chunk."""

_SMALL = 1 << 20
"""Bytes of an array's rest for which no chunk is wanted."""

_SHARED = 8
"""How many chunks several threads copy together, at least."""

TICKS = 2
"""Minutes after which unused memory is given back."""


def count_chunks(nbytes: int) -> int:
    """Return how many chunks the copy of an array takes."""
    return nbytes // CHUNK + (nbytes % CHUNK > _SMALL)


class PreallocatedPages:
    """Pieces of memory that are there already.

    Used by the server's one thread, but for what ``threads`` call.

    Parameters
    ----------
    threads : StandbyThreads
        Make them, and help to copy.
    """

    def __init__(self, threads: StandbyThreads) -> None:
        self._threads = threads
        self._lock = threading.Lock()  # guards the next three
        self._missing = 0  # chunks that are still to be made
        self._fills = False  # one of the threads makes them, or will
        self._most: int | None = None  # chunks that there is memory for, if that is known
        self._chunks: deque[np.ndarray] = deque()
        self._ticks = 0

    def want(self, chunks: int) -> bool:
        """Have ``chunks`` chunks made; return whether they are there. Call it again to see.

        If there is no memory for all of them, fewer do.
        """
        self._ticks = 0
        with self._lock:
            if self._most is not None:
                chunks = min(chunks, self._most)
            self._missing = max(0, chunks - len(self._chunks))
            if self._missing and not self._fills:
                self._fills = True
                self._threads.submit(self._fill)
            return not self._missing

    def copies(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return copies of arrays of one axis, of a `CHUNK` at most each; several at a time."""
        if len(arrays) < _SHARED or os.cpu_count() == 1:
            return [self._copy(each) for each in arrays]
        return self._threads.share(self._copy, arrays)

    def _copy(self, array: np.ndarray) -> np.ndarray:
        if array.nbytes <= _SMALL:
            return array.copy()
        try:
            chunk = self._chunks.popleft()
        except IndexError:
            chunk = _chunk()
        found = chunk[: array.nbytes].view(array.dtype)
        np.copyto(found, array)
        return found

    def clear(self) -> None:
        """Give back what was not taken."""
        with self._lock:
            self._missing, self._most = 0, None
            self._chunks.clear()

    def tick(self) -> None:
        """Count a minute."""
        self._ticks += 1
        if self._ticks >= TICKS:
            self.clear()

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not self._missing:
                    self._fills = False
                    return
            try:
                chunk = _chunk()
            except MemoryError:
                with self._lock:
                    self._missing, self._most, self._fills = 0, len(self._chunks), False
                return
            chunk.fill(0)  # without the GIL
            with self._lock:
                if self._missing:  # it may have been cleared
                    self._missing -= 1
                    self._chunks.append(chunk)


def _chunk() -> np.ndarray:
    return in_small_pages((CHUNK,), np.uint8)
