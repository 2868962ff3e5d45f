"""Resolver: settles closures whose worker was lost, or could not tell whether they are applied.

The connections hand them over. Threads: one, named ``psnb-fates``, for each lost worker and each
undecided closure. It asks the servers (`psnb._src.coordinator.resolve`) and hands the answer to
the queue. It waits for servers that do not respond, and ends when the queue is closed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psnb._src.client.requests import Request
from psnb._src.coordinator.closures import Closure
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.placement.layout import Layout, ShardId
from psnb._src.protocol.messages import exchange_writer
from psnb._src.protocol.packing import pack_error
from psnb._src.server.commit_log import Commit, CommitRecord
from psnb._src.server.operations import (
    ApplyCommit,
    ClosedLog,
    CloseLog,
    EndRound,
    EndWriter,
    FenceCommits,
    GiveUpCommit,
)
from psnb._src.strategy.core import StrategyCore
from psnb.errors import (
    ClosureCancelledError,
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

# Fates: asks the servers whether the commits of lost closures are applied. Pure.
#
# A closure is lost if its worker died, or could not tell whether the commit is applied.
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


def resolve_in_doubt(
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
        unresponsive, others = _sorted(waiting, outcomes, lost)
        for shard, facts in others:
            for fact in facts:
                _note(found, shard, fact)
        # Closures may write to parameters of other strategies.
        named = {shard for each in found.values() for shard in each.commit.shards} - asked
        asked |= named
        waiting = [*unresponsive, *sorted(named)]
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
    on_blocked: Callable[[ServerUnresponsiveError], None],
) -> dict[CommitKey, Commit]:
    """Make the requests of `resolve_in_doubt` until it has its answer, and return the answer.

    Parameters
    ----------
    steps : generator
        Of `resolve_in_doubt`.
    attempt : callable
        Makes requests and returns their outcomes; waits for servers for a while.
    on_blocked : callable
        Called each time a server does not respond.
    """
    try:
        requests = next(steps)
        while True:
            outcomes = attempt(requests)
            for outcome in outcomes:
                if isinstance(outcome, ServerUnresponsiveError):
                    on_blocked(outcome)
                    break
            requests = steps.send(outcomes)
    except StopIteration as ended:
        applied: dict[CommitKey, Commit] = ended.value
        return applied


def _note(found: dict[CommitKey, _Findings], shard: ShardId, fact: CommitRecord) -> None:
    each = found.setdefault(fact.commit[:2], _Findings(fact.commit))
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
    unresponsive, answers = [], []
    for shard, outcome in zip(shards, outcomes, strict=True):
        if isinstance(outcome, ServerUnresponsiveError):
            unresponsive.append(shard)
        elif isinstance(outcome, ServerLostError | ClosureCancelledError):
            lost.add(shard)  # made again elsewhere, it knows nothing and refuses
        elif isinstance(outcome, PsnbError):
            raise outcome
        else:
            answers.append((shard, outcome))
    return unresponsive, answers


Applied = Mapping[CommitKey, Commit]


class Resolver:
    """Asks the servers whether commits are applied.

    Parameters
    ----------
    queue : ClosureQueue
        The queue of the closures.
    strategy : StrategyCore
        The way to the servers.
    exchanging : bool
        Whether workers commit the updates of several closures together.
    """

    def __init__(self, queue: ClosureQueue, strategy: StrategyCore, exchanging: bool) -> None:
        self._queue, self._strategy, self._exchanging = queue, strategy, exchanging
        # Both are added to by the event loop and copied by threads, which is atomic.
        self._others: dict[str, None] = {}
        self._ended_sessions: list[str] = []

    def lose(
        self, closures: Sequence[Closure], executing: int, lost: str, worker: str, session: int
    ) -> None:
        """Take over closures whose worker was lost; see `ClosureQueue.put_back`."""
        name = self._queue.name
        closed = [exchange_writer(name, session)] if self._exchanging else []
        self._ended_sessions += closed
        open_ = self._queue.lose(closures)
        if not open_ and not closed:
            return
        running = [each for each in closures[:executing] if each in open_]

        def settle(applied: Applied) -> None:
            results = {
                number: (result, commit.pushed)
                for commit in applied.values()
                if commit.coordinator == name
                for number, result in commit.closures
            }
            absent = []
            for each in open_:
                result, pushed = results.get(each.execution.commit, (None, False))
                kept = each.execution.kept
                if result is None and each.execution.commit in results:
                    result = kept[1] if kept is not None else b""
                if result is None:
                    absent.append(each)
                else:
                    self._queue.settle([(each, True, result, pushed)], worker)
            executed = sum(each in absent for each in running)
            self._queue.put_back(absent, executed, lost, worker)

        attempts = {name: {each.execution.commit: each.execution.attempt for each in open_}}
        self._find_out(attempts, closed, settle, open_)

    def revoke(self, closure: Closure) -> None:
        """Have servers accept no commit of an open closure, and find out whether they have one."""
        name, execution = self._queue.name, closure.execution

        def settle(applied: Applied) -> None:
            commit = applied.get((name, execution.commit))
            if commit is None:
                self._queue.put_back([closure], 0, "it was cancelled")
                return
            result = dict(commit.closures)[execution.commit]
            if result is None:
                result = execution.kept[1] if execution.kept is not None else b""
            self._queue.settle([(closure, True, result, commit.pushed)])

        self._find_out({name: {execution.commit: execution.attempt}}, (), settle, [closure])

    def ask(
        self, closure: Closure, key: CommitKey, result: bytes, pushed: bool, worker: str
    ) -> None:
        """Take over a closure whose worker cannot tell whether its commit is applied."""
        open_ = self._queue.lose([closure])

        def settle(applied: Applied) -> None:
            if key in applied:
                self._queue.settle([(closure, True, result, pushed)], worker)
            elif key[0] != self._queue.name:
                # Updates of several closures: the others have returned, and do not run again.
                self._queue.settle([(closure, False, lost_exchange(), False)], worker)
            else:
                lost = f"worker {worker!r} could not reach the parameter servers to the end"
                self._queue.put_back([closure], 0, lost, worker)

        attempt = closure.execution.attempt if key[0] == self._queue.name else 1
        self._find_out({key[0]: {key[1]: attempt}}, (), settle, open_)

    def ask_about(self, key: CommitKey, then: Callable[[bool], None]) -> None:
        """Find out whether a commit without a closure is applied; calls ``then`` in a thread."""
        self._find_out({key[0]: {key[1]: 1}}, (), lambda applied: then(key in applied), ())

    @property
    def layout(self) -> Layout:
        """Where the strategy's shards are."""
        return self._strategy.layout

    def writes_to(self, strategies: Sequence[str]) -> None:
        """Note that closures write to parameters of other strategies."""
        self._others |= dict.fromkeys(strategies)

    def fences(self) -> list[FenceCommits]:
        """Return the operations that inform new shards which commits were given up."""
        name = self._queue.name
        below, attempts = self._queue.closed_attempts()
        return [FenceCommits({name: attempts}, list(self._ended_sessions), {name: below})]

    def end(self) -> None:
        """Have servers forget the coordinator, which was closed; returns at once."""
        _start(self._announce_end)

    def _announce_end(self) -> None:
        writers = [self._queue.name, *self._ended_sessions]
        requests = [
            Request(shard, EndWriter(writer)) for shard in self._shards() for writer in writers
        ]
        with contextlib.suppress(PsnbError):  # the strategy is closed too, its servers have ended
            self._strategy.attempt(requests)

    def _find_out(
        self,
        attempts: Mapping[str, Mapping[int, int]],
        closed: Sequence[str],
        settle: Callable[[Applied], None],
        closures: Sequence[Closure],
    ) -> None:
        def run() -> None:
            try:
                self._require_open()
                steps = resolve_in_doubt(self._shards(), attempts, closed)
                settle(ask_all(steps, self._attempt, self._hold_up))
            except Exception as error:  # otherwise callers would wait for ever
                packed = pack_error(error, "raised while its outcome was resolved")
                failed = [(each, False, packed, False) for each in closures]
                self._queue.settle(failed, certain=False)

        _start(run)

    def _hold_up(self, error: ServerUnresponsiveError) -> None:
        self._require_open()
        self._queue.block(error)

    def _require_open(self) -> None:
        if self._queue.statistics().closed:
            raise CoordinatorClosedError("the coordinator is closed")

    def _shards(self) -> list[ShardId]:
        strategy = self._strategy
        others = [s for each in list(self._others) for s in strategy.shards_of_strategy(each)]
        return [*strategy.shards, *others]

    def _attempt(self, requests: Sequence[Request]) -> Sequence[Any]:
        try:
            return self._strategy.attempt(requests) if requests else []
        except ServerUnresponsiveError as error:
            return [error] * len(requests)


