"""Servers whose nannies end them when they have too much memory: they refuse before that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.monitor.events import EventKind
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.helpers import CommandLine

pytestmark = pytest.mark.second_tier("fills two servers, twice: 8 seconds of CPU time each")

DIM, ROWS = 64, 20_000
LIMIT = 600_000_000
"""Bytes; its nanny ends a server at 95 % of them. It begins with 150 MB, and has 250 MB once it has
compiled kernels that no process has compiled before."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with ExitStack() as stack:
        line = CommandLine(tmp_path)
        stack.enter_context(line.scheduler())
        stack.enter_context(line.worker("--name", "worker", "--memory-limit", "0"))
        for number in range(2):
            limit = "--memory-limit", str(LIMIT)
            named = "--name", f"server-{number}", "--resources", "ps=1"
            stack.enter_context(line.worker(*named, *limit))
        client = stack.enter_context(connected(line.file))
        client.wait_for_workers(3, timeout=DEADLINE)
        yield client


@pytest.mark.parametrize("replicas", [0, 1])
def test_ids_that_never_repeat_end_in_an_error_and_no_server_dies(
    client: Client, replicas: int
) -> None:
    processes = client.run(os.getpid)
    with psnb.ParameterServerStrategy(client, replicas=replicas) as strategy:
        count = strategy.variable(np.int64(0), "count")
        table = strategy.embedding(
            "t", DIM, initializer=0.0, optimizer=psnb.Adagrad(0.1), accessor=psnb.CtrAccessor()
        )
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(number: int) -> None:
            table.push(np.arange(ROWS) + number * ROWS, -np.ones((ROWS, DIM), np.float32))
            count.assign_add(np.int64(1))

        def fill(number: int) -> int:
            """Train until a server refuses, and a little longer; return the next number."""
            why: list[str] = []
            while len(why) < 5:
                try:
                    coordinator.schedule(step, (number,)).fetch(DEADLINE)
                    number += 1
                except errors.ServerMemoryError as error:
                    why.append(str(error))
                    with pytest.raises(errors.ServerMemoryError):
                        coordinator.join(DEADLINE)
            assert all("of 't'" in each for each in why)
            assert all("Dask's nanny ends its process" in each for each in why)
            assert int(count.read()) == number
            return number

        number = fill(0)
        assert number * ROWS * 2 * DIM * 4 > 150_000_000
        for first in (0, (number - 1) * ROWS):
            assert table.lookup(np.arange(1000) + first, training=False).all()
        new = number * ROWS + np.arange(1000)
        assert not table.lookup(new, training=False).any()
        with pytest.raises(errors.ServerMemoryError, match="LookUpRows of 't'"):
            table.lookup(np.arange(number * ROWS), training=False)
        wait_until(
            lambda: any(each.kind is EventKind.SERVER_NEARLY_FULL for each in coordinator.events()),
            "it is said that a server is nearly full",
        )
        wait_until(lambda: _left(coordinator) < 0.2 * LIMIT, "it is shown how little is left")

        assert table.shrink() == number * ROWS  # none was shown
        last = fill(number)
        assert last > number + (number // 2)
        assert client.run(os.getpid) == processes


def _left(coordinator: psnb.ClusterCoordinator) -> float:
    """Return how many bytes the fullest server may still have."""
    servers = coordinator.statistics().servers
    known = [(each.memory, each.memory_limit) for each in servers]
    return min(
        (limit - used for used, limit in known if used is not None and limit is not None),
        default=LIMIT,
    )
