"""NearlyFull: when a server has so much of its memory that people should hear of it. Pure."""

from __future__ import annotations

from psnb._src.placement.layout import ServerAddress
from psnb._src.utils.process_memory.limits import MemoryUse

NEARLY, AGAIN = 0.8, 0.75
"""Shares of what it may have: from the first on it is said, once until it was below the second."""


class NearlyFull:
    """Says it once of a server, until it has less again.

    Parameters
    ----------
    server : ServerAddress
        The server.
    """

    def __init__(self, server: ServerAddress) -> None:
        self._server, self._said = server, False

    def news(self, use: MemoryUse | None) -> str:
        """Return what is to be said of its memory now; empty if nothing is."""
        if use is None or use.share < (AGAIN if self._said else NEARLY):
            self._said = False
            return ""
        before, self._said = self._said, True
        if before:
            return ""
        return (
            f"parameter {self._server.name} at {self._server.address} is nearly full: {use}. Start "
            "more servers and call rebalance, or hold fewer rows (admission=, shrink)"
        )
