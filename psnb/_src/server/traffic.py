"""Traffic: counts of a server's operations. Pure; the server's one thread is its only user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PULLS = frozenset({"read", "gather", "fetch", "lookup", "preview"})
_COMMITS = frozenset({"apply", "commit", "prepare"})


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

    def count(self, table: str, operation: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Count one operation on a shard."""
        if table:
            self.pulls += operation in _PULLS
        elif operation in _COMMITS:
            part = arguments.get("part")
            self.pushes += 0 if part is None else len(part.writes)
            if operation != "prepare" and result is not None:
                self.updates += 1
                self.staleness += result
