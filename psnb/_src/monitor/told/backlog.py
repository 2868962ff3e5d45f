"""What a view that comes late has to hear: the newest full update and all that followed it.

The hub on the Jupyter server and the route on a Dask scheduler keep one per coordinator; neither
looks into updates. They are kept as JSON text, which is small and what is sent on. Pure, and used
from one thread.
"""

from __future__ import annotations

from typing import TypedDict

import msgspec

from psnb._src.monitor.told.protocol import Update


class Extract(TypedDict):
    """What the route of a scheduler tells the hub of one coordinator."""

    coordinator: str
    gone: str  # why nothing more comes from it; empty while it lives
    updates: list[Update]


class Extracts(TypedDict):
    """The answer of a scheduler's route."""

    version: int
    coordinators: list[Extract]


MOST_BYTES = 16 << 20
"""Bytes of text that are kept beside the full update, which may itself have come in portions."""

MOST_UPDATES = 1200
"""Updates that are kept beside the full one: five minutes at four a second."""


class Backlog:
    """The last full update, and those since, without a gap.

    Parameters
    ----------
    most_bytes : int
        Bytes of updates after the full one at which another full one is wanted. The full one does
        not count: whoever takes it in bounds it.
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

    @property
    def size(self) -> int:
        """Bytes of text that are kept."""
        return self._bytes + (len(self._kept[0][1]) if self._kept else 0)

    def add(self, update: Update) -> bool:
        """Take in an update; one that does not follow the last one, or is too many, is left out.

        Returns
        -------
        bool
            Whether a full one is wanted: there is a gap, or a bound has been reached. Until it
            comes, those that wait here are still a beginning without a gap.
        """
        text = msgspec.json.encode(update)  # a large one holds up whoever serves others meanwhile
        if update["full"]:
            self._kept, self._bytes = [(update["sequence"], text)], 0
            return False
        if not self._kept or update["sequence"] != self._kept[-1][0] + 1 or self._at_bound():
            return True
        self._kept.append((update["sequence"], text))
        self._bytes += len(text)
        return self._at_bound()

    def since(self, sequence: int | None = None) -> list[tuple[int, bytes]]:
        """Return what follows an update, as (sequence, JSON), oldest first.

        Parameters
        ----------
        sequence : int, optional
            Number of the last update that the reader has; without, or if what came directly after
            it is no longer kept, all is returned, and begins with a full one.
        """
        if sequence is None or not self._kept:
            return list(self._kept)
        at = sequence - self._kept[0][0] + 1  # they are numbered without a gap
        return self._kept[at:] if 0 < at <= len(self._kept) else list(self._kept)

    def updates(self) -> list[Update]:
        """Return what a newcomer needs: a full update and all since; nothing before the first."""
        return [msgspec.json.decode(text) for _, text in self._kept]

    def _at_bound(self) -> bool:
        return self._bytes >= self._most_bytes or len(self._kept) > self._most_updates
