"""Resolver: settles closures whose worker was lost, or could not tell whether they are applied.

The connections hand them over. A task on the event loop asks the servers, for each lost worker and
each undecided closure, and hands the answer to the scheduler. It waits for servers that do not
respond, and ends when the coordinator is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from psnb._src.client.commit import CommitKey, resolve_in_doubt
from psnb._src.client.requests import Request
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.placement.layout import Layout, ShardId
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import ClosureResult, exchange_writer
from psnb._src.server.commit_log import Commit
from psnb._src.server.operations import EndWriter, FenceCommits
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.range_set import Bounds
from psnb._src.utils.threads import start_task
from psnb._src.worker.reports import split_remembered
from psnb.errors import (
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

Applied = Mapping[CommitKey, Commit]


Results = Mapping[int, tuple[bytes | None, bool]]
"""By commit number, the result that servers remember, and whether it pushed gradients."""


LEAST_REPORTED = 64
"""The fewest settled commits that servers hear of at once."""


_AGAIN = 0.2
"""Seconds until a server that does not respond is asked again: its error may come at once."""


class Resolver:
    """Asks the servers whether commits are applied.

    Parameters
    ----------
    scheduler : Scheduler
        Whose closures they are.
    strategy : StrategyCore
        The way to the servers.
    leases : LeaseRegistry
        What closures have taken.
    exchanging : bool
        Whether workers commit the updates of several closures together.
    """

    def __init__(
        self, scheduler: Scheduler, strategy: StrategyCore, leases: LeaseRegistry, exchanging: bool
    ) -> None:
        self._scheduler, self._strategy, self._leases = scheduler, strategy, leases
        self._exchanging = exchanging
        self._others: dict[str, None] = {}
        # The event loop adds to it, and another thread may copy it, which is atomic.
        self._ended_sessions: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reporting: set[ShardId] = set()  # whose servers are hearing what is settled

    def lose(
        self,
        closures: Sequence[Work],
        executing: int,
        lost: str,
        worker: str,
        session: int,
        holder: Hashable,
    ) -> None:
        """Take over closures whose worker was lost, and its leases; see `Scheduler.put_back`."""
        name = self._scheduler.name
        closed = [exchange_writer(name, session)] if self._exchanging else []
        self._ended_sessions += closed
        open_ = self._scheduler.lose(closures)
        # Those that were cancelled, too: the worker's leases go on behind what they have used.
        asked = [each for each in closures if not each.remote.done()]
        if not asked and not closed:
            self._leases.lose(holder)
            return
        running = [each for each in closures[:executing] if each in open_]

        def settle(applied: Applied) -> None:
            results = self._results(applied)
            for each in asked:
                self._settle_applied(each, results, worker)
            self._leases.lose(holder)
            absent = [each for each in open_ if not each.remote.done()]
            executed = sum(each in absent for each in running)
            self._scheduler.put_back(absent, executed, lost, worker)

        attempts = {
            name: {commit: each.execution.attempt for each in asked for commit in each.commits}
        }
        self._find_out(attempts, closed, settle, open_, lambda error: self._leases.lose(holder))

    def revoke(self, closure: Work) -> None:
        """Have servers accept no commit of an open closure, and find out whether they have one."""
        name, attempt = self._scheduler.name, closure.execution.attempt

        def settle(applied: Applied) -> None:
            self._settle_applied(closure, self._results(applied))
            self._scheduler.put_back([closure], 0, "it was cancelled")

        self._find_out({name: dict.fromkeys(closure.commits, attempt)}, (), settle, [closure])

    def ask(self, closure: Work, result: ClosureResult, worker: str) -> None:
        """Take over a closure whose worker cannot tell whether its last commit is applied."""
        open_, key = self._scheduler.lose([closure]), result.in_doubt
        assert key is not None

        def settle(applied: Applied) -> None:
            if key in applied:
                done = replace(result, steps=1, in_doubt=None)
                self._scheduler.settle([(closure, done)], worker)
            elif key[0] != self._scheduler.name:
                # Updates of several closures: the others have returned, and do not run again.
                self._scheduler.settle([(closure, _failed(closure, lost_exchange()))], worker)
            else:
                lost = f"worker {worker!r} could not reach the parameter servers to the end"
                self._scheduler.put_back([closure], 0, lost, worker)

        attempt = closure.execution.attempt if key[0] == self._scheduler.name else 1
        self._find_out({key[0]: {key[1]: attempt}}, (), settle, open_)

    def ask_about(
        self,
        key: CommitKey,
        then: Callable[[bool], None],
        failed: Callable[[bytes], None] = lambda error: None,
    ) -> None:
        """Find out whether a commit without a closure is applied.

        Calls ``then``, or ``failed`` with the pickled error if it cannot be found out.
        """
        attempts = {key[0]: {key[1]: 1}}
        self._find_out(attempts, (), lambda applied: then(key in applied), (), failed)

    @property
    def layout(self) -> Layout:
        """Where the strategy's shards are."""
        return self._strategy.layout

    def writes_to(self, strategies: Sequence[str]) -> None:
        """Note that closures write to parameters of other strategies."""
        self._others |= dict.fromkeys(strategies)

    def fences(self, closed_attempts: tuple[Bounds, dict[int, int]]) -> list[FenceCommits]:
        """Return the operations that inform new shards which commits were given up."""
        name = self._scheduler.name
        settled, attempts = closed_attempts
        return [FenceCommits({name: attempts}, list(self._ended_sessions), {name: settled})]

    def report_settled(self) -> None:
        """Report to servers which commits they may forget, if it is time; on the loop, at once.

        That is when as many have ended since the last report as closures are in flight: so shards
        remember at most twice as many, and ranges, of which there may be one for each closure in
        flight, cost a constant time a closure. A shard that misses a report gets all with the next.
        """
        in_flight = self._scheduler.in_flight
        if in_flight.unreported >= max(LEAST_REPORTED, len(in_flight)):
            in_flight.unreported = 0
            report = self._report(in_flight.settled.bounds())
            start_task(report, self._tasks, "psnb settled commits")

    def end(self) -> None:
        """Have servers forget the coordinator, which was closed; on the loop, returns at once."""
        start_task(self._announce_end(), self._tasks, "psnb end of a coordinator")

    async def _announce_end(self) -> None:
        writers = [self._scheduler.name, *self._ended_sessions]
        # The strategy may be closed too: its servers have ended, or the client is closed.
        with contextlib.suppress(PsnbError, OSError):
            shards = await self._shards()
            # A commit under way ends alike on all of its shards: to forget it would leave half.
            await resolve_in_doubt(shards, {}, writers, self._strategy.ask, _give_up)
            requests = [Request(shard, EndWriter(writer)) for shard in shards for writer in writers]
            await self._strategy.ask(requests)

    async def _report(self, settled: Bounds) -> None:
        fence = FenceCommits({}, (), {self._scheduler.name: settled})
        with contextlib.suppress(PsnbError, OSError):  # the strategy, or another one, may be closed
            for shard in await self._shards():
                if shard not in self._reporting:  # its server may be unresponsive
                    self._reporting.add(shard)
                    task = self._report_to(Request(shard, fence))
                    start_task(task, self._tasks, "psnb settled commits of a shard")

    async def _report_to(self, request: Request) -> None:
        assert isinstance(request.to, ShardId)
        try:
            with contextlib.suppress(PsnbError, OSError):
                await self._strategy.ask([request])
        finally:
            self._reporting.discard(request.to)

    def _results(self, applied: Applied) -> Results:
        return {
            number: (result, commit.pushed)
            for commit in applied.values()
            if commit.coordinator == self._scheduler.name
            for number, result in commit.closures
        }

    def _settle_applied(self, closure: Work, results: Results, worker: str = "") -> None:
        """Record the steps whose commits are applied, of a closure whose worker was lost."""
        commits = closure.commits
        last = max((each for each in commits if each in results), default=commits.start - 1)
        for number in range(commits.start, last + 1):
            if number not in results:  # that step wrote nothing, if it was done:
                self._leases.give_back(closure.number)  # others may do it again
                self._scheduler.skip_step(closure)
                continue
            remembered, pushed = results[number]
            if remembered is None:  # it was too large for servers
                remembered = closure.execution.kept.get(number, b"")
            used, front, value = split_remembered(remembered)
            self._leases.note_used(used)
            done = ClosureResult(
                *(closure.id, 1, closure.left == 1, True, front, [value], 0.0, pushed, ())
            )
            self._scheduler.settle([(closure, done)], worker)

    def _find_out(
        self,
        attempts: Mapping[str, Mapping[int, int]],
        closed: Sequence[str],
        settle: Callable[[Applied], None],
        closures: Sequence[Work],
        on_error: Callable[[bytes], None] = lambda error: None,
    ) -> None:
        async def run() -> None:
            try:
                self._require_open()
                shards = await self._shards()
                settle(
                    await resolve_in_doubt(shards, attempts, closed, self._ask, self._on_blocked)
                )
            except Exception as error:  # otherwise callers would wait for ever
                packed = pack_error(error, "raised while its outcome was resolved")
                on_error(packed)
                failed = [(each, _failed(each, packed)) for each in closures]
                self._scheduler.settle(failed, certain=False)

        start_task(run(), self._tasks, "psnb resolving commits")

    def _on_blocked(self, error: ServerUnresponsiveError) -> None:
        self._require_open()
        self._scheduler.block(error)

    def _require_open(self) -> None:
        if self._scheduler.closed:
            raise CoordinatorClosedError("the coordinator is closed")

    async def _shards(self) -> list[ShardId]:
        found = [*self._strategy.shards]
        for other in list(self._others):
            found += await self._strategy.shards_of_strategy(other)
        return found

    async def _ask(self, requests: Sequence[Request]) -> Sequence[Any]:
        try:
            return await self._strategy.ask(requests)
        except ServerUnresponsiveError as error:
            await asyncio.sleep(_AGAIN)
            return [error] * len(requests)


def _failed(closure: Work, error: bytes) -> ClosureResult:
    return ClosureResult(closure.id, 0, True, False, error, (), 0.0, False, ())


def _give_up(error: ServerUnresponsiveError) -> None:
    raise error


def lost_exchange() -> bytes:
    """Return the packed error for updates that a worker could not send."""
    lost = "what closures of a worker had learned together was lost with a parameter server"
    return pack_error(ServerLostError(lost))
