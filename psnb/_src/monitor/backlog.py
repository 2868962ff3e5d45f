"""Backlog: the updates for a late view: the newest full one and all after it.

The hub on the Jupyter server and the route on a Dask scheduler keep one for each coordinator;
neither looks into updates. Updates are kept as JSON text, which is small and is sent on
unchanged. Pure, and used from one thread.
"""

from __future__ import annotations

from typing import TypedDict

import msgspec

from psnb._src.monitor.protocol import Update


class Extract(TypedDict):
    """A scheduler's answer to the hub, for one coordinator."""

    coordinator: str
    gone: str  # why it is gone; empty while it lives
    updates: list[Update]


class Extracts(TypedDict):
    """The answer of a scheduler's route."""

    version: int
    coordinators: list[Extract]


MOST_BYTES = 16 << 20
"""Bytes of text that are kept apart from the full update, which may itself come in chunks."""

MOST_UPDATES = 1200
"""Updates that are kept after the full one: five minutes at four a second."""


class Backlog:
    """The last full update, and those after it, without a gap.

    Parameters
    ----------
    most_bytes : int
        Bytes of updates after the full one at which another full one is needed. The full one does
        not count: the callers limit its size.
    most_updates : int
        The same for their number.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_updates: int = MOST_UPDATES) -> None:
        self._most_bytes = most_bytes
        self._most_updates = most_updates
        self._kept: list[tuple[int, bytes]] = []  # (sequence, text), the full one first
        self._bytes = 0  # of those after the full one

    @property
    def last(self) -> int | None:
        """The sequence number of the newest update that is kept; None if there is none."""
        return self._kept[-1][0] if self._kept else None

    def add(self, update: Update) -> bool:
        """Add an update; it is dropped if there is a gap before it, or a limit is reached.

        Returns
        -------
        bool
            Whether a full one is needed: there is a gap, or a limit is reached. Until it comes, the
            kept updates are still without a gap.
        """
        text = msgspec.json.encode(update)  # a large one blocks the event loop
        if update["full"]:
            self._kept, self._bytes = [(update["sequence"], text)], 0
            return False
        if not self._kept or update["sequence"] != self._kept[-1][0] + 1 or self._at_bound():
            return True
        self._kept.append((update["sequence"], text))
        self._bytes += len(text)
        return self._at_bound()

    def since(self, sequence: int | None = None) -> list[tuple[int, bytes]]:
        """Return the updates after a given one, as (sequence, JSON), oldest first.

        Parameters
        ----------
        sequence : int, optional
            Number of the last update that the reader has. If it is left out, or if the update after
            it is no longer kept, all are returned, beginning with a full one.
        """
        if sequence is None or not self._kept:
            return list(self._kept)
        at = sequence - self._kept[0][0] + 1  # they are numbered without a gap
        return self._kept[at:] if 0 < at <= len(self._kept) else list(self._kept)

    def _at_bound(self) -> bool:
        return self._bytes >= self._most_bytes or len(self._kept) > self._most_updates
