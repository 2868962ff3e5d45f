"""The commit protocol: how writes are applied on all shards that they go to, or on none. Pure.

All of it is coroutines over an `Ask`, which makes requests and returns their outcomes: `commit`,
`resolve_in_doubt` for commits whose worker was lost, `recover_orphans` for what an owner has left
undone, and `end_round`. The same code runs in the threads of a worker, which wait for the answers,
as tasks on the notebook's event loop, and in the simulation that tests it (`tests/model`). See
`psnb._src.server.commit_log` for the shards' side.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server import operations as ops
from psnb._src.server.commit_log import Commit, Part
from psnb.errors import (
    ClosureCancelledError,
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

T = TypeVar("T")

Outcome = Any
"""The result of a request, or the exception that it raised."""

Ask = Callable[[Sequence[Request]], Awaitable[Sequence[Outcome]]]
"""Makes requests, of which there may be none, and returns their outcomes."""

Blocked = Callable[[ServerUnresponsiveError], object]
"""Called each time a server does not respond to a request, which is then repeated."""

_UNKNOWN = (ServerUnresponsiveError, CoordinatorClosedError)
"""Errors after which a request may still be carried out."""


class Asked:
    """What `ask` waits for where the driver of a coroutine makes its requests."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def __await__(self) -> Generator[Sequence[Request], Sequence[Outcome], Sequence[Outcome]]:
        return (yield self._requests)


async def ask(requests: Sequence[Request]) -> Sequence[Outcome]:
    """Have the driver make requests: an `Ask`."""
    return await Asked(requests) if requests else []


def drive(
    work: Coroutine[Sequence[Request], Sequence[Outcome], T],
    attempt: Callable[[Sequence[Request]], Sequence[Outcome]],
    requests: Sequence[Request] | None = None,
) -> T:
    """Make the requests of a coroutine over `ask` in this thread, and return what it returns.

    One that has begun waits for the outcomes of ``requests``.
    """
    try:
        requests = work.send(None) if requests is None else requests  # type: ignore[arg-type]
        while True:
            try:
                outcomes = attempt(requests)
            except PsnbError as error:
                outcomes = [error] * len(requests)
            requests = work.send(outcomes)
    except StopIteration as ended:
        result: T = ended.value
        return result


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


