"""Doubt: closures of which only the servers know whether they have had their effect. Pure.

`psnb._src.coordinator.workers.resolve` asks the servers, and `Scheduler` takes in what they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from psnb._src.client.commit import CommitKey
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.protocol import messages
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import ClosureResult
from psnb._src.server.commit_log import Commit
from psnb._src.worker.reports import split_remembered
from psnb.errors import ServerLostError

Applied = Mapping[CommitKey, Commit]
"""The commits that are applied, of those that were in doubt."""


Attempts = Mapping[str, Mapping[int, int]]
"""By writer, the numbers of commits in doubt, and the attempts that servers must accept no more."""


@dataclass(eq=False, slots=True)
class Doubt:
    """What is in doubt.

    Attributes
    ----------
    attempts : mapping
        The commits.
    open : sequence of Work
        Closures that are open because of it: they fail if it cannot be found out.
    """

    attempts: Attempts
    open: Sequence[Work]


@dataclass(eq=False, slots=True)
class LostWorker(Doubt):
    """A session is over, and what it had may have had its effect.

    Attributes
    ----------
    worker : WorkerState
        Whose.
    asked : sequence of Work
        Those that have not ended, with those that were cancelled: the worker's leases go on behind
        what they have used.
    running : sequence of Work
        Those of the open ones that were probably running.
    why : str
        What happened to the worker.
    """

    worker: WorkerState
    asked: Sequence[Work]
    running: Sequence[Work]
    why: str


@dataclass(eq=False, slots=True)
class Revoked(Doubt):
    """A closure that a worker has was cancelled: servers accept no commit of it any more."""


@dataclass(eq=False, slots=True)
class LastCommit(Doubt):
    """A worker cannot tell whether a closure's last commit is applied.

    Attributes
    ----------
    closure : Work
        Which.
    worker : str
        Its name.
    result : ClosureResult
        What it said.
    """

    closure: Work
    worker: str
    result: ClosureResult


def attempts_of(writer: str, closures: Iterable[Work]) -> Attempts:
    """Return the commits of what is not done of closures, with their attempts."""
    every = {commit: each.execution.attempt for each in closures for commit in each.commits}
    return {writer: every}


def steps_applied(
    closure: Work, writer: str, applied: Applied
) -> Iterator[tuple[ClosureResult, Sequence[messages.Taken]] | None]:
    """Yield what became of a closure's next steps, up to the last one that is applied.

    For each it is the step's result, and what it has taken from leases, as servers say; None if it
    wrote nothing, if it was done.
    """
    results = {
        number: (result, commit.pushed)
        for commit in applied.values()
        if commit.coordinator == writer
        for number, result in commit.closures
    }
    commits, left = closure.commits, closure.left
    last = max((each for each in commits if each in results), default=commits.start - 1)
    for done, number in enumerate(range(commits.start, last + 1), 1):
        if number not in results:
            yield None
            continue
        remembered, pushed = results[number]
        if remembered is None:  # it was too large for servers
            remembered = closure.execution.kept.get(number, b"")
        used, front, value = split_remembered(remembered)
        ends = done == left
        yield ClosureResult(closure.id, 1, ends, True, front, [value], 0.0, pushed, ()), used


def failed(closure: Work, error: bytes) -> ClosureResult:
    """Return the result of a closure that fails with a pickled error."""
    return ClosureResult(closure.id, 0, True, False, error, (), 0.0, False, ())


def lost_exchange() -> bytes:
    """Return the packed error for updates that a worker could not send."""
    lost = "what closures of a worker had learned together was lost with a parameter server"
    return pack_error(ServerLostError(lost))
