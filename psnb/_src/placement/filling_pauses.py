"""FillingPauses: when a copy that could not be filled may be tried again. Pure.

A server that has no memory for a copy has none a moment later, and each try sends it all of the
shard. So the tries are further and further apart.
"""

from __future__ import annotations

from psnb._src.placement.layout import Layout, ServerAddress

_FIRST, _LONGEST = 1.0, 60.0
"""Seconds to the second try, and between two tries at most; each is twice as long as the last."""


class FillingPauses:
    """Servers on which a copy of a shard could not be filled lately."""

    def __init__(self) -> None:
        # The pause, and when it is over.
        self._pauses: dict[tuple[int, ServerAddress], tuple[float, float]] = {}

    def note(self, before: Layout, after: Layout, now: float) -> None:
        """Note what became of the copies that were being filled; ``now`` in seconds."""
        for index, (old, new) in enumerate(zip(before.places, after.places, strict=True)):
            server = old.filling
            if server is None or server == new.filling:
                continue
            last, _ = self._pauses.pop((index, server), (0.0, 0.0))
            if server not in new.servers:
                pause = min(2 * last or _FIRST, _LONGEST)
                self._pauses[index, server] = pause, now + pause

    def unfit(self, now: float) -> dict[int, set[ServerAddress]]:
        """Return by shard the servers on which none may be begun yet."""
        found: dict[int, set[ServerAddress]] = {}
        for (index, server), (_, end) in self._pauses.items():
            if now < end:
                found.setdefault(index, set()).add(server)
        return found
