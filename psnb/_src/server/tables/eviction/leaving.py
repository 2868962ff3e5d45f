"""Leaving: of a table of which rows leave: when each was used, and which are to leave next. Pure.

A table with a bound has a queue of ids, chosen at some moment as those that shall leave first. What
is used after that stays. When too few are left in it for all writes that are under way, others are
chosen: one row in some, in one pass over how rows were used. So an insertion takes constant time,
with the table full. Only the primary of a shard chooses, and its replicas get the ids: a user's
function may give them others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from psnb._src.server import hashing
from psnb._src.server.hashing import MOST_ROWS
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import scratch
from psnb._src.server.tables.checks import RECENCY
from psnb._src.server.tables.eviction import replacing
from psnb._src.server.tables.eviction.policy import MOST_UPDATES, Eviction, RowUsage, blocks, lowest
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.server.tables.row_use import RowUse

_NO_IDS = np.empty(0, np.uint64)
_NUMBER = np.dtype(np.uint32)

_SHARE, _LEAST, _MOST = 16, 64, 1 << 20
"""One row in so many is chosen at a time; at least and at most so many, beside those that writes
under way may need."""

_AT_ONCE = 1 << 20
"""Rows whose time is over that leave in one minute, about: no server is held up for long."""


class Leaving:
    """Not thread-safe; belongs to a table.

    Parameters
    ----------
    eviction : Eviction
        When rows leave.

    Attributes
    ----------
    eviction : Eviction
        As given.
    bound : int
        How many rows there may be.
    names : tuple of str
        The arrays that are saved of it.
    queue : numpy.ndarray
        The ids that are to leave next, in their order; the first ``head`` have been passed.
    flagged : int
        How many of the others still are.
    minutes : int
        How many have been counted.
    evicted, expired, gone : int
        How many rows have left for others; because their time was over; and how many ids were
        pushed that had no row, with the table full.
    """

    def __init__(self, eviction: Eviction) -> None:
        self.eviction = eviction
        self.bound = MOST_ROWS if eviction.max_rows is None else eviction.max_rows
        self.names = eviction.columns
        self.minutes = self.evicted = self.expired = self.gone = self.pushed = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew, in new memory."""
        self._arrays = {name: GrowingArray(1, _NUMBER) for name in self.names}
        self.restart()

    def restart(self) -> None:
        """Begin anew; there are no rows."""
        self._first = 0  # the update that a stamp of 0 stands for
        self._undated: set[str] = set()  # arrays of which what was loaded has none
        self.choose_none()

    def choose_none(self) -> None:
        """Have none leave next; the flags are gone already."""
        self.queue, self.head, self.flagged = _NO_IDS, 0, 0

    @property
    def arrays(self) -> list[GrowingArray]:
        """Arrays with a row for each row of the table."""
        return [*self._arrays.values()]

    @property
    def stamps(self) -> np.ndarray:
        """When each row was used; with a flag if it is to leave next."""
        return self._arrays["last_update"].rows[:, 0]

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Return a copy of some rows of an array, as it is saved."""
        found = self._arrays[name].rows[rows, 0]
        if name == "last_update":
            return (found & replacing.MOST_STAMP) + np.int64(self._first)
        return found.astype(RECENCY[name])

    def load(self, rows: np.ndarray, before: int, segment: Mapping[str, np.ndarray]) -> None:
        """Take over when rows were used; those from ``before`` on are new."""
        old = rows[rows < before]
        self.flagged -= int(np.count_nonzero(self.stamps[old] & replacing.FLAG))
        for name, array in self._arrays.items():
            given: Any = segment.get(name)
            if given is None:
                self._undated.add(name)
                given = np.zeros(rows.size, int)
            elif name == "last_update":
                latest = int(given.max(initial=0))
                self._count_from(latest)
                given = np.clip(given, self._first, max(latest, self._first)) - self._first
            array.rows[rows, 0] = np.clip(given, 0, None if name != "last_minute" else 2**32 - 1)

    def dated(self, step: int, minutes: int) -> None:
        """Take what was not known of rows that were loaded as of now."""
        self.minutes = minutes
        undated, self._undated = self._undated, set()
        if "last_update" in undated:
            self.stamps[:] = (self.stamps & replacing.FLAG) | self.stamp(step)
        if "last_minute" in undated:
            self._arrays["last_minute"].rows[:] = minutes

    def stamp(self, step: int) -> np.uint32:
        """Return the stamp of rows that are used now."""
        self._count_from(step)
        return np.uint32(max(0, step - self._first))

    def _count_from(self, step: int) -> None:
        """Have a stamp for an update; rows that were not used for longer have all one age."""
        if step - self._first <= replacing.MOST_STAMP:
            return
        first = step - MOST_UPDATES
        by = np.uint32(min(first - self._first, replacing.MOST_STAMP))
        replacing.lower_stamps(self.stamps, by)
        self._first = first

    def touch(self, rows: np.ndarray, step: int) -> None:
        """Note that rows are used; -1 stands for none."""
        none = self.stamps[:0]
        uses, minutes = (
            self._arrays[name].rows[:, 0] if name in self._arrays else none
            for name in ("uses", "last_minute")
        )
        self.flagged -= replacing.touch(
            read_only(rows),
            *(self.stamps, self.stamp(step), uses, minutes, np.uint32(self.minutes)),
        )

    def begin(self, rows: np.ndarray) -> None:
        """Note that rows are new, or another id's."""
        for array in self._arrays.values():
            array.rows[rows] = 0

    def flags(self) -> None:
        """Count again which rows are to leave next, as some were removed."""
        self.flagged = int(np.count_nonzero(self.stamps & replacing.FLAG))

    def lowest(
        self, count: int, ids: np.ndarray, step: int, use: RowUse | None, name: str
    ) -> np.ndarray:
        """Return the ids of the rows that are to leave first, in their order.

        Parameters
        ----------
        count : int
            How many.
        ids : numpy.ndarray
            Of all rows.
        step : int
            How many updates there were.
        use : RowUse or None
            The shows and clicks of rows.
        name : str
            The table's, for messages.

        Raises
        ------
        ConfigurationError
            If a user's function fails.
        """
        order = scratch(ids.size, np.uint64)
        clock = max(0, step - self._first)
        accessor = None if use is None else use.accessor
        for rows in blocks(ids.size):
            stamps = self.stamps[rows] & np.uint32(replacing.MOST_STAMP)
            age = (clock - np.minimum(stamps, clock)).astype(_NUMBER)
            count_ = self._arrays["uses"].rows[rows, 0].copy() if self.eviction.counts else age[:0]
            shown = () if use is None else use.rows[rows].T.copy()
            usage = RowUsage(age, count_, *shown)
            order[rows] = self.eviction.order(usage, stamps, accessor, name)
        return lowest(order, ids, count)

    def most_chosen(self, needed: int) -> int:
        """Return how many ids are chosen when so many are needed."""
        return needed + min(max(self.bound // _SHARE, _LEAST), _MOST)

    def over(self, step: int, ids: np.ndarray) -> np.ndarray:
        """Return the rows whose time is over, ascending; of very many, a part.

        That follows from their ids and the minute, so that replicas let the same go.
        """
        found = []
        oldest = step - (MOST_UPDATES if self.eviction.updates is None else self.eviction.updates)
        for rows in blocks(len(self.stamps)):
            stamps = self.stamps[rows] & np.uint32(replacing.MOST_STAMP)
            over = np.zeros(stamps.size, np.bool_)
            if self.eviction.updates is not None and oldest >= self._first:
                over |= stamps <= oldest - self._first
            if self.eviction.minutes is not None:
                last = self._arrays["last_minute"].rows[rows, 0].astype(np.int64)
                over |= self.minutes - last > self.eviction.minutes
            found.append(np.flatnonzero(over) + rows.start)
        gone = np.concatenate([np.empty(0, np.int64), *found])
        parts = 1 + gone.size // _AT_ONCE
        if parts > 1:
            hashes = np.empty(gone.size, np.uint64)
            hashing.hash_ids(read_only(ids[gone]), hashes)
            gone = gone[hashes % np.uint64(parts) == np.uint64(self.minutes % parts)]
        return gone
