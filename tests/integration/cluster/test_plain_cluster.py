"""A Dask cluster without roles: the worker that became a server stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

import psnb
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.helpers import (
    CommandLine,
    Steps,
    address_of,
    pid_of,
    state_of,
    wait_until_ended,
    worker_name,
)

NAMES = ("a", "b", "c")


@pytest.fixture
def plain() -> Iterator[Client]:
    """Three workers in this process, that psnb did not start."""
    link = {"protocol": "inproc://", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    worker = {"cls": Worker, "options": {**link, "nthreads": 1, "memory_limit": None}}
    scheduler = {"cls": Scheduler, "options": {**link, "port": 0}}
    with (
        SpecCluster(dict.fromkeys(NAMES, worker), scheduler) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Client]:
    """Three workers from the command line, that nobody starts again."""
    cluster = CommandLine(tmp_path, anew=True)
    with ExitStack() as stack:
        stack.enter_context(cluster.scheduler())
        for name in NAMES:
            stack.enter_context(cluster.worker("--name", name, "--no-nanny"))
        client = stack.enter_context(connected(cluster.file))
        client.wait_for_workers(3, timeout=DEADLINE)
        yield client


def scale_down_to_the_server(client: Client, folder: Path) -> list[int]:
    """Have Dask take away all that it may; return the processes of those that are gone."""
    with psnb.ParameterServerStrategy(client, num_servers=1) as strategy:
        (server,) = strategy.server_addresses
        v = strategy.variable(np.arange(3))
        coordinator = psnb.ClusterCoordinator(strategy)

        def may_go(dask_scheduler: Any) -> list[list[str]]:
            # What adaptive scaling and `retire_workers` ask, in each of the ways they may.
            ask = dask_scheduler.workers_to_close
            return [ask(n=1), ask(n=2), ask(n=3), ask(target=0), ask(memory_ratio=1)]

        for addresses in client.run_on_scheduler(may_go):
            assert server not in addresses

        steps = Steps(folder)
        remotes = [coordinator.schedule(steps) for _ in range(2)]
        busy = set(steps.begun(2))
        first, last = sorted(busy)
        pids = [pid_of(client, name) for name in (first, last)]
        client.retire_workers([address_of(client, first)])
        wait_until(lambda: state_of(coordinator, first) == "draining", "the first drains")
        steps.end()
        assert set(coordinator.fetch(remotes)) == busy
        wait_until(lambda: strategy.num_workers == 1, "the first has left")
        assert coordinator.schedule(worker_name).fetch(DEADLINE) == last

        # Asked to give up all it can, Dask gives up the last worker, and the server stays.
        def asked() -> bool:
            # It may have heard last that the worker holds a closure, and hears otherwise soon.
            client.sync(client.scheduler.retire_workers, n=2)
            return strategy.num_workers == 0

        wait_until(asked, "the last has left")
        np.testing.assert_array_equal(v.read(), np.arange(3))
    return pids


def test_dask_scales_a_plain_cluster_down_to_its_server(plain: Client, tmp_path: Path) -> None:
    scale_down_to_the_server(plain, tmp_path)


@pytest.mark.second_tier("a second kind of cluster: processes as people start them")
def test_dask_scales_one_from_the_command_line_down_to_its_server(
    by_hand: Client, tmp_path: Path
) -> None:
    wait_until_ended(*scale_down_to_the_server(by_hand, tmp_path))
