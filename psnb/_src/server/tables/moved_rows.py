"""MovedRows: how far some rows of a table have moved since they were first pushed. Pure.

A model whose rows stay where they began has learned nothing by them, which its loss may not show.
Of the first pushes that a table gets, a few rows each are kept as they were before; rows that are
often pushed are more often among them. This takes little memory and, once there are enough, no
time. It begins with the table, and never again: rows that come from elsewhere, or that have learned
for long, may rightly move little.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import numpy as np

from psnb._src.transport.half_width import widened

_MOST = 64
"""Rows that are kept, and pushes of which some are."""

_OF_A_PUSH = 4


class MovedRows:
    """Some rows as they were before their first pushes."""

    def __init__(self) -> None:
        self._before: dict[int, np.ndarray] = {}  # by the number of the row
        self._left = _MOST  # pushes of which rows are kept

    @property
    def watches(self) -> bool:
        """Whether it wants to hear of more pushes."""
        return self._left > 0

    def pushing(self, values: np.ndarray, rows: np.ndarray) -> None:
        """Keep some rows that a push is about to change.

        Parameters
        ----------
        values : numpy.ndarray
            All rows, ``(n, dim)``, as they are stored.
        rows : numpy.ndarray
            The rows of the push, int64; below 0 where an id has none.
        """
        self._left -= 1
        some = rows[:: max(1, rows.size // _OF_A_PUSH)][:_OF_A_PUSH].tolist()
        try:
            for row in some:
                if row >= 0 and row not in self._before:
                    self._before[row] = widened(values[row]).copy()
        except MemoryError:  # a push must not fail for it
            self.forget()
        if len(self._before) >= _MOST:
            self._left = 0

    def forget(self) -> None:
        """Keep nothing from now on: rows get other numbers, or come from elsewhere."""
        self._before, self._left = {}, 0

    def moves(self, values: np.ndarray) -> np.ndarray:
        """Return how far each row has moved, as a part of its length before; float64.

        None before there are enough rows. Infinite for rows that were zeros, or are not finite.
        """
        if self.watches or not self._before:
            return np.empty(0)
        before = np.stack([*self._before.values()]).astype(np.float64)
        with np.errstate(all="ignore"):
            moved = np.linalg.norm(widened(values[[*self._before]]) - before, axis=1)
            share = moved / np.linalg.norm(before, axis=1)
        share[moved == 0] = 0.0
        return np.nan_to_num(share, nan=np.inf, posinf=np.inf)
