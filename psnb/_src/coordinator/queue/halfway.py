"""Halfway: what an owner that has gone has left undone is finished or given up. Pure.

Its process may have died between any two messages. A commit that a shard has applied, or that all
have prepared, is applied by all; any other is given up (`psnb._src.coordinator.queue.fates`). A
round that one shard has ended is ended by all. No shard takes a commit meanwhile, or from then on,
until the new owner says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from psnb._src.coordinator.queue.fates import Outcome, ask_all, finding_out
from psnb._src.parameters import Request
from psnb._src.placement import ShardId
from psnb._src.server import ClosedLog, CloseLog, Commit, EndRound, Fact
from psnb.errors import ServerLostError, ServerSilentError

Attempt = Callable[[Sequence[Request]], Sequence[Outcome]]


def finish_halfway(attempt: Attempt, shards: Sequence[ShardId]) -> None:
    """Have all shards finish or give up what is halfway, alike.

    Parameters
    ----------
    attempt : callable
        Makes requests and returns their outcomes; waits for servers for a while.
    shards : sequence of ShardId
        All shards of the strategy.

    Raises
    ------
    ServerSilentError
        If a server does not respond; it can be done again.
    """
    outcomes = attempt([Request(shard, CloseLog()) for shard in shards])
    logs = {
        shard: outcome
        for shard, outcome in zip(shards, outcomes, strict=True)
        if not _is_lost(outcome)
    }
    ask_all(finding_out(shards, _attempts(logs)), attempt, _refuse)
    for outcome in attempt(_ends(logs)):
        _is_lost(outcome)


def _attempts(logs: Mapping[ShardId, ClosedLog]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for log in logs.values():
        for fact in log.facts:
            commit = Commit(*Fact(*fact).commit)
            attempts = found.setdefault(commit.writer, {})
            attempts[commit.number] = max(commit.attempt, attempts.get(commit.number, 0))
    return found


def _ends(logs: Mapping[ShardId, ClosedLog]) -> list[Request]:
    """Return the ends of rounds for the shards that keep what was pushed in them."""
    ends: list[EndRound] = [log.ended for log in logs.values() if log.ended is not None]
    distinct = {(each.writer, each.number): each for each in ends}.values()
    return [
        Request(shard, end)
        for shard, log in logs.items()
        for end in distinct
        if not set(end.closures).isdisjoint(log.held.get(end.writer, ()))
    ]


def _is_lost(outcome: Outcome) -> bool:
    if isinstance(outcome, Exception) and (
        isinstance(outcome, ServerSilentError) or not isinstance(outcome, ServerLostError)
    ):
        raise outcome
    return isinstance(outcome, ServerLostError)


def _refuse(error: ServerSilentError) -> None:
    raise error
