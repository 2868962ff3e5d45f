"""The coordinators that the hub knows, live and gone, with limits. Pure; used from one thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from psnb._src.monitor import protocol
from psnb._src.monitor.backlog import Backlog


class Allowance:
    """A token bucket: it fills steadily, and each use takes one token. Used from one thread.

    Parameters
    ----------
    per_second : float
        Uses per second in the long run; the bucket starts full, and holds two seconds' worth.
    clock : callable
        Returns seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = 2 * per_second
        self._seen = clock()

    def allows(self) -> bool:
        """Take a token, and return whether there was one."""
        now = self._clock()
        gained = (now - self._seen) * self._per_second
        self._left, self._seen = min(self._left + gained, 2 * self._per_second), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


MOST_SOURCES = 200
"""Limit of known coordinators."""

MOST_GONE = 50
"""Limit of coordinators that are gone; the first to go are forgotten first."""

POSTS_PER_SECOND = 20.0
"""Posts that one coordinator may send; it sends four, and one for each reply."""


class TooManyError(Exception):
    """The hub has as many live coordinators, or connected pages, as it allows."""


@dataclass(eq=False)
class CoordinatorEntry:
    """One coordinator."""

    coordinator: str
    kind: Literal["kernel", "scheduler", "saved"]
    address: str  # of the scheduler that was attached, or the folder of a saved run
    heard: float  # when its kernel's last post came, by the hub's clock
    allowance: Allowance
    backlog: Backlog = field(default_factory=Backlog)
    kernel: str = ""
    process: int | None = None  # of the kernel, as the server sees it; None until checked
    notebook: str = ""
    gone: str = ""
    waiting: list[protocol.Command] = field(default_factory=list)  # for its next post

    def add(self, update: protocol.Update) -> bool:
        """Add an update; return whether a full one is needed."""
        if "identity" in update and self.kind == "kernel":
            self.kernel = update["identity"]["kernel"]
        return self.backlog.add(update)

    def listed(self) -> protocol.Source:
        """Return the row that panels get for it."""
        listed: protocol.Source = protocol.row(protocol.Source, self)
        return listed


class CoordinatorRegistry(dict[str, CoordinatorEntry]):
    """All of them by their ids, in the order in which they came or went.

    Parameters
    ----------
    clock : callable
        Returns seconds.

    Attributes
    ----------
    dismissed : deque of str
        The last that people have dismissed: their scheduler may still report them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.dismissed: deque[str] = deque(maxlen=MOST_SOURCES)

    def add(
        self, coordinator: str, kind: Literal["kernel", "scheduler", "saved"], address: str = ""
    ) -> CoordinatorEntry:
        """Add one.

        Raises
        ------
        TooManyError
            If the limit is reached, and none of them is gone.
        """
        if len(self) >= MOST_SOURCES:
            if not (gone := self.gone()):
                raise TooManyError(
                    f"{MOST_SOURCES} coordinators live on this Jupyter server already"
                )
            del self[gone[0]]
        allowance = Allowance(POSTS_PER_SECOND, self._clock)
        self[coordinator] = CoordinatorEntry(coordinator, kind, address, self._clock(), allowance)
        return self[coordinator]

    def end(self, known: CoordinatorEntry, reason: str) -> None:
        """Note that a coordinator is gone; its history stays."""
        known.gone = reason
        known.waiting.clear()
        # The last to go comes last, even if it was added first.
        self[known.coordinator] = self.pop(known.coordinator)
        if len(gone := self.gone()) > MOST_GONE:
            del self[gone[0]]

    def gone(self) -> list[str]:
        """Return the ids of those that are gone, the first to go first."""
        return [each.coordinator for each in self.values() if each.gone]
