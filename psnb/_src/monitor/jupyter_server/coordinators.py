"""The coordinators that the hub knows, live and gone, with limits. Pure; used from one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    kind: Literal["kernel", "scheduler"]
    address: str  # of the scheduler that was attached
    heard: float  # when its last message came, by the hub's clock
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
        return protocol.Source(
            coordinator=self.coordinator,
            kind=self.kind,
            notebook=self.notebook,
            kernel=self.kernel,
            address=self.address,
            gone=self.gone,
        )


class CoordinatorRegistry:
    """All of them, in the order in which they came.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, CoordinatorEntry] = {}
        self._dismissed: dict[str, None] = {}  # the last of them

    def __iter__(self) -> Iterator[CoordinatorEntry]:
        return iter(list(self._known.values()))

    def get(self, coordinator: str) -> CoordinatorEntry | None:
        """Return one; None if it is not known."""
        return self._known.get(coordinator)

    def add(
        self, coordinator: str, kind: Literal["kernel", "scheduler"], address: str
    ) -> CoordinatorEntry:
        """Add one.

        Raises
        ------
        TooManyError
            If the limit is reached, and none of them is gone.
        """
        if len(self._known) >= MOST_SOURCES and not self._forget_first_gone():
            raise TooManyError(f"{MOST_SOURCES} coordinators live on this Jupyter server already")
        now = self._clock()
        known = CoordinatorEntry(
            coordinator, kind, address, now, Allowance(POSTS_PER_SECOND, self._clock)
        )
        self._known[coordinator] = known
        return known

    def end(self, known: CoordinatorEntry, reason: str) -> None:
        """Note that a coordinator is gone; its history stays."""
        known.gone = reason
        known.waiting.clear()
        # The last to go comes last, even if it was added first.
        self._known[known.coordinator] = self._known.pop(known.coordinator)
        if self._gone() > MOST_GONE:
            self._forget_first_gone()

    def full_of_gone(self) -> bool:
        """Return whether one more that is gone would push out the first."""
        return self._gone() >= MOST_GONE

    def _gone(self) -> int:
        return sum(bool(each.gone) for each in self)

    def forget(self, coordinator: str) -> None:
        """Remove one with its history; harmless if it is not known."""
        self._known.pop(coordinator, None)

    def dismiss(self, coordinator: str) -> None:
        """Remove one that will not come back: its scheduler may still report it."""
        self.forget(coordinator)
        self._dismissed[coordinator] = None
        if len(self._dismissed) > MOST_SOURCES:
            del self._dismissed[next(iter(self._dismissed))]

    def was_dismissed(self, coordinator: str) -> bool:
        return coordinator in self._dismissed

    def _forget_first_gone(self) -> bool:
        first = next((each for each in self if each.gone), None)
        if first is not None:
            self.forget(first.coordinator)
        return first is not None
