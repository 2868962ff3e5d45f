"""Traffic: counts of a server's operations. Pure; the server's one thread is its only user."""

from __future__ import annotations

from typing import Any

from psnb._src.server.operations import ApplyCommit, CommitPart, PreparePart
from psnb._src.server.tables.operations import OnTable, Preview, ShardOperation, TableRead

_PULLS = (TableRead, Preview)


class Traffic:
    """Counts reads and writes of parameters since the server was started.

    Attributes
    ----------
    pulls : int
        Reads of variables, or of rows.
    pushes : int
        Writes.
    updates : int
        Updates of closures whose staleness is known.
    staleness : int
        The sum of their staleness.
    """

    __slots__ = ("pulls", "pushes", "staleness", "updates")

    def __init__(self) -> None:
        self.pulls = self.pushes = self.updates = self.staleness = 0

    def count(self, operation: ShardOperation, result: Any) -> None:
        match operation:
            case OnTable(_, inner):
                self.pulls += isinstance(inner, _PULLS)
            case PreparePart(_, part):
                self.pushes += len(part.writes)
            case CommitPart(_, part):
                self.pushes += len(part.writes)
                self._count_update(result)
            case ApplyCommit():
                self._count_update(result)

    def _count_update(self, staleness: int | None) -> None:
        if staleness is not None:
            self.updates += 1
            self.staleness += staleness
