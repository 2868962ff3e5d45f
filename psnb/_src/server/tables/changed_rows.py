"""ChangedRows: which rows of a table have changed since some moment. Pure.

Deltas of checkpoints and transfers to replicas ask for it, any number of them.

Each row has the number of the period in which it changed last, two bytes; the rows that change in
the present one have a bit each, which stay in the processor's caches. A question ends a period,
and is answered with a mark, which the next question passes. Nothing is kept for consumers: one that
could not use an answer asks with its old mark again, and several do not interfere. If the changes
since a mark cannot be known (rows were renumbered, it is another table), the answer is all rows.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.kernels import read_only
from psnb._src.server.tables.growing_array import GrowingArray


class Watcher(ABC):
    """Hears of it before rows of a table change.

    It may need memory for that. If there is none, the change is made, and `lapse` is called: a
    checkpoint or a replica can be made again, a closure's updates cannot.
    """

    @abstractmethod
    def changing(self, rows: np.ndarray | None) -> None:
        """Take note of rows (distinct) that are about to change; None for all of them.

        Of none, if only what is not by row does.
        """

    def changing_parts(self, rows: np.ndarray, width: int) -> None:
        """Note that some rows of a variable are about to change, and how many numbers of each."""
        self.changing(None)

    def changing_use(self) -> None:
        """Take note that the use of all rows is about to change, and nothing else."""
        self.changing(None)

    def removing(self, ids: np.ndarray) -> None:
        """Take note that ids are about to lose their rows, which are about to change, too."""
        self.changing(NO_ROWS)

    def shrinking(self, rows: np.ndarray) -> None:
        """Take note that the last rows, these, are about to be removed."""
        self.renumbering()

    def renumbering(self) -> None:
        """Take note that rows are about to be removed or renumbered."""
        self.lapse()

    @abstractmethod
    def lapse(self) -> None:
        """Take note that something changes which there was no memory to take note of."""


TICKS = 24 * 60
"""Minutes after which the changes of a table are forgotten, if they are not asked for."""

_PERIOD, _BITS = np.dtype(np.uint16), np.dtype(np.uint8)
_LAST = int(np.iinfo(_PERIOD).max)
NO_ROWS, NO_IDS = np.empty(0, np.int64), np.empty(0, np.uint64)

_FEW = 1 << 14
"""Removed ids that are known of a table of any size; of one with more rows, as many as these."""


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
    removed : numpy.ndarray
        Ids that have lost their rows, if ``rows`` are known, before these are as they are now: an
        id may have got another one. They may repeat.
    """

    mark: str
    rows: np.ndarray | None
    nothing: bool
    removed: np.ndarray = NO_IDS


class ChangedRows(Watcher):
    """Knows when the rows of a table changed."""

    _lost: int
    _periods: GrowingArray
    _bits: np.ndarray
    _gone: GrowingArray

    def __init__(self) -> None:
        self._ticks = 0
        self._begin()

    def changing(self, rows: np.ndarray | None) -> None:
        """Note rows that change in this period; an empty array is a change of something else."""
        self._anything = self._period
        if rows is None:
            self._all = self._period
        else:  # rows that were added in this period need no bit
            kernels.set_bits(self._bits, read_only(rows))

    def removing(self, ids: np.ndarray) -> None:
        """Note ids whose rows go, unless there are so many that all rows may as well be asked."""
        self._anything = self._period
        if self._lost == self._period:
            return
        known = len(self._gone.rows)
        if known + ids.size > max(_FEW, len(self._periods.rows)):
            self._lost = self._period
            self._gone = GrowingArray(1, NO_IDS.dtype)
            return
        self._gone.grow(known + ids.size)
        self._gone.rows[known:, 0] = ids

    def lapse(self) -> None:
        """Forget all: something was not noted, or no row can be told from another."""
        self._begin()

    def knows(self, mark: str) -> bool:
        """Return whether rows have the numbers that they had at a mark, and all was noted since."""
        return mark.rpartition("-")[0] == self._key

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
        mark = f"{self._key}-{self._period}"
        found, nothing, removed = None, False, NO_IDS
        if self.knows(since):
            period = int(since.rpartition("-")[2])
            nothing = self._anything <= period
            found = NO_ROWS if nothing else self._since(period)
            if found is not None and not nothing:
                gone = [ids for at, ids in self._earlier.items() if at > period]
                removed = np.concatenate([NO_IDS, *gone])
        if self._period == _LAST:
            self._begin()
        else:
            self._period += 1
        return Changes(mark, found, nothing, removed)

    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        gone = sum(ids.nbytes for ids in self._earlier.values())
        return self._periods.rows.nbytes + self._bits.nbytes + self._gone.rows.nbytes + gone

    def tick(self) -> bool:
        """Count a minute; return whether there was a question lately."""
        self._ticks += 1
        return self._ticks < TICKS

    def _begin(self) -> None:
        self._key = uuid.uuid4().hex
        self._period = 1
        self._all = self._anything = 0  # the last periods in which all and anything changed
        self._lost = 0  # the last period of which removed ids are not known
        self._gone = GrowingArray(1, NO_IDS.dtype)  # in this period
        self._earlier: dict[int, np.ndarray] = {}  # by period, those before
        self._periods, self._bits = GrowingArray(1, _PERIOD), np.zeros(0, _BITS)

    def _end_period(self, rows: int) -> None:
        """Move the bits to the periods, and know the rows that were added."""
        known = self._periods.rows[:, 0]
        if rows:  # else it is a variable: nothing has compiled this for it
            kernels.mark_rows(known, self._bits, self._period)
        if rows > known.size:
            self._anything = self._period
            self._periods.grow(rows)
            self._periods.rows[known.size :] = self._period
        else:
            self._periods.grow(rows)  # or fewer
        self._keep_gone(rows)
        self._bits = np.zeros(-(-rows // 8), _BITS)

    def _keep_gone(self, rows: int) -> None:
        """Keep what was removed in the period, and forget the oldest if it is too much."""
        if len(self._gone.rows):
            self._earlier[self._period] = self._gone.rows[:, 0].copy()
            self._gone.clear()
        count = sum(ids.size for ids in self._earlier.values())
        while count > max(_FEW, rows):
            oldest = min(self._earlier)
            self._lost = max(self._lost, oldest)
            count -= self._earlier.pop(oldest).size

    def _since(self, period: int) -> np.ndarray | None:
        if max(self._all, self._lost) > period:
            return None
        changed = self._periods.rows[:, 0] > period
        most = 2 * np.count_nonzero(changed) > changed.size
        return None if most else np.flatnonzero(changed)
