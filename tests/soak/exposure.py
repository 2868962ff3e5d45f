"""Exposure: which shards may be lost, because the last process that had all of them was killed."""

from __future__ import annotations

from collections import Counter

import psnb


class Exposure:
    """What the documentation allows to be lost, if it is told of all kills."""

    def __init__(self, strategy: psnb.ParameterServerStrategy, is_told: bool) -> None:
        self._servers = strategy._core.servers
        self._killed: set[str] = set()
        self._kills: Counter[int] = Counter()  # by shard: those that took the last copy of it
        self._forgotten: Counter[int] = Counter()
        self._is_told = is_told

    def note_kill(self, address: str) -> None:
        """Note that the process at an address is killed now."""
        for index, place in enumerate(self._servers.layout.placements):
            # Not those that are leaving: they may take over, but the notebook may know already that
            # the primary goes on alone, and be about to drop them (within milliseconds of a move).
            holders = {*filter(None, (place.primary, *place.synced))}
            alive = [holder.address for holder in holders if holder.address not in self._killed]
            # Two in one process would be no copies at all. Where nobody lives, a recovery may be
            # about to give it to this one.
            if not set(alive) - {address}:
                self._kills[index] += 1
        self._killed.add(address)

    def lost(self) -> list[int]:
        """Return which shards are lost."""
        places = self._servers.layout.placements
        return [index for index, place in enumerate(places) if place.primary is None]

    def unexplained(self) -> list[int]:
        """Return which shards are lost though a process that had them was not killed."""
        allowed = {i for i in self._kills if self._kills[i] > self._forgotten[i]}
        return [i for i in self.lost() if self._is_told and i not in allowed]

    def kills(self) -> Counter[int]:
        """Return what was lost so far; for `forget`."""
        return self._kills.copy()

    def forget(self, kills: Counter[int]) -> None:
        """Allow nothing more for these kills: a checkpoint was loaded after them."""
        self._forgotten = kills
