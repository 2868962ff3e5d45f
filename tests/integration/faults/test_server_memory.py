"""Servers whose processes may have little memory, as under `ulimit -v`."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from functools import partial

import numpy as np
import psutil
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, wait_until

ROWS, DIM = 4000, 64
ROOM = 100_000_000
"""Bytes that the servers may take beyond what they have."""

OTHERS = pytest.mark.second_tier("as in mode Async: tests/server/test_memory.py has all modes")
MODES = {
    "Async": (psnb.Async(), 0),
    "Sync": (psnb.Sync(1), 0),
    "BoundedStaleness": (psnb.BoundedStaleness(2), 0),
    "Geo": (psnb.Geo(1), 0),
    "with copies": (psnb.Async(), 1),
}


def limit(room: int) -> int:
    """Limit this process's memory to so much more than it has; return its process id."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
    return os.getpid()


@pytest.fixture
def client() -> Iterator[Client]:
    with psnb.local_cluster(workers=1, servers=2) as client:
        yield client


def limit_a_server(client: Client) -> None:
    """Give a server little memory from now on.

    After its first closure: a thread that begins takes tens of megabytes of addresses.
    """
    workers = identity(client)["workers"].items()
    (address,) = (address for address, each in workers if each["name"] == "server-1")
    client.run(limit, ROOM, workers=[address])


def looked_up(table: psnb.Embedding, ids: np.ndarray) -> np.ndarray:
    """Look up in small parts, for which the server has memory again in a moment."""
    found: list[np.ndarray] = []

    def look_up(part: np.ndarray) -> bool:
        try:
            found.append(table.lookup(part, training=False))
        except errors.ServerMemoryError:
            return False
        return True

    for part in np.array_split(ids, 20):
        wait_until(partial(look_up, part), "there is memory for an answer")
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("mode", "replicas"),
    [
        pytest.param(*each, id=name, marks=() if name == "Async" else OTHERS)
        for name, each in MODES.items()
    ],
)
def test_a_closure_that_a_server_has_no_memory_for_fails_and_the_rest_goes_on(
    client: Client, mode: psnb.Mode, replicas: int
) -> None:
    with psnb.ParameterServerStrategy(client, replicas=replicas, mode=mode) as strategy:
        before = [strategy.variable(np.int64(0), f"before {i}") for i in range(2)]
        table = strategy.embedding(
            "t", DIM, initializer=0.0, optimizer=psnb.SGD(1.0), dtype=np.float64
        )
        after = [strategy.variable(np.int64(0), f"after {i}") for i in range(2)]
        coordinator = psnb.ClusterCoordinator(strategy)

        def ids(number: int, rows: int) -> np.ndarray:
            return np.arange(rows) + number * ROWS

        def step(number: int, rows: int) -> None:
            for each in before:
                each.assign_add(np.int64(1))
            table.push(ids(number, rows), -np.ones((rows, DIM)))
            for each in after:
                each.assign_add(np.int64(1))

        coordinator.schedule(step, (0, ROWS)).fetch(DEADLINE)
        limit_a_server(client)
        number, refused = 1, None
        while refused is None:
            try:
                coordinator.schedule(step, (number, ROWS)).fetch(DEADLINE)
                number += 1
            except errors.ServerMemoryError as error:
                refused = error
        assert "of 't'" in str(refused)
        assert "(ulimit -v)" in str(refused)
        with pytest.raises(errors.ServerMemoryError):
            coordinator.join(DEADLINE)  # which has every error once more
        assert [int(each.read()) for each in (*before, *after)] == [number] * 4
        assert not looked_up(table, ids(number, ROWS)).any()
        assert looked_up(table, ids(number - 1, ROWS)).all()
        coordinator.schedule(step, (0, 1)).fetch(DEADLINE)  # which needs no more
        coordinator.join(DEADLINE)
        assert [int(each.read()) for each in (*before, *after)] == [number + 1] * 4
