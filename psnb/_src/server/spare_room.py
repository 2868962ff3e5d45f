"""SpareRoom: memory of a server that is there already, for copies that requests wait for. Pure.

The system provides a page of memory when it is first written, which takes five times as long as
to copy a page into it. So a thread, ``psnb-room``, writes to all pages ahead, while requests go on;
it ends when there is as much room as is wanted. A piece that somebody has taken is theirs; it goes
back to the system with its last reference.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from psnb._src.server.memory import pages

PIECE = 1 << 22
"""Bytes of a piece."""

_SMALL = 1 << 20
"""Bytes of an array's rest for which no piece is wanted."""

_THREADS, _PIECES_EACH = 4, 4
"""How many threads copy, at most, and how many pieces each has to copy, at least."""

TICKS = 2
"""Minutes after which what nobody took is given back."""


def count_pieces(nbytes: int) -> int:
    """Return how many pieces the copy of an array takes."""
    return nbytes // PIECE + (nbytes % PIECE > _SMALL)


class SpareRoom:
    """Pieces of memory that are there already.

    Used by the server's one thread, but for what its own thread calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next three
        self._missing = 0  # pieces that are still to be made
        self._fills = False  # the thread lives
        self._most: int | None = None  # pieces that there is memory for, if that is known
        self._pieces: deque[np.ndarray] = deque()
        self._ticks = 0

    def want(self, pieces: int) -> bool:
        """Have so many pieces made; return whether they are there. Call it again to see.

        If there is no memory for all of them, those that there are do.
        """
        self._ticks = 0
        with self._lock:
            if self._most is not None:
                pieces = min(pieces, self._most)
            self._missing = max(0, pieces - len(self._pieces))
            if self._missing and not self._fills:
                self._fills = True
                threading.Thread(target=self._fill, name="psnb-room", daemon=True).start()
            return not self._missing

    def copies(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return copies of arrays of one axis, of a `PIECE` at most each; several at a time."""
        threads = min(_THREADS, os.cpu_count() or 1, len(arrays) // _PIECES_EACH)
        if threads < 2:
            return [self._copy(each) for each in arrays]
        with ThreadPoolExecutor(threads, "psnb-copying") as pool:
            return list(pool.map(self._copy, arrays))

    def _copy(self, array: np.ndarray) -> np.ndarray:
        if array.nbytes <= _SMALL:
            return array.copy()
        try:
            piece = self._pieces.popleft()
        except IndexError:
            piece = _piece()
        found = piece[: array.nbytes].view(array.dtype)
        np.copyto(found, array)
        return found

    def clear(self) -> None:
        """Give back what nobody took."""
        with self._lock:
            self._missing, self._most = 0, None
            self._pieces.clear()

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
                piece = _piece()
            except MemoryError:
                with self._lock:
                    self._missing, self._most, self._fills = 0, len(self._pieces), False
                return
            piece.fill(0)  # without the GIL
            with self._lock:
                if self._missing:  # it may have been cleared
                    self._missing -= 1
                    self._pieces.append(piece)


def _piece() -> np.ndarray:
    """Return new memory.

    In small pages: the system may look for a huge one for a tenth of a second.
    """
    return np.frombuffer(pages(PIECE), np.uint8)
