"""Little memory: closures that need more of it than a server may have, among others that do not."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import psutil

import psnb
from psnb import errors
from psnb._src.cluster.roles import identity
from tests.soak.notebook import DEADLINE, ViolationError
from tests.soak.table import Row

_DIM, _ROOM = 64, 100_000_000
_MODES = (psnb.Async(), psnb.Sync(2), psnb.BoundedStaleness(3), psnb.Geo(1))


def _limit(room: int) -> None:
    """Limit this process's memory to so many bytes more than it has."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))


def train_in_little_memory(row: Row, rng: np.random.Generator, seconds: float) -> None:
    """Train until servers have no memory, in all modes, with copies or without."""
    end = time.monotonic() + seconds
    for mode, replicas in _kinds():
        with (
            psnb.local_cluster(workers=2, servers=2) as client,
            psnb.ParameterServerStrategy(client, replicas=replicas, mode=mode) as strategy,
        ):
            _train(strategy, row, rng)
        if time.monotonic() > end:
            return


def _kinds() -> Iterator[tuple[psnb.Mode, int]]:
    while True:
        for replicas in (0, 1):
            yield from ((mode, replicas) for mode in _MODES)


def _train(strategy: psnb.ParameterServerStrategy, row: Row, rng: np.random.Generator) -> None:
    begin = time.monotonic()
    counters = [strategy.variable(np.int64(0), f"counter {i}") for i in range(4)]
    table = strategy.embedding("t", _DIM, initializer=0.0, optimizer=psnb.SGD(1.0))
    coordinator = psnb.ClusterCoordinator(strategy)

    def step(first: int, rows: int) -> None:
        for each in counters[:2]:
            each.assign_add(np.int64(1))
        table.push(np.arange(first, first + rows), -np.ones((rows, _DIM), np.float32))
        for each in counters[2:]:
            each.assign_add(np.int64(1))

    # Only now: a thread that begins takes tens of megabytes of addresses for what it may allocate.
    coordinator.schedule(step, (10**9, 1)).fetch(DEADLINE)
    client = strategy.client
    servers = identity(client)["workers"]
    limited = [a for a, each in servers.items() if str(each["name"]).startswith("server")]
    client.run(_limit, _ROOM, workers=limited[: int(rng.integers(1, 3))])

    failed = 0
    for number in range(200):
        rows = int(rng.integers(1, 12_000))
        try:
            coordinator.schedule(step, (number * 20_000, rows)).fetch(DEADLINE)
        except errors.ServerMemoryError:
            failed += 1
            with suppress(errors.ServerMemoryError):
                coordinator.join(DEADLINE, progress=False)
    completed = coordinator.statistics().completed
    found = [int(each.read()) for each in counters]
    row.closures += completed
    row.note = f"{failed} of 200 closures of the last run needed more memory than there was"
    row.seconds += time.monotonic() - begin
    if found != [completed] * len(counters) or completed + failed != 201:
        raise ViolationError(
            f"{strategy.mode} counters {found}, {completed} completed and {failed} failed"
        )
