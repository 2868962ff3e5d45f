"""Clusters without processes: workers and servers are threads of this one."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import psnb
from psnb.errors import ConfigurationError

seen: list[int] = []
"""Closures of a cluster in this process see it, those of others a copy."""


def test_closures_run_in_this_process_and_see_its_modules() -> None:
    seen.clear()
    with (
        psnb.local_cluster(workers=1, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        remote = coordinator.schedule(_note, (7,))
        assert (remote.fetch(), seen) == (os.getpid(), [7])


def _note(number: int) -> int:
    seen.append(number)
    return os.getpid()


@pytest.mark.parametrize(
    "mode", [psnb.Async(), psnb.Sync(), psnb.BoundedStaleness(1), psnb.Geo(1)], ids=str
)
def test_an_epoch_has_its_effect_in_every_mode(mode: Any) -> None:
    with (
        psnb.local_cluster(workers=1, servers=2, processes=False) as client,
        psnb.ParameterServerStrategy(client, mode=mode, replicas=1) as strategy,
    ):
        count = strategy.variable(np.zeros(4), optimizer=psnb.SGD(1.0))
        rows = strategy.embedding("rows", 2, initializer=0.0, optimizer=psnb.SGD(1.0))
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(iterator: Any) -> None:
            ids = next(iterator)
            count.push(np.ones(4))
            rows.push(ids, np.ones((len(ids), 2), np.float32))

        data = psnb.data.Dataset.range(40).batch(10)
        iterator = iter(coordinator.create_per_worker_dataset(data, sharding="dynamic", splits=2))
        coordinator.run_epoch(step, iterator)
        assert count.read().tolist() == [-4.0] * 4
        assert rows.lookup(np.arange(40)).tolist() == [[-1.0, -1.0]] * 40


def test_workers_of_a_process_reach_servers_by_themselves_when_others_have_left() -> None:
    with (
        psnb.local_cluster(workers=2, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(1.0)
        with (
            psnb.local_cluster(workers=1, processes=False) as other,
            psnb.ParameterServerStrategy(other),
        ):
            assert coordinator.schedule(v.read).fetch() == 1  # not by the newest worker
            made = coordinator.create_per_worker_resource(v.read)
            assert coordinator.schedule(float, (made,)).fetch() == 1
        assert coordinator.schedule(v.read).fetch() == 1
        coordinator.retire_worker("worker-1")
        assert coordinator.schedule(v.read).fetch() == 1
        assert coordinator.schedule(_in_another_thread, (v.read,)).fetch() == 1


def _in_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def test_nothing_is_left_of_a_closed_one() -> None:
    before = set(threading.enumerate())
    client = psnb.local_cluster(workers=2, servers=1, processes=False)
    strategy = psnb.ParameterServerStrategy(client)
    coordinator = psnb.ClusterCoordinator(strategy)
    coordinator.schedule(sum, ([1, 2],)).fetch()
    strategy.close()
    client.close()
    left = set(threading.enumerate()) - before
    for each in left:
        each.join(5)
    assert not [each for each in left if each.is_alive()]


def test_streams_are_put_back_when_the_last_cluster_is_closed() -> None:
    out, err = sys.stdout, sys.stderr
    with psnb.local_cluster(workers=1, processes=False) as first:
        psnb.ParameterServerStrategy(first).close()
        with psnb.local_cluster(workers=1, processes=False) as second:
            psnb.ParameterServerStrategy(second).close()
            assert (sys.stdout is out, sys.stderr is err) == (False, False)
        assert sys.stdout is not out
    assert (sys.stdout is out, sys.stderr is err) == (True, True)


def test_dasks_own_streams_that_end_with_a_cluster_are_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = psnb.local_cluster(workers=1, processes=False)
    scheduler, logger = client.cluster.scheduler, logging.getLogger("distributed.batched")
    close = scheduler.close

    async def closing(*arguments: Any, **named: Any) -> None:
        logger.info("Batched Comm Closed")
        logger.warning("anything else")
        await close(*arguments, **named)

    monkeypatch.setattr(scheduler, "close", closing)
    with caplog.at_level(logging.INFO, "distributed.batched"):
        client.close()
        logger.info("afterwards")
    found = [each.message for each in caplog.records if each.name == "distributed.batched"]
    assert found == ["anything else", "afterwards"]


def test_security_is_for_processes() -> None:
    with pytest.raises(ConfigurationError, match="without processes nothing listens"):
        psnb.local_cluster(security=True, processes=False)
