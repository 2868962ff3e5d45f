"""Fates: asks the servers whether the commits of lost closures are applied. Pure.

A closure is lost if its worker died, or could not tell whether the commit is applied. `finding_out`
asks all shards what they know of some commits. After its answer a shard leaves these commits to the
notebook: no worker can change them any more, not even one that was frozen and wakes up. The answers
of all shards decide each commit:

- A shard has applied it: then all have prepared it, and the others apply it now.
- All shards that take part have prepared it: they apply it now.
- Otherwise no shard has applied it, and none will.

A shard that was lost with its servers counts as agreeing with the others: its part is lost with all
that it had. A shard that does not respond is asked again, for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psnb._src.parameters import Request
from psnb._src.placement import ShardId
from psnb._src.server import ApplyCommit, Commit, Fact, FenceCommits, GiveUpCommit
from psnb.errors import CancelledError, PsnbError, ServerLostError, ServerSilentError

Outcome = Any
"""The outcome of a request: the answer, or the exception that it raised."""

CommitKey = tuple[str, int]
"""Writer and number of a commit."""

FindingOut = Generator[Sequence[Request], Sequence[Outcome], dict[CommitKey, Commit]]


@dataclass
class _Findings:
    """What is known about a commit."""

    commit: Commit
    applied: set[ShardId] = field(default_factory=set)
    held: set[ShardId] = field(default_factory=set)


def finding_out(
    shards: Sequence[ShardId],
    attempts: Mapping[str, Mapping[int, int]],
    closed: Sequence[str] = (),
) -> FindingOut:
    """Yield the requests that find out and settle commits; receive their outcomes.

    Parameters
    ----------
    shards : sequence of ShardId
        All that may know the commits.
    attempts : mapping
        By writer and commit number: the last attempt that there can have been.
    closed : sequence of str
        Writers from which nothing more is to be accepted, and whose commits are all to be found.

    Returns
    -------
    dict
        The commits that are applied on all of their shards, now.
    """
    found: dict[CommitKey, _Findings] = {}
    lost: set[ShardId] = set()
    asked, waiting = set(shards), list(shards)
    fence = FenceCommits(attempts, closed)
    while waiting:
        outcomes = yield [Request(shard, fence) for shard in waiting]
        silent, others = _sorted(waiting, outcomes, lost)
        for shard, facts in others:
            for fact in facts:
                _note(found, shard, Fact(*fact))
        # Closures may write to parameters of other strategies.
        named = {shard for each in found.values() for shard in each.commit.shards} - asked
        asked |= named
        waiting = [*silent, *sorted(named)]
    forward = {key: each for key, each in found.items() if _goes_forward(each, lost)}
    waiting_for = [
        (shard, key, each.commit)
        for key, each in found.items()
        for shard in sorted(each.held - lost)
    ]
    while waiting_for:
        outcomes = yield [
            _conclude(shard, commit, key in forward) for shard, key, commit in waiting_for
        ]
        still, _ = _sorted([shard for shard, _, _ in waiting_for], outcomes, lost)
        waiting_for = [each for each in waiting_for if each[0] in still]
    return {key: each.commit for key, each in forward.items()}


def ask_all(
    steps: FindingOut,
    attempt: Callable[[Sequence[Request]], Sequence[Outcome]],
    held_up: Callable[[ServerSilentError], None],
) -> dict[CommitKey, Commit]:
    """Make the requests of `finding_out` until it has its answer, and return the answer.

    Parameters
    ----------
    steps : generator
        Of `finding_out`.
    attempt : callable
        Makes requests and returns their outcomes; waits for servers for a while.
    held_up : callable
        Called each time a server does not respond.
    """
    try:
        requests = next(steps)
        while True:
            outcomes = attempt(requests)
            for outcome in outcomes:
                if isinstance(outcome, ServerSilentError):
                    held_up(outcome)
                    break
            requests = steps.send(outcomes)
    except StopIteration as ended:
        applied: dict[CommitKey, Commit] = ended.value
        return applied


def _note(found: dict[CommitKey, _Findings], shard: ShardId, fact: Fact) -> None:
    commit = Commit(*fact.commit)
    each = found.setdefault(commit[:2], _Findings(commit))
    (each.applied if fact.applied else each.held).add(shard)


def _goes_forward(found: _Findings, lost: set[ShardId]) -> bool:
    return bool(found.applied) or found.held >= set(found.commit.shards) - lost


def _conclude(shard: ShardId, commit: Commit, forward: bool) -> Request:
    conclude = ApplyCommit if forward else GiveUpCommit
    return Request(shard, conclude(commit, decided=True))


def _sorted(
    shards: Sequence[ShardId], outcomes: Sequence[Outcome], lost: set[ShardId]
) -> tuple[list[ShardId], list[tuple[ShardId, Any]]]:
    """Return the shards that do not respond, and the others' answers; adds to ``lost``."""
    silent, answers = [], []
    for shard, outcome in zip(shards, outcomes, strict=True):
        if isinstance(outcome, ServerSilentError):
            silent.append(shard)
        elif isinstance(outcome, ServerLostError | CancelledError):
            lost.add(shard)  # made again elsewhere, it knows nothing and refuses
        elif isinstance(outcome, PsnbError):
            raise outcome
        else:
            answers.append((shard, outcome))
    return silent, answers
