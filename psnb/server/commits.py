"""CommitLog: which updates a shard has applied, so that none is applied twice. Pure.

A closure that runs again after its worker was lost commits under the same id, and so does a worker
that was given up for dead and wakes up. Ids below a coordinator's *watermark* have ended for good
and are never applied again; above it the log keeps each id, so its size is that of the work under
way. Writes outside of closures are numbered likewise by the process that makes them, so whatever
was not answered can be sent again.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class _Writer:
    low: int = 0
    applied: set[int] = field(default_factory=set)


class CommitLog:
    """Remembers commits by writer and number."""

    def __init__(self) -> None:
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
            known.applied = {each for each in known.applied if each >= settled_below}
        if number < known.low or number in known.applied:
            return False
        known.applied.add(number)
        return True
