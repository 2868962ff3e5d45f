"""PartitionFeed asks Dask about each partition once, some at a time: questions and keys counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.coordinator.datasets import dask_source
from psnb._src.coordinator.datasets.dask_source import PartitionFeed
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.protocol.messages import AskLease, Taken
from tests.conftest import wait_until

WORKERS = [f"w{n}" for n in range(4)]


class Cluster:
    """Answers as Dask's scheduler would, and counts what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
        self.workers = {f"tcp://{name}": name for name in WORKERS}
        addresses = [*self.workers]
        self.where = [addresses[n % len(addresses)] for n in range(partitions)]
        self.status = ["finished"] * partitions
        self.asked: list[int] = []  # keys of each question
        self.identities = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop")
        self._thread.start()
        monkeypatch.setattr(dask_source, "holders", self._holders)
        monkeypatch.setattr(dask_source, "scheduler_identity", self._identity)
        monkeypatch.setattr(dask_source, "_is_kept", lambda part: True)
        self.strategy: Any = SimpleNamespace(
            client=SimpleNamespace(loop=SimpleNamespace(asyncio_loop=self.loop)),
            closure_workers=lambda identity: dict(self.workers),
        )
        future = type("Future", (), {"status": property(lambda each: self.status[each.number])})
        self.source: Any = SimpleNamespace(
            partitions=[future() for _ in range(partitions)],
            keys=tuple(range(partitions)),
            persisted=True,
        )
        for number, each in enumerate(self.source.partitions):
            each.number = number
        self.leases = LeaseRegistry()
        for name in WORKERS:
            self.leases.enter(name, name)
        self.epoch = self.leases.open(partitions)
        splits = [[n] for n in range(partitions)]
        self.feed = PartitionFeed(self.strategy, self.leases, self.source, splits, self.epoch)
        self._step = 0

    async def _holders(self, client: Any, keys: list[int]) -> dict[int, list[str]]:
        self.asked.append(len(keys))
        await asyncio.sleep(0)  # as for an answer
        return {key: [each] for key in keys if (each := self.where[key]) in self.workers}

    async def _identity(self, client: Any) -> dict[str, Any]:
        self.identities += 1
        return {}

    def lease(self, worker: str) -> int | None:
        """Have a worker read what it gets; return the split."""

        def lease() -> int | None:
            found = self.leases.lease(worker, AskLease(self.epoch, self._step, None))
            if found is not None:
                self.leases.take(worker, Taken(self.epoch, found.number, self._step, 0, 1, 1, True))
            self._step += 1
            return None if found is None else found.split

        return asyncio.run_coroutine_threadsafe(_called(lease), self.loop).result(10)

    def end(self) -> None:
        self.feed.close()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _called(function: Any) -> Any:
    return function()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(monkeypatch, getattr(request, "param", 2000))
    yield made
    made.end()


def test_each_partition_is_asked_about_at_the_beginning_and_when_it_is_leased(
    cluster: Cluster,
) -> None:
    cluster.feed.begin()
    partitions = len(cluster.where)
    assert sum(cluster.asked) == partitions
    for turn in range(partitions // len(WORKERS)):
        for number, worker in enumerate(WORKERS):
            assert cluster.lease(worker) == turn * len(WORKERS) + number  # its own, in order
    wait_until(lambda: not cluster.feed._leased, "the last look")
    assert sum(cluster.asked) <= 2 * partitions
    assert max(cluster.asked) <= 2 * dask_source._AT_ONCE
    assert cluster.identities < 30  # by the clock, whatever the number of leases


def test_partitions_of_a_worker_that_has_gone_are_asked_about_again_and_no_others(
    cluster: Cluster,
) -> None:
    cluster.feed.begin()
    asked, gone = sum(cluster.asked), cluster.where[0]
    lost = [n for n, each in enumerate(cluster.where) if each == gone]
    for number in lost:
        cluster.where[number] = cluster.where[1]  # computed again there
    del cluster.workers[gone]
    cluster.leases.leave("w0")

    def all_known() -> bool:
        cluster.lease("w3")  # so that it looks
        return cluster.feed._places[lost[-1]] == {cluster.where[1]} and not cluster.feed._unknown

    wait_until(all_known, "all were asked about again")
    assert sum(cluster.asked) - asked <= len(lost) + cluster._step
    assert max(cluster.asked) <= 2 * dask_source._AT_ONCE
    assert cluster.lease("w1") == 0


def test_a_lease_that_shows_a_partition_elsewhere_has_all_others_asked_about(
    cluster: Cluster,
) -> None:
    cluster.feed.begin()
    cluster.where[:] = reversed(cluster.where)  # as `client.rebalance` may have it
    assert cluster.lease("w0") == 0
    wait_until(lambda: sum(cluster.asked) >= 2 * len(cluster.where), "all were asked about again")
    last = len(cluster.where) - 1
    moved = lambda: cluster.feed._places[last] == {cluster.where[last]}  # noqa: E731
    wait_until(lambda: moved() and not cluster.feed._unknown, "all are known")
    assert [cluster.lease(each) for each in WORKERS] == [3, 2, 1, 4]


@pytest.mark.parametrize("cluster", [600], indirect=True)
def test_partitions_that_are_being_computed_are_found_when_they_are_there(cluster: Cluster) -> None:
    cluster.status[:] = ["pending"] * len(cluster.where)
    cluster.feed.begin()
    assert cluster.asked == []
    cluster.status[:] = ["finished"] * len(cluster.where)
    wait_until(lambda: not cluster.feed._unknown, "all are known")
    assert sum(cluster.asked) == len(cluster.where)
    assert [cluster.lease(each) for each in reversed(WORKERS)] == [3, 2, 1, 0]


@pytest.mark.parametrize("cluster", [600], indirect=True)
def test_what_dask_did_not_answer_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.feed.begin()
    gone = cluster.where[0]
    for number, each in enumerate(cluster.where):
        if each == gone:
            cluster.where[number] = cluster.where[1]
    failures = [OSError("the scheduler is gone for a moment")] * 3

    async def fails(client: Any, keys: list[int]) -> dict[int, list[str]]:
        if failures:
            raise failures.pop()
        return await cluster._holders(client, keys)

    monkeypatch.setattr(dask_source, "holders", fails)
    del cluster.workers[gone]
    cluster.leases.leave("w0")
    wait_until(
        lambda: not failures and not cluster.feed._unknown and "w0" not in cluster.feed._workers,
        "all are known",
    )
    assert cluster.lease("w1") == 0