async def commit(
    of: Commit,
    parts: Mapping[ShardId, Part],
    together: Callable[[Sequence[ShardId]], bool],
    ask: Ask,
) -> int | None:
    """Have shards apply a commit: in one message if they are on one server, else in two phases.

    Parameters
    ----------
    of : Commit
        The commit; it names all shards that take part.
    parts : mapping of ShardId to Part
        The part of each shard.
    together : callable
        Returns whether shards are likely to be on one server, which can change them in one step.
        The server decides in the end.
    ask : Ask
        Makes the requests.

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
    shards = of.shards
    asked_together = together(shards)
    if asked_together:
        several = {shard.number: part for shard, part in parts.items()}
        (outcome,) = await ask([Request(shards[0], ops.CommitParts(of, several))])
        if isinstance(outcome, _UNKNOWN):
            raise UndecidedError(of, outcome) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        if outcome != ops.APART:
            staleness: int | None = outcome
            return staleness
    holds = await ask([Request(shard, ops.PreparePart(of, parts[shard])) for shard in shards])
    if failed := _errors(holds):
        # Not all have prepared it, so none will apply it; shards that have must drop it.
        held = [s for s, each in zip(shards, holds, strict=True) if not isinstance(each, Exception)]
        await ask([Request(shard, ops.GiveUpCommit(of)) for shard in held])
        for error in failed if asked_together else ():
            # A copy of the first message, which came before this one was given up or still comes,
            # may have found the shards on one server after all.
            if isinstance(error, _UNKNOWN):
                raise UndecidedError(of, error) from error
        raise failed[0]
    # The commit is decided. From here on its effect is lost only if a server is lost with all its
    # data.
    applied = await ask([Request(shard, ops.ApplyCommit(of)) for shard in shards])
    for error in _errors(applied):
        # A replica that took over at a bad moment may not know the commit, while others have
        # applied it.
        if isinstance(error, (*_UNKNOWN, ClosureCancelledError)):
            raise UndecidedError(of, error) from error
        if not isinstance(error, ServerLostError):
            raise error
    return max((each for each in applied if isinstance(each, int)), default=None)


def _errors(outcomes: Sequence[Outcome]) -> list[Exception]:
    return [each for each in outcomes if isinstance(each, Exception)]


# Commits in doubt: their worker died, or could not tell whether they are applied.
#
# `resolve_in_doubt` asks all shards what they know of some commits. After its answer a shard leaves
# these commits to the notebook: no worker can change them any more, not even one that was frozen
# and wakes up. The answers of all shards decide each commit:
#
# - A shard has applied it: then all have prepared it, and the others apply it now.
# - All shards that take part have prepared it: they apply it now.
# - Otherwise no shard has applied it, and none will.
#
# A shard that was lost with its servers counts as agreeing with the others: its part is lost with
# all that it had. A shard that does not respond is asked again, for as long as it takes.

CommitKey = tuple[str, int]
"""Writer and number of a commit."""


@dataclass
class _Findings:
    """What is known about a commit."""

    commit: Commit
    applied: set[ShardId] = field(default_factory=set)
    held: set[ShardId] = field(default_factory=set)

    def goes_forward(self, lost: set[ShardId]) -> bool:
        return bool(self.applied) or self.held >= set(self.commit.shards) - lost


async def resolve_in_doubt(
    shards: Sequence[ShardId],
    attempts: Mapping[str, Mapping[int, int]],
    closed: Sequence[str],
    ask: Ask,
    on_blocked: Blocked,
) -> dict[CommitKey, Commit]:
    """Find out and settle commits.

    Parameters
    ----------
    shards : sequence of ShardId
        All that may know the commits.
    attempts : mapping
        By writer and commit number: the last possible attempt.
    closed : sequence of str
        Writers whose further commits are refused, and whose commits are all to be found.
    ask, on_blocked
        Make the requests.

    Returns
    -------
    dict
        The commits that are applied on all of their shards, now.
    """
    found: dict[CommitKey, _Findings] = {}
    lost: set[ShardId] = set()
    asked, waiting = set(shards), list(shards)
    fence = ops.FenceCommits(attempts, closed)
    while waiting:
        requests = [Request(shard, fence) for shard in waiting]
        answers = await _settled(requests, ask, on_blocked, _GONE)
        for shard, facts in zip(waiting, answers, strict=True):
            if isinstance(facts, Exception):
                lost.add(shard)
                continue
            for fact in facts:
                each = found.setdefault(fact.commit[:2], _Findings(fact.commit))
                (each.applied if fact.applied else each.held).add(shard)
        # Closures may write to parameters of other strategies.
        waiting = sorted({s for each in found.values() for s in each.commit.shards} - asked)
        asked.update(waiting)
    forward = {key: each.commit for key, each in found.items() if each.goes_forward(lost)}
    conclusions = [
        Request(
            shard,
            (ops.ApplyCommit if key in forward else ops.GiveUpCommit)(each.commit, decided=True),
        )
        for key, each in found.items()
        for shard in sorted(each.held - lost)
    ]
    await _settled(conclusions, ask, on_blocked, _GONE)
    return forward


_GONE = (ServerLostError, ClosureCancelledError)
"""Errors of a shard that is lost; one that was made again elsewhere knows nothing, and refuses."""


async def _settled(
    requests: Sequence[Request],
    ask: Ask,
    on_blocked: Blocked,
    gone: tuple[type[PsnbError], ...] = (ServerLostError,),
) -> list[Outcome]:
    """Return answers, or the errors of shards that are gone; waits for unresponsive servers."""
    answers: dict[int, Any] = {}
    while left := [position for position in range(len(requests)) if position not in answers]:
        outcomes = await ask([requests[position] for position in left])
        for position, outcome in zip(left, outcomes, strict=True):
            if isinstance(outcome, ServerUnresponsiveError):
                on_blocked(outcome)
            elif isinstance(outcome, Exception) and not isinstance(outcome, gone):
                raise outcome
            else:
                answers[position] = outcome
    return [answers[position] for position in range(len(requests))]


async def recover_orphans(shards: Sequence[ShardId], ask: Ask) -> bool:
    """Have all shards finish or give up what an owner that has gone has left undone, alike.

    Its process may have died between any two messages. A commit that a shard has applied, or that
    all have prepared, is applied by all; any other is given up. A round that one shard has ended is
    ended by all. No shard takes a commit meanwhile, or from then on, until the new owner says so.

    Parameters
    ----------
    shards : sequence of ShardId
        All shards of the strategy.
    ask : Ask
        Makes the requests.

    Returns
    -------
    bool
        Whether the owner was loading tables: some may have a part of what they were to get.

    Raises
    ------
    ServerUnresponsiveError
        If a server does not respond; it can be done again.
    """
    outcomes = await ask([Request(shard, ops.CloseLog()) for shard in shards])
    found: dict[ShardId, ops.ClosedLog] = {
        shard: outcome
        for shard, outcome in zip(shards, outcomes, strict=True)
        if not _is_lost(outcome)
    }
    attempts: dict[str, dict[int, int]] = {}
    for fact in (fact for log in found.values() for fact in log.facts):
        numbers, of = attempts.setdefault(fact.commit.writer, {}), fact.commit
        numbers[of.number] = max(of.attempt, numbers.get(of.number, 0))
    await resolve_in_doubt(shards, attempts, (), ask, _raise)
    for outcome in await ask(_ends(found)):
        _is_lost(outcome)
    return True in [log.loading for log in found.values()]


def _ends(logs: Mapping[ShardId, ops.ClosedLog]) -> list[Request]:
    """Return the ends of rounds for the shards that keep what was pushed in them."""
    ends: list[ops.EndRound] = [log.ended for log in logs.values() if log.ended is not None]
    distinct = {(each.writer, each.number): each for each in ends}.values()
    return [
        Request(shard, msgspec.structs.replace(end, decided=True))
        for shard, log in logs.items()
        for end in distinct
        if not set(end.closures).isdisjoint(log.held.get(end.writer, ()))
    ]


def _is_lost(outcome: Outcome) -> bool:
    if isinstance(outcome, Exception) and (
        isinstance(outcome, ServerUnresponsiveError) or not isinstance(outcome, ServerLostError)
    ):
        raise outcome
    return isinstance(outcome, ServerLostError)


def _raise(error: ServerUnresponsiveError) -> None:
    raise error


async def end_round(
    shards: Sequence[ShardId],
    owners: Mapping[str, str],
    of: ops.EndRound,
    ask: Ask,
    on_blocked: Blocked,
) -> None:
    """Have all shards apply a round, or none; each applies it once, however often it is asked.

    A shard has only a part of a gradient. So the norms are asked for first if a parameter may be
    clipped by norm.

    Parameters
    ----------
    shards : sequence of ShardId
        All of the strategy.
    owners : mapping of str to str
        The parameters of the tables that are clipped by norm.
    of : EndRound
        Which round, and the commit numbers of the closures that count, in the order in which they
        are summed; without norms.
    ask, on_blocked
        Make the requests, again and again: closures that have ended rely on it.

    Raises
    ------
    ServerLostError
        If a server is gone; nothing was applied.
    """
    norms: dict[str, float] = {}
    if owners or len(shards) > 1:
        # Also where no norm is needed: it makes sure that all shards are there.
        wanted = ops.SquareNorms(of.writer, of.number, of.closures, sorted(owners), of.weights)
        answers = await _settled([Request(shard, wanted) for shard in shards], ask, on_blocked)
        squares: dict[str, list[float]] = {}
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            for table, square in answer.items():
                squares.setdefault(owners[table], []).append(square)
        whole = {name: math.sqrt(math.fsum(each)) for name, each in squares.items()}
        norms = {table: whole[name] for table, name in owners.items() if name in whole}
    end = ops.EndRound(of.writer, of.number, of.closures, norms, of.weights)
    # A shard that is lost now is lost with all its data, this round included.
    ended = await _settled([Request(shard, end) for shard in shards], ask, on_blocked)
    lost = _errors(ended)
    if len(lost) == len(shards):
        raise lost[0]
