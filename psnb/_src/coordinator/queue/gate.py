"""Gate: when closures may begin, and what must be done with what they pushed. Pure, no locks.

Under its lock, the queue asks its gate before it hands out a closure, and tells it when closures
begin and end. What must be done on servers or workers is a `Step`; the coordinator carries it out
(`psnb._src.coordinator.steps`). There is one kind of gate for each update mode (`psnb._src.modes`);
`Gate` itself is for asynchronous updates: it lets everything begin and asks for no steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.coordinator.closures import Closure


@dataclass(frozen=True, slots=True)
class ApplyRound:
    """Servers must apply what a round pushed.

    Attributes
    ----------
    number : int
        The round.
    closures : tuple of int
        Commit numbers of its closures that pushed and have completed, in the order in which they
        were scheduled.
    """

    number: int
    closures: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flush:
    """Workers must send the updates that they have kept."""


Step = ApplyRound | Flush
"""What a gate asks for."""


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
        """Note that a closure that had begun has had no effect, and waits to begin again."""

    def end(self, closure: Closure, *, pushed: bool) -> None:
        """Note that a closure that had begun has ended, and whether it completed with pushes."""

    def midway(self) -> bool:
        """Return whether what has begun waits for others to begin: holding them would break it."""
        return False

    def finish(self) -> None:
        """Note that no closure runs, and that somebody waits until all have had their effect."""

    def complete(self) -> bool:
        """Return whether all closures that have ended have had their effect."""
        return True

    def due(self) -> Step | None:
        """Return the step that must be done now, if there is one; each step once."""
        return None

    def stepped(self) -> None:
        """Note that the step was done, or has failed and will not be tried again."""
