"""OpenSnapshots: the snapshots of a server's tables that are being read, by name. Pure.

A reader that died never ends its snapshot: one that was not read for `TICKS` minutes ends. The
server's one thread is the only user.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from psnb._src.server.changed_rows import Changes
from psnb._src.server.operations import SnapshotHeader
from psnb._src.server.snapshot import Snapshot, pieces_wanted, snapshot
from psnb._src.server.spare_room import SpareRoom
from psnb._src.server.table import Table
from psnb._src.server.table_operations import Segment

_ALL = Changes("", None, nothing=False)

TICKS = 2
"""Minutes after which a snapshot that nobody reads ends."""


class OpenSnapshots:
    """The snapshots of a server."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        # Each with the minutes since it was last used.
        self._open: dict[str, tuple[Snapshot, int]] = {}
        self._room = SpareRoom()

    def prepare(self, tables: Iterable[Table]) -> bool:
        """Have memory made ready for snapshots of all these; return whether it is there."""
        return self._room.want(sum(map(pieces_wanted, tables)))

    def rest(self) -> None:
        """Give back what was made ready and not used."""
        self._room.clear()

    def begin(self, key: str, table: Table, since: str | None) -> SnapshotHeader:
        """Take a snapshot of a table as it is now; see `TakeSnapshot`.

        Its name tells the server by this key.
        """
        changes = _ALL if since is None else table.changed_since(since)
        if changes.nothing:
            return SnapshotHeader("", 0, 0, {}, {}, changes.mark, whole=False)
        name, taken = f"{key}/{next(self._numbers)}", snapshot(table, changes.rows, self._room)
        self._open[name] = taken, 0
        return taken.header(name, changes.mark, whole=changes.rows is None)

    def read(self, name: str, start: int, stop: int) -> Segment | None:
        """Return some rows; None if the snapshot does not exist any more."""
        if name not in self._open:
            return None
        taken, _ = self._open[name]
        self._open[name] = taken, 0
        return taken.read(start, stop)

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all of these exist."""
        return self._open.keys() >= {*names}

    def taken(self, name: str) -> Snapshot:
        """Return a snapshot, which is the caller's to close now."""
        return self._open.pop(name)[0]

    def release(self, name: str) -> None:
        """End a snapshot, if it is there."""
        if name in self._open:
            self.taken(name).close()

    def tick(self) -> None:
        """Count a minute."""
        self._room.tick()
        for name, (taken, ticks) in list(self._open.items()):
            self._open[name] = taken, ticks + 1
            if ticks + 1 >= TICKS:
                self.release(name)
