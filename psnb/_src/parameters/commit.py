"""How a commit is made, on all shards that it writes to or on none. Pure.

`committing` is a generator: it yields batches of requests, and returns the outcome of the commit. A
driver makes the requests: a closure's thread, or the simulation that tests the whole protocol
(`tests/model`). See `psnb._src.server.commit_log` for the shards' side.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from psnb._src.parameters.request_batch import Request
from psnb._src.placement import ShardId
from psnb._src.server import (
    APART,
    ApplyCommit,
    Commit,
    CommitParts,
    GiveUpCommit,
    Part,
    PreparePart,
)
from psnb.errors import (
    CancelledError,
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
    ServerSilentError,
)

T = TypeVar("T")

Outcome = Any
"""The result of a request, or the exception that it raised."""

_UNKNOWN = (ServerSilentError, CoordinatorClosedError)
"""Errors after which a request may still be carried out."""

Steps = Generator[Sequence[Request], Sequence[Outcome], T]
"""Yields requests, takes their outcomes, and returns the final result."""


class UndecidedError(Exception):
    """Raised when this process cannot tell whether a commit is applied: ask the shards.

    Attributes
    ----------
    commit : Commit
        Which.
    reason : PsnbError
        Why.
    """

    def __init__(self, commit: Commit, reason: PsnbError) -> None:
        super().__init__(f"commit {commit.number} of {commit.writer}: {reason}")
        self.commit, self.reason = commit, reason


def committing(
    commit: Commit, parts: Mapping[ShardId, Part], together: Callable[[Sequence[ShardId]], bool]
) -> Steps[int | None]:
    """Yield the requests that make a commit, and take their outcomes.

    Parameters
    ----------
    commit : Commit
        Which; it names all shards that take part.
    parts : mapping of ShardId to Part
        What goes to each of them.
    together : callable
        Returns whether shards are likely to be on one server, which can change them at once. The
        server decides in the end.

    Returns
    -------
    int or None
        If its staleness counts: the number of other updates since the first read, on the shard with
        the most.

    Raises
    ------
    UndecidedError
        If it may be applied somewhere, now or later: the notebook, which can ask all shards, must
        decide.
    PsnbError
        If it is applied nowhere, and never will be.
    """
    shards = commit.shards
    if together(shards):
        several = {shard.number: part for shard, part in parts.items()}
        once = Request(shards[0], CommitParts(commit, several))
        (outcome,) = yield [once]
        if isinstance(outcome, _UNKNOWN):
            raise UndecidedError(commit, outcome) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        if outcome != APART:
            staleness: int | None = outcome
            return staleness
    holds = yield [Request(shard, PreparePart(commit, parts[shard])) for shard in shards]
    if failed := _errors(holds):
        # Not all have prepared it, so none will apply it; those that have are told to give it up.
        held = [s for s, each in zip(shards, holds, strict=True) if not isinstance(each, Exception)]
        yield [Request(shard, GiveUpCommit(commit)) for shard in held]
        raise failed[0]
    # The commit is decided. From here on its effect is lost only if a server is lost with all its
    # data.
    applied = yield [Request(shard, ApplyCommit(commit)) for shard in shards]
    failed = _errors(applied)
    for error in failed:
        # A copy that took over at a bad moment may not know the commit, while others have applied
        # it.
        if isinstance(error, (*_UNKNOWN, CancelledError)):
            raise UndecidedError(commit, error) from error
        if not isinstance(error, ServerLostError):
            raise error
    stale = [each for each in applied if isinstance(each, int)]
    return max(stale, default=None)


def _errors(outcomes: Sequence[Outcome]) -> list[Exception]:
    return [each for each in outcomes if isinstance(each, Exception)]


def drive(
    steps: Steps[T],
    attempt: Callable[[Sequence[Request]], Sequence[Outcome]],
    requests: Sequence[Request] | None = None,
) -> T:
    """Make the requests that a generator yields, and return its result; raises what it raises.

    A generator that has begun has yielded ``requests``.
    """
    requests, outcomes = next(steps) if requests is None else requests, list[Outcome]()
    try:
        while True:
            try:
                outcomes = list(attempt(requests)) if requests else []
            except PsnbError as error:
                outcomes = [error] * len(requests)
            requests = steps.send(outcomes)
    except StopIteration as ended:
        result: T = ended.value
        return result
