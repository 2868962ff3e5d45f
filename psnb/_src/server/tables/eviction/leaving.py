"""Leaving: of a table of which rows leave: when each was used, and which are to leave next. Pure.

A table with a bound has a queue of ids, chosen at some moment as those that shall leave first. What
is used after that stays. When too few are left in it for all writes that are under way, others are
chosen: the lowest sixteenth of all rows, in one pass over how they were used.

No choice takes long. A sample of the rows says how they must have been used to be among the lowest.
Of a table of more than a million rows, the pass ends when there are some ten thousand such, and the
next one goes on from there. So an insertion takes constant time, with the table full.

Only the primary of a shard chooses, and its replicas get the ids: a user's function may give them
others, and their passes are elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from psnb._src.server import hashing
from psnb._src.server.hashing import MOST_ROWS
from psnb._src.server.kernels import read_only
from psnb._src.server.tables.checks import RECENCY
from psnb._src.server.tables.eviction import replacing
from psnb._src.server.tables.eviction.policy import (
    BLOCK,
    LRU,
    MOST_UPDATES,
    Eviction,
    RowUsage,
    Score,
    blocks,
    bound_of_lowest,
    in_order,
)
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.server.tables.row_use import RowUse

_NO_IDS = np.empty(0, np.uint64)
_HIGHEST = np.uint64(2**64 - 1)
_NUMBER = np.dtype(np.uint32)

_SHARE, _LEAST, _MOST = 16, 64, 1 << 16
"""The lowest sixteenth of the rows may leave; 64 to 65,536 are chosen at a time, beside those that
writes under way may need."""

_SAMPLE = 1 << 16
"""Rows that are looked at to know which are the lowest; of fewer, all are."""

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
    rows : numpy.ndarray
        The row that each of them had when it was chosen, int64; -1 if none.
    flagged : int
        How many of the others still are.
    minutes : int
        How many have been counted.
    undated : set of str
        The arrays of which what was loaded has none.
    evicted, expired, gone : int
        How many rows have left for others; because their time was over; and how many ids were
        pushed that had no row, with the table full.
    """

    def __init__(self, eviction: Eviction) -> None:
        self.eviction = eviction
        self.bound = MOST_ROWS if eviction.max_rows is None else eviction.max_rows
        self.names = eviction.columns
        self.evicted = self.expired = self.gone = self.pushed = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew, in new memory."""
        self._arrays = {name: GrowingArray(1, _NUMBER) for name in self.names}
        self.restart()

    def restart(self) -> None:
        """Begin anew; there are no rows."""
        self.minutes = 0
        self._first = 0  # the update that a stamp of 0 stands for
        self._next = 0  # the row at which the next choice begins
        self.undated: set[str] = set()
        self.choose_none()

    def choose_none(self) -> None:
        """Have none leave next; the flags are gone already."""
        self.queue, self.rows, self.head, self.flagged = _NO_IDS, _NO_IDS.view(np.int64), 0, 0

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
                self.undated.add(name)
                given = np.zeros(rows.size, int)
            elif name == "last_update":
                latest = int(given.max(initial=0))
                self._count_from(latest)
                given = np.clip(given, self._first, max(latest, self._first)) - self._first
            array.rows[rows, 0] = np.clip(given, 0, None if name != "last_minute" else 2**32 - 1)

    def dated(self, step: int, minutes: int) -> None:
        """Take what was not known of rows that were loaded as of now."""
        self.minutes = minutes
        undated, self.undated = self.undated, set()
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
            array.rows[:, 0][rows] = 0

    def lowest(
        self,
        needed: int,
        ids: np.ndarray,
        step: int,
        use: RowUse | None,
        name: str,
        evict: str | Score | None = None,
        *,
        whole: bool = False,
    ) -> np.ndarray:
        """Return the ids of rows that are to leave first, in their order.

        Parameters
        ----------
        needed : int
            How many at least, of at least as many rows.
        ids : numpy.ndarray
            Of all rows.
        step : int
            How many updates there were.
        use : RowUse or None
            The shows and clicks of rows.
        name : str
            The table's, for messages.
        evict : str or callable, optional
            Which leave, if it is not the table's rule.
        whole : bool
            Whether none of the rows that stay may be lower, of however many.

        Raises
        ------
        ConfigurationError
            If a user's function fails.
        """
        of = self.eviction if evict is None else replace(self.eviction, evict=evict)
        more = max(self.bound // _SHARE, _LEAST)
        lowest, wanted = needed + more, ids.size if whole else needed + min(more, _MOST)
        sample = slice(None, None, 1 + (ids.size - 1) // _SAMPLE)
        sampled = self._order(of, sample, step, use, name)
        out = np.empty(BLOCK, np.int64)
        while True:
            share = min(-(-lowest // sample.step), sampled.size)
            number, alike = bound_of_lowest(sampled, share)
            alike = ids.size if share == sampled.size else alike * sample.step
            number = _HIGHEST if share == sampled.size else number
            found, orders, count = [out[:0]], [sampled[:0]], 0
            for rows in blocks(ids.size, min(self._next, ids.size - 1)):
                order = self._order(of, rows, step, use, name)
                size, alike = replacing.find_below(order, number, alike, rows.start, out)
                found.append(out[:size].copy())
                orders.append(order[found[-1] - rows.start])
                count += size
                if count >= wanted:
                    break
            if count >= needed:
                all_found = np.concatenate(found)
                self._next = int(all_found[-1] + 1) % ids.size
                return in_order(np.concatenate(orders), ids[all_found])
            lowest *= 2  # the sample was not like the rest

    def _order(
        self, of: Eviction, rows: slice, step: int, use: RowUse | None, name: str
    ) -> np.ndarray:
        """Return an unsigned number for each of some rows: those with the lowest leave first."""
        stamps = self.stamps[rows] & np.uint32(replacing.MOST_STAMP)
        if of.evict == LRU:  # that is all
            return of.order(RowUsage(stamps, stamps[:0]), stamps, None, name)
        clock = max(0, step - self._first)
        age = (clock - np.minimum(stamps, clock)).astype(_NUMBER)
        uses = self._arrays["uses"].rows[rows, 0].copy() if of.counts else age[:0]
        shown = () if use is None else use.rows[rows].T.copy()
        accessor = None if use is None else use.accessor
        return of.order(RowUsage(age, uses, *shown), stamps, accessor, name)

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
