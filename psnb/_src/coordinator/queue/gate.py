"""Gate: when closures may begin, and what is to be done with what they pushed. Pure, no locks.

The queue asks its gate before it gives a closure away, and tells it how closures fare, under its
lock. What a gate wants done on the servers or workers is a `Step`, which the coordinator carries
out (`psnb._src.coordinator.steps`). One kind for each update mode (`psnb._src.modes`); this one is
that of asynchronous updates, which lets everything begin and wants nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.coordinator.closures import Closure


@dataclass(frozen=True, slots=True)
class ApplyRound:
    """Servers are to apply what a round pushed.

    Attributes
    ----------
    number : int
        The round.
    closures : tuple of int
        Commit numbers of its closures that pushed and have completed, in order.
    """

    number: int
    closures: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flush:
    """Workers are to send what they hold of their own."""


Step = ApplyRound | Flush
"""What a gate wants done."""


class Gate:
    """Lets every closure begin at any time."""

    limits = False
    """Whether it may ever refuse; then no worker is sent more than it can begin at once."""

    round: int | None = None
    """The round of the closures that begin now, if there are rounds."""

    def open(self) -> bool:
        """Return whether anything may begin."""
        return True

    def admits(self, closure: Closure) -> bool:
        """Return whether this closure may begin now."""
        return self.open()

    def begin(self, closure: Closure) -> None:
        """Note that a closure that was admitted is sent to a worker."""

    def put_back(self, closure: Closure) -> None:
        """Note that one that had begun has had no effect, and waits to begin anew."""

    def end(self, closure: Closure, *, pushed: bool) -> None:
        """Note that a closure that had begun has ended, and whether it completed with pushes."""

    def finish(self) -> None:
        """Note that nothing runs, and that somebody waits until all has had its effect."""

    def complete(self) -> bool:
        """Return whether all that has ended has had its effect."""
        return True

    def due(self) -> Step | None:
        """Return what must be done now; each step once."""
        return None

    def stepped(self) -> None:
        """Note that the step was done, or has failed and will not be tried again."""
