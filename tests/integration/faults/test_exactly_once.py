"""A closure's effect on the parameters: once, whatever dies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client

import psnb
from psnb import errors
from tests.conftest import DEADLINE


def test_a_closure_that_fails_writes_nothing(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    v = strategy.variable(np.zeros(2, np.float32), optimizer=psnb.SGD(1.0))

    def fails() -> None:
        v.push(-np.ones(2, np.float32))
        raise ValueError("boo")

    coordinator.schedule(fails)
    with pytest.raises(ValueError, match="boo"):
        coordinator.join(DEADLINE)
    np.testing.assert_array_equal(v.read(), [0, 0])


def test_a_closure_whose_result_cannot_be_pickled_writes_nothing(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    v = strategy.variable(np.int64(0))

    def returns_a_lock() -> Any:
        v.assign_add(np.int64(1))
        return threading.Lock()

    coordinator.schedule(returns_a_lock)
    with pytest.raises(errors.SerializationError):
        coordinator.join(DEADLINE)
    assert int(v.read()) == 0


def test_a_closure_reads_its_own_writes_and_others_see_them_when_it_has_ended(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    v = strategy.variable(np.int64(0))
    table = strategy.embedding("rows", 2, initializer=0.0, optimizer=psnb.SGD(1.0))

    def writes_and_reads() -> tuple[int, float]:
        v.assign_add(np.int64(5))
        table.push([3], -np.ones((1, 2), np.float32))
        return int(v.read()), float(table.lookup([3]).sum())

    assert coordinator.schedule(writes_and_reads).fetch(DEADLINE) == (5, 2.0)
    assert int(v.read()) == 5
    np.testing.assert_array_equal(table.lookup([3]), [[1, 1]])


def test_servers_forget_the_closures_that_have_ended(
    cluster: Client,
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = strategy.variable(np.int64(0))
    for _ in range(5):
        for _ in range(200):
            coordinator.schedule(lambda: v.assign_add(np.int64(1)))
        coordinator.join(DEADLINE)

    def remembered(dask_worker: Any) -> list[int]:
        servers = dask_worker.plugins["psnb"]._servers._servers.values()
        return [len(held.shard.log) for each in servers for held in each.host._hosted.values()]

    assert int(v.read()) == 1000
    logs = [length for several in cluster.run(remembered).values() for length in several]
    assert len(logs) > 0
    assert max(logs) <= 400  # of 1,000; none if the last report has come by now


@pytest.mark.second_tier("endurance: random kills; test_faults.py and test_replicas.py have some")
def test_counts_are_exact_while_workers_and_servers_with_copies_are_killed_at_random() -> None:
    rng = random.Random(0)
    with (
        psnb.local_cluster(workers=2, servers=2) as client,
        psnb.ParameterServerStrategy(client, replicas=1) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        counter = strategy.variable(np.int64(0))
        table = strategy.embedding("rows", 4, initializer=0.0, optimizer=psnb.SGD(1.0))

        def count(row: int) -> None:
            counter.assign_add(np.int64(1))
            table.push([row], -np.ones((1, 4), np.float32))

        scheduled = kills = server_kills = 0
        killed: object = None
        per_row = np.zeros(10, np.int64)
        end = time.monotonic() + 20
        next_kill = time.monotonic() + 1
        pause = threading.Event()
        while (
            time.monotonic() < end
            or kills < 6
            or server_kills < 2
            or not coordinator.statistics().retried  # those that died were idle
        ):
            if coordinator.statistics().queued < 500:
                for _ in range(500):
                    row = rng.randrange(10)
                    coordinator.schedule(count, (row,), retries=100)
                    per_row[row] += 1
                    scheduled += 1
            if time.monotonic() > next_kill:
                ready = [w for w in coordinator.statistics().workers if w.state == "ready"]
                if ready:
                    _kill_listener(rng.choice(ready).address)
                    kills += 1
                servers = strategy._core.servers
                # One at a time: a second one dead, before anybody has noticed the first, is what
                # two copies do not survive.
                noticed = killed not in servers.running
                if noticed and all(place.synced for place in servers.layout.placements):
                    killed = rng.choice(servers.running)
                    _kill_listener(killed.address)
                    server_kills += 1
                next_kill = time.monotonic() + rng.uniform(0.2, 2.0)
            pause.wait(0.02)
        coordinator.join(4 * DEADLINE)
        statistics = coordinator.statistics()
        assert statistics.completed == scheduled
        assert int(counter.read()) == scheduled
        np.testing.assert_array_equal(table.lookup(np.arange(10)), np.tile(per_row, (4, 1)).T)


def _kill_listener(address: str) -> None:
    """Kill the process that listens at a Dask address, with no word to anybody."""
    port = int(address.rsplit(":", 1)[1])
    ours = {child.pid for child in psutil.Process().children(recursive=True)}
    for each in psutil.net_connections("inet"):
        if each.pid in ours and each.status == psutil.CONN_LISTEN and each.laddr.port == port:
            with contextlib.suppress(ProcessLookupError):  # it has gone by itself
                os.kill(each.pid, signal.SIGKILL)
