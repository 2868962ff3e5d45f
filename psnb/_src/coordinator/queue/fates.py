"""What became of closures whose worker was lost, or could not tell: the servers know. Pure.

`finding_out` asks all shards what they have of some commits. With its answer a shard leaves them to
the notebook, so no worker can change them any more, also not one that was frozen and wakes up. From
the answers of all follows what is to be done with each commit:

- It is applied somewhere: then all hold it, and those that have not applied it do so now.
- All that take part hold it: the same.
- Else nobody has applied it, and nobody will.

A shard that was lost with its servers counts as having said whatever the others say: its part is
gone with all that it had. One that says nothing is asked again, for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psnb._src.parameters import Request
from psnb._src.placement import ShardId
from psnb._src.server import Commit, Fact
from psnb.errors import CancelledError, PsnbError, ServerLostError, ServerSilentError

Outcome = Any
"""What came of a request: the answer, or the exception that it raised."""

CommitKey = tuple[str, int]
"""Writer and number of a commit."""

FindingOut = Generator[Sequence[Request], Sequence[Outcome], dict[CommitKey, Commit]]


@dataclass
class _Findings:
    """What is known of a commit."""

    commit: Commit
    applied: set[ShardId] = field(default_factory=set)
    held: set[ShardId] = field(default_factory=set)


def finding_out(
    shards: Sequence[ShardId],
    attempts: Mapping[str, Mapping[int, int]],
    closed: Sequence[str] = (),
) -> FindingOut:
    """Yield the requests that find out and settle what became of commits; take their outcomes.

    Parameters
    ----------
    shards : sequence of ShardId
        All that may know of them.
    attempts : mapping
        By writer and number: the last attempt of each that there can have been.
    closed : sequence of str
        Writers of which nothing more is to be taken, and all is to be found out.

    Returns
    -------
    dict
        The commits that are applied on all of their shards, now.
    """
    found: dict[CommitKey, _Findings] = {}
    lost: set[ShardId] = set()
    asked, waiting = set(shards), list(shards)
    arguments = {"attempts": attempts, "closed": closed}
    while waiting:
        outcomes = yield [Request(shard, "", "fence", arguments) for shard in waiting]
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
    """Make the requests of `finding_out` until it has its answer, and return that.

    Parameters
    ----------
    steps : generator
        Of `finding_out`.
    attempt : callable
        Makes requests, and returns what came of them; waits for servers for a while.
    held_up : callable
        Told each time when a server says nothing.
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
    operation = "apply" if forward else "give_up"
    return Request(shard, "", operation, {"commit": commit, "decided": True})


def _sorted(
    shards: Sequence[ShardId], outcomes: Sequence[Outcome], lost: set[ShardId]
) -> tuple[list[ShardId], list[tuple[ShardId, Any]]]:
    """Return the shards that say nothing, and the answers of the others; adds to ``lost``."""
    silent, answers = [], []
    for shard, outcome in zip(shards, outcomes, strict=True):
        if isinstance(outcome, ServerSilentError):
            silent.append(shard)
        elif isinstance(outcome, ServerLostError | CancelledError):
            lost.add(shard)  # in a new place, where it knows of nothing, it refuses
        elif isinstance(outcome, PsnbError):
            raise outcome
        else:
            answers.append((shard, outcome))
    return silent, answers
