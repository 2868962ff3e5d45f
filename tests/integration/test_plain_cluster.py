"""A Dask cluster without roles, from the command line: the worker that became a server stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import (
    CommandLine,
    Steps,
    address_of,
    pid_of,
    state_of,
    wait_until_ended,
    worker_name,
)

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Client]:
    """Three workers that nobody starts again."""
    cluster = CommandLine(tmp_path, anew=True)
    with ExitStack() as stack:
        stack.enter_context(cluster.scheduler())
        for name in NAMES:
            stack.enter_context(cluster.worker("--name", name, "--no-nanny"))
        client = stack.enter_context(Client(scheduler_file=cluster.file))
        client.wait_for_workers(3, timeout=DEADLINE)
        yield client


def test_dask_scales_a_plain_cluster_down_to_its_server(plain: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(plain, num_servers=1) as strategy:
        (server,) = strategy.server_addresses
        v = strategy.variable(np.arange(3))
        coordinator = psnb.ClusterCoordinator(strategy)

        def may_go(dask_scheduler: Any) -> list[list[str]]:
            # What adaptive scaling and `retire_workers` ask, in each of the ways they may.
            ask = dask_scheduler.workers_to_close
            return [ask(n=1), ask(n=2), ask(n=3), ask(target=0), ask(memory_ratio=1)]

        for addresses in plain.run_on_scheduler(may_go):
            assert server not in addresses

        steps = Steps(tmp_path)
        remotes = [coordinator.schedule(steps) for _ in range(2)]
        busy = set(steps.begun(2))
        first, last = sorted(busy)
        pids = [pid_of(plain, name) for name in (first, last)]
        plain.retire_workers([address_of(plain, first)])
        wait_until(lambda: state_of(coordinator, first) == "draining", "the first drains")
        steps.end()
        assert set(coordinator.fetch(remotes)) == busy
        wait_until(lambda: strategy.num_workers == 1, "the first has left")
        assert coordinator.schedule(worker_name).fetch(DEADLINE) == last

        # Asked to give up all it can, Dask gives up the last worker, and the server stays.
        def asked() -> bool:
            # It may have heard last that the worker holds a closure, and hears otherwise soon.
            plain.sync(plain.scheduler.retire_workers, n=2)
            return strategy.num_workers == 0

        wait_until(asked, "the last has left")
        wait_until_ended(*pids)
        np.testing.assert_array_equal(v.read(), np.arange(3))
