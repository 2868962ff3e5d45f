"""What becomes of closures whose worker could not tell: the servers know."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from psnb._src.client.requests import Request
from psnb._src.coordinator.closures.remote_value import ClosureStatus
from psnb._src.coordinator.scheduling.instructions import ReportSettled
from psnb._src.coordinator.scheduling.scheduler import LEAST_REPORTED
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.workers.resolve import Resolver
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.errors import unpack_error
from psnb._src.protocol.messages import exchange_writer
from psnb._src.protocol.packing import dumps
from psnb._src.server.commit_log import Commit, CommitRecord
from psnb._src.server.operations import ApplyCommit, EndWriter, FenceCommits
from psnb.errors import InternalError, ServerLostError
from tests.conftest import DEADLINE
from tests.coordinator.queues import ClosureQueue, done, put, resolve

SHARD = ShardId("s", 0)
RESULT = dumps("done", "result")


class Strategy:
    """Servers that know of one commit, or of none."""

    shards = (SHARD,)

    def __init__(self, *facts: CommitRecord) -> None:
        self._facts = list(facts)

    async def ask(self, requests: Sequence[Request]) -> list[Any]:
        return [
            self._facts if isinstance(each.operation, FenceCommits) else None for each in requests
        ]


def running(queue: ClosureQueue) -> Work:
    """Return a closure that a worker has taken."""
    put(queue, 1)
    (closure,) = queue.take(100)
    return closure


def asked(queue: ClosureQueue, closure: Work, writer: str, *facts: CommitRecord) -> None:
    """Ask what became of commit 7 of a writer, whose answer the closure waits for."""
    _, result = done(closure, RESULT, steps=0)
    said = replace(result, in_doubt=(writer, 7))
    resolve(queue, Strategy(*facts), partial(queue.heard, closure, said))
    assert not queue.statistics().in_flight


def fact(writer: str) -> CommitRecord:
    return CommitRecord(Commit(writer, 7, shards=(SHARD,)), applied=True)


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_closure_whose_commit_is_applied_has_ended(exchanged: bool) -> None:
    queue = ClosureQueue(10)
    closure = running(queue)
    writer = exchange_writer(queue.name, 1) if exchanged else queue.name
    asked(queue, closure, writer, fact(writer))
    assert closure.remote.fetch() == "done"


def test_a_closure_whose_own_commit_is_not_applied_runs_again() -> None:
    queue = ClosureQueue(10)
    closure = running(queue)
    asked(queue, closure, queue.name)
    assert queue.take(100) == [closure]
    assert closure.execution.attempt == 2


class Broken(Strategy):
    async def ask(self, requests: Sequence[Request]) -> list[Any]:
        return [InternalError("no sense")] * len(requests)


def test_who_asks_about_a_commit_without_a_closure_gets_the_error() -> None:
    answers: list[bool] = []
    errors: list[bytes] = []

    async def resolve() -> None:
        queue = ClosureQueue(10)
        resolver = Resolver(queue.scheduler, Broken(), queue.handle)  # type: ignore[arg-type]
        resolver.ask_about(("writer", 7), answers.append, errors.append)
        await asyncio.gather(*resolver._tasks)

    asyncio.run(resolve())
    assert not answers
    assert isinstance(unpack_error(errors[0]), InternalError)


def test_commits_under_way_end_alike_before_a_closed_coordinator_is_forgotten() -> None:
    operations: list[Any] = []
    queue = ClosureQueue(10)

    class Recording(Strategy):
        async def ask(self, requests: Sequence[Request]) -> list[Any]:
            operations.extend(each.operation for each in requests)
            return await super().ask(requests)

    async def end() -> None:
        held = CommitRecord(Commit(queue.name, 7, shards=(SHARD,)), applied=False)
        strategy = Recording(held)
        resolver = Resolver(queue.scheduler, strategy, queue.handle)  # type: ignore[arg-type]
        resolver.end()
        await asyncio.gather(*resolver._tasks)

    asyncio.run(end())
    fence, conclusion, forget = operations
    assert fence.closed == [queue.name]
    assert isinstance(conclusion, ApplyCommit)
    assert forget == EndWriter(queue.name)


def test_one_that_was_cancelled_fails_if_it_cannot_be_found_out_what_it_wrote() -> None:
    queue = ClosureQueue(10)
    closure = running(queue)
    resolve(queue, Broken(), partial(queue.cancel_one, closure.remote))
    with pytest.raises(InternalError, match="no sense"):
        closure.remote.fetch()
    with pytest.raises(InternalError, match="no sense"):
        queue.join()


def test_a_closure_whose_exchange_is_not_applied_fails_for_all_that_took_part() -> None:
    queue = ClosureQueue(10)
    closure = running(queue)
    asked(queue, closure, exchange_writer(queue.name, 1))
    assert closure.remote.status is ClosureStatus.FAILED
    with pytest.raises(ServerLostError, match="had learned together"):
        queue.join()


class Told(Strategy):
    """Servers that note what they are told; some never answer."""

    OTHER = ShardId("s", 1)
    shards = SHARD, OTHER  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[ShardId, Any]] = []

    async def ask(self, requests: Sequence[Request]) -> list[Any]:
        for each in requests:
            assert isinstance(each.to, ShardId)
            self.told.append((each.to, each.operation))
            if each.to == self.OTHER:
                await asyncio.Event().wait()
        return [[]] * len(requests)


def test_servers_are_told_what_is_settled_when_as_much_is_as_is_in_flight() -> None:
    queue, strategy = ClosureQueue(1000), Told()
    put(queue, 1000)
    others = queue.take(1000)[1:]

    async def work() -> None:
        resolver = Resolver(queue.scheduler, strategy, queue.handle)  # type: ignore[arg-type]
        in_flight, reports = queue.scheduler.in_flight, list[ReportSettled]()
        queue.on[ReportSettled] = reports.append
        for closure in others:
            _, result = done(closure)
            queue.heard(closure, result)
            while reports:
                resolver.report_settled(reports.pop().bounds)
            await asyncio.sleep(0)
            assert in_flight.unreported <= max(LEAST_REPORTED, len(in_flight))
        async with asyncio.timeout(DEADLINE):
            while len(resolver._tasks) > 1:  # the last is of the shard that does not answer
                await asyncio.sleep(0)
        for task in resolver._tasks:
            task.cancel()

    asyncio.run(work())
    fences = [fence for shard, fence in strategy.told if shard == SHARD]
    assert fences[-1].settled == {queue.name: (1, 1000 - queue.scheduler.in_flight.unreported)}
    assert 2 < len(fences) < 1000 / LEAST_REPORTED
    assert len(strategy.told) == len(fences) + 1
