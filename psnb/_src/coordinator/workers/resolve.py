"""Resolver: asks servers about closures of which only they know whether they had their effect.

The scheduler hands over each `Doubt`, and gets the answer as an event. A task on the event loop
asks. It waits for servers that do not respond, and ends when the coordinator is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from psnb._src.client.commit import CommitKey, resolve_in_doubt
from psnb._src.client.requests import Request
from psnb._src.coordinator.scheduling.doubts import Applied, Attempts, Doubt, LostWorker
from psnb._src.coordinator.scheduling.events import Blocked, Decided, Event
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.placement.layout import Layout, ShardId
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import exchange_writer
from psnb._src.server.operations import EndWriter, FenceCommits
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.range_set import Bounds
from psnb._src.utils.threads import start_task
from psnb.errors import (
    CoordinatorClosedError,
    PsnbError,
    ServerUnresponsiveError,
)

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
    handle : callable
        Has the scheduler take an event in.
    """

    def __init__(
        self, scheduler: Scheduler, strategy: StrategyCore, handle: Callable[[Event], None]
    ) -> None:
        self._scheduler, self._strategy, self._handle = scheduler, strategy, handle
        self._others: dict[str, None] = {}
        # The event loop adds to it, and another thread may copy it, which is atomic.
        self._ended_sessions: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reporting: set[ShardId] = set()  # whose servers are hearing what is settled

    def resolve(self, doubt: Doubt) -> None:
        """Ask the servers about a doubt, and have the scheduler take in what they say."""
        closed = []
        if isinstance(doubt, LostWorker) and self._scheduler.gate.exchanges:
            closed = [exchange_writer(self._scheduler.name, doubt.worker.session)]
            self._ended_sessions += closed

        def fail(error: bytes) -> None:
            self._handle(Decided(doubt, error))

        def settle(applied: Applied) -> None:
            self._handle(Decided(doubt, applied))

        self._find_out(doubt.attempts, closed, settle, fail)

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
        self._find_out(attempts, (), lambda applied: then(key in applied), failed)

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

    def report_settled(self, bounds: Bounds) -> None:
        """Report to servers which commits they may forget; on the loop, at once.

        A shard that misses a report gets all with the next.
        """
        start_task(self._report(bounds), self._tasks, "psnb settled commits")

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

    def _find_out(
        self,
        attempts: Attempts,
        closed: Sequence[str],
        settle: Callable[[Applied], None],
        fail: Callable[[bytes], None],
    ) -> None:
        async def run() -> None:
            try:
                self._require_open()
                shards = await self._shards()
                settle(
                    await resolve_in_doubt(shards, attempts, closed, self._ask, self._on_blocked)
                )
            except Exception as error:  # otherwise callers would wait for ever
                fail(pack_error(error, "raised while its outcome was resolved"))

        start_task(run(), self._tasks, "psnb resolving commits")

    def _on_blocked(self, error: ServerUnresponsiveError) -> None:
        self._require_open()
        self._handle(Blocked(error))

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


def _give_up(error: ServerUnresponsiveError) -> None:
    raise error
