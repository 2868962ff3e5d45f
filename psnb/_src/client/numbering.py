"""CommitNumbers: numbers the commits of a process, and knows which have ended. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Collection

from psnb._src.placement.layout import ShardId
from psnb._src.utils.range_set import Bounds, RangeSet


class CommitNumbers:
    """Numbers commits, and tells each shard which have ended.

    A commit tells its shards all of it, so it does not matter if one is lost. But only once as many
    have ended, since the shard was told, as there are ranges: this costs constant time a commit,
    and a shard remembers at most twice as many commits as are under way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all that is here, for a moment each
        self._next = self._ended = 0
        self._settled = RangeSet()
        self._told: dict[ShardId, int] = {}  # how many had ended when a shard was told

    def begin(self, shards: Collection[ShardId]) -> tuple[int, Bounds]:
        """Return the next number, and what a commit to these shards tells them."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            least = len(self._settled)
            if not any(self._ended - self._told.get(each, 0) >= least for each in shards):
                return number, ()
            self._told |= dict.fromkeys(shards, self._ended)
            return number, self._settled.bounds()

    def end(self, number: int) -> None:
        """Note that a commit has ended, in whatever way; once."""
        with self._lock:
            self._settled.add(number, number + 1)
            self._ended += 1