def lost_exchange() -> bytes:
    """Return the packed error for updates that a worker could not send."""
    lost = "what closures of a worker had learned together was lost with a parameter server"
    return pack_error(ServerLostError(lost))


def _start(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="psnb-fates", daemon=True).start()


# What an owner that has gone has left undone is finished or given up. Pure.
#
# Its process may have died between any two messages. A commit that a shard has applied, or that all
# have prepared, is applied by all; any other is given up (`psnb._src.coordinator.resolve`). A
# round that one shard has ended is ended by all. No shard takes a commit meanwhile, or from then
# on, until the new owner says so.

Attempt = Callable[[Sequence[Request]], Sequence[Outcome]]


def recover_orphans(attempt: Attempt, shards: Sequence[ShardId]) -> None:
    """Have all shards finish or give up each orphaned commit, alike.

    Parameters
    ----------
    attempt : callable
        Makes requests and returns their outcomes; waits for servers for a while.
    shards : sequence of ShardId
        All shards of the strategy.

    Raises
    ------
    ServerUnresponsiveError
        If a server does not respond; it can be done again.
    """
    outcomes = attempt([Request(shard, CloseLog()) for shard in shards])
    logs = {
        shard: outcome
        for shard, outcome in zip(shards, outcomes, strict=True)
        if not _is_lost(outcome)
    }
    ask_all(resolve_in_doubt(shards, _attempts(logs)), attempt, _refuse)
    for outcome in attempt(_ends(logs)):
        _is_lost(outcome)


def _attempts(logs: Mapping[ShardId, ClosedLog]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for log in logs.values():
        for fact in log.facts:
            writer, number, attempt, *_ = fact.commit
            attempts = found.setdefault(writer, {})
            attempts[number] = max(attempt, attempts.get(number, 0))
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
        isinstance(outcome, ServerUnresponsiveError) or not isinstance(outcome, ServerLostError)
    ):
        raise outcome
    return isinstance(outcome, ServerLostError)


def _refuse(error: ServerUnresponsiveError) -> None:
    raise error
