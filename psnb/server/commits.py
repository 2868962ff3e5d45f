"""CommitLog: which updates a shard has applied, so that none is applied twice. Pure.

A closure that runs again after its worker was lost commits under the same id, and so does a worker
that was given up for dead and wakes up. Ids below a coordinator's *watermark* have ended for good
and are never applied again; above it the log keeps each id, so its size is that of the work under
way. Writes outside of closures are numbered likewise by the process that makes them, so whatever
was not answered can be sent again.

The log also counts the updates of closures, so that one that has read a shard can be told how many
others came between, and holds what closures pushed in a round that is not over yet.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from psnb.server.rounds import Rounds


@dataclass
class _Writer:
    low: int = 0
    # The staleness of each commit, if it is known.
    applied: dict[int, int | None] = field(default_factory=dict)


class CommitLog:
    """Remembers commits by writer and number.

    Attributes
    ----------
    version : int
        How many updates of closures have been applied.
    rounds : Rounds
        What waits for the end of its round.
    """

    def __init__(self) -> None:
        self.version = 0
        self.rounds = Rounds()
        self._writers: dict[str, _Writer] = {}

    def __len__(self) -> int:
        """Return how many ids are kept."""
        return sum(len(each.applied) for each in self._writers.values())

    def enter(self, writer: str, number: int, settled_below: int) -> bool:
        """Note a commit and return whether it must be applied, which is so once for each id.

        Parameters
        ----------
        writer : str
            Whose update it is: a coordinator's, or that of a process.
        number : int
            Its number there.
        settled_below : int
            All numbers below this have ended: no commit of theirs counts any more. Never goes down.
        """
        known = self._writers.setdefault(writer, _Writer())
        if settled_below > known.low:
            known.low = settled_below
            above = {n: stale for n, stale in known.applied.items() if n >= settled_below}
            known.applied = above
        if number < known.low or number in known.applied:
            return False
        known.applied[number] = None
        return True

    def has(self, writer: str, number: int, settled_below: int) -> bool:
        """Return what `enter` would not: whether a commit was entered before."""
        known = self._writers.get(writer)
        return known is not None and (number < known.low or number in known.applied)

    def measure(self, writer: str, number: int, seen: int) -> None:
        """Note how stale a commit is that was entered this moment.

        Parameters
        ----------
        writer, number
            Which one.
        seen : int
            The `version` that its closure has read; below 0 if it has read nothing.
        """
        missed = max(0, self.version - seen) if seen >= 0 else 0
        self._writers[writer].applied[number] = missed

    def staleness(self, writer: str, number: int) -> int | None:
        """Return what was measured, also if it was some time ago; None if nothing is known."""
        return self._writers[writer].applied.get(number)
