"""ChangedRows: what of a table has changed since some moment, for any number of consumers. Pure.

Each row has the number of the period in which it changed last, two bytes; the rows that change in
the present one have a bit each, which stay in the processor's caches. Whoever asks ends a period,
and gets a mark of that moment to ask with the next time. Nothing is kept of who asks: a consumer
that could not use an answer asks with its old mark again, and several never meet. What cannot be
told since a mark (rows were renumbered, the table is another one) is told to be all.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import numpy as np

from psnb._src.first_rows import read_only
from psnb._src.server import kernels
from psnb._src.server.growing import GrowingArray

TICKS = 24 * 60
"""Minutes after which the changes of a table are forgotten, if nobody asks for them."""

_PERIOD, _BITS = np.dtype(np.uint16), np.dtype(np.uint8)
_LAST = int(np.iinfo(_PERIOD).max)


class Changes(NamedTuple):
    """What has changed.

    Attributes
    ----------
    mark : str
        Of this moment, to ask with the next time.
    rows : numpy.ndarray or None
        The numbers of the rows, ascending; None if all have changed, or most, or it is not known.
    nothing : bool
        Whether what is not by row is as it was, too.
    """

    mark: str
    rows: np.ndarray | None
    nothing: bool


class ChangedRows:
    """A watcher of a table, which knows when its rows changed."""

    def __init__(self) -> None:
        self._ticks = 0
        self._begin()

    def changing(self, rows: np.ndarray | None) -> None:
        """Note rows that change in this period; an empty array is a change beside the rows."""
        self._anything = self._period
        if rows is None:
            self._all = self._period
        else:  # rows that were added in this period need no bit
            kernels.set_bits(self._bits, read_only(rows))

    def changing_parts(self, rows: np.ndarray, width: int) -> None:
        """Note that a variable changes."""
        self.changing(None)

    def changing_use(self) -> None:
        """Note that all rows change."""
        self.changing(None)

    def renumbering(self) -> None:
        """Forget all: no row can be told from another."""
        self._begin()

    def lapse(self) -> None:
        """Forget all: something was not noted."""
        self._begin()

    def take(self, since: str, rows: int) -> Changes:
        """Return what has changed since a mark, and a new mark.

        Parameters
        ----------
        since : str
            A mark, or something that is none.
        rows : int
            How many rows the table has now, that change one by one.
        """
        self._ticks = 0
        self._end_period(rows)
        key, _, period = since.rpartition("-")
        mark = f"{self._key}-{self._period}"
        found, nothing = None, False
        if key == self._key:
            found, nothing = self._since(int(period)), self._anything <= int(period)
        if self._period == _LAST:
            self._begin()
        else:
            self._period += 1
        return Changes(mark, found, nothing)

    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return self._periods.rows.nbytes + self._bits.nbytes

    def tick(self) -> bool:
        """Count a minute; return whether somebody has asked lately."""
        self._ticks += 1
        return self._ticks < TICKS

    def _begin(self) -> None:
        self._key = uuid.uuid4().hex
        self._period = 1
        self._all = self._anything = 0  # the last periods in which all and anything changed
        self._periods, self._bits = GrowingArray(1, _PERIOD), np.zeros(0, _BITS)

    def _end_period(self, rows: int) -> None:
        """Move the bits to the periods, and know the rows that were added."""
        known = self._periods.rows[:, 0]
        found = _rows_of(self._bits)
        known[found[found < known.size]] = self._period
        if rows > known.size:
            self._anything = self._period
            self._periods.grow(rows)
            self._periods.rows[known.size :] = self._period
        self._bits = np.zeros(-(-rows // 8), _BITS)

    def _since(self, period: int) -> np.ndarray | None:
        if self._all > period:
            return None
        periods = self._periods.rows[:, 0]
        found = np.flatnonzero(periods > period)
        return None if 2 * found.size > periods.size else found


def _rows_of(bits: np.ndarray) -> np.ndarray:
    """Return the rows whose bits are set."""
    some = np.flatnonzero(bits)  # mostly few
    whole = np.unpackbits(bits[some], bitorder="little").reshape(-1, 8).view(np.bool_)
    rows: np.ndarray = (8 * some[:, None] + np.arange(8))[whole]
    return rows
