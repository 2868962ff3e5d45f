"""Resolver: settles closures whose worker was lost, or could not tell whether they are applied.

The connections hand them over. Threads: one, named ``psnb-fates``, for each lost worker and each
undecided closure. It asks the servers (`psnb._src.coordinator.queue.fates`) and hands the answer to
the queue. It waits for servers that do not respond, and ends when the queue is closed.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from psnb._src.coordinator.closures import Closure
from psnb._src.coordinator.queue.fates import CommitKey, ask_all, finding_out
from psnb._src.coordinator.queue.queue import ClosureQueue
from psnb._src.parameters import Request
from psnb._src.placement import Layout, ShardId
from psnb._src.runtime import exchange_writer, pack_error
from psnb._src.server import Commit, EndWriter, FenceCommits
from psnb._src.strategy import StrategyCore
from psnb.errors import CoordinatorClosedError, PsnbError, ServerLostError, ServerSilentError

Applied = Mapping[CommitKey, Commit]


class Resolver:
    """Asks the servers whether commits are applied.

    Parameters
    ----------
    queue : ClosureQueue
        The queue of the closures.
    strategy : StrategyCore
        The way to the servers; held weakly.
    exchanging : bool
        Whether workers commit the updates of several closures together.
    """

    def __init__(self, queue: ClosureQueue, strategy: StrategyCore, exchanging: bool) -> None:
        self._queue, self._exchanging = queue, exchanging
        self._strategy = weakref.ref(strategy)
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

    def layout(self) -> Layout | None:
        """Return where the strategy's shards are; None if the strategy is gone."""
        strategy = self._strategy()
        return None if strategy is None else strategy.layout

    def writes_to(self, strategies: Sequence[str]) -> None:
        """Note that closures write to parameters of other strategies."""
        self._others |= dict.fromkeys(strategies)

    def fences(self) -> list[FenceCommits]:
        """Return the operations that tell new shards which commits were given up."""
        name = self._queue.name
        below, attempts = self._queue.closed_attempts()
        return [FenceCommits({name: attempts}, list(self._ended_sessions), {name: below})]

    def end(self) -> None:
        """Have servers forget the coordinator, which was closed; returns at once."""
        strategy = self._strategy()
        if strategy is not None:
            _start(partial(self._tell_that_it_ended, strategy))

    def _tell_that_it_ended(self, strategy: StrategyCore) -> None:
        writers = [self._queue.name, *self._ended_sessions]
        requests = [
            Request(shard, EndWriter(writer))
            for shard in self._shards(strategy)
            for writer in writers
        ]
        with contextlib.suppress(PsnbError):  # the strategy is closed too, its servers have ended
            strategy.attempt(requests)

    def _find_out(
        self,
        attempts: Mapping[str, Mapping[int, int]],
        closed: Sequence[str],
        settle: Callable[[Applied], None],
        closures: Sequence[Closure],
    ) -> None:
        def run() -> None:
            try:
                strategy = self._require_strategy()
                steps = finding_out(self._shards(strategy), attempts, closed)
                settle(ask_all(steps, partial(_attempt, strategy), self._hold_up))
            except Exception as error:  # nobody must wait for the closures for ever
                packed = pack_error(error, "raised while it was found out what became of it")
                failed = [(each, False, packed, False) for each in closures]
                self._queue.settle(failed, certain=False)

        _start(run)

    def _hold_up(self, error: ServerSilentError) -> None:
        self._require_strategy()
        self._queue.hold_up(error)

    def _require_strategy(self) -> StrategyCore:
        strategy = self._strategy()
        if strategy is None or self._queue.statistics().closed:
            raise CoordinatorClosedError("the coordinator is closed")
        return strategy

    def _shards(self, strategy: StrategyCore) -> list[ShardId]:
        others = [
            shard for name in list(self._others) for shard in strategy.shards_of_strategy(name)
        ]
        return [*strategy.shards, *others]


def lost_exchange() -> bytes:
    """Return the packed error for updates that a worker could not send."""
    lost = "what closures of a worker had learned together was lost with a parameter server"
    return pack_error(ServerLostError(lost))


def _attempt(strategy: StrategyCore, requests: Sequence[Request]) -> Sequence[Any]:
    try:
        return strategy.attempt(requests) if requests else []
    except ServerSilentError as error:
        return [error] * len(requests)


def _start(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="psnb-fates", daemon=True).start()
