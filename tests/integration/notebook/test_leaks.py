"""What a strategy and its coordinator leave behind when they end: nothing, in any process."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
from distributed import Client

import psnb
from psnb import errors
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import pid_of

ENDURANCE = pytest.mark.second_tier("endurance: 46 strategies, one after another")

WHO = ("notebook", "worker-0", "server-0")
WARM_UP = 3
MEGABYTE = 1 << 20
EACH = 20 * MEGABYTE
"""Bytes that a round keeps on the worker, and as many on the server."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    descriptors: int
    threads: int
    memory: int  # bytes in use


_TELLS = hasattr(ctypes.CDLL(None), "mallinfo2")  # since glibc 2.33


class _Malloc(ctypes.Structure):
    """What malloc tells of itself: ``struct mallinfo2`` of glibc."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    ]


def _kept_by_malloc() -> int:
    """Return the bytes that malloc keeps for later: an array or two for each thread there was."""
    if not _TELLS:
        return 0
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Malloc
    return int(mallinfo2().fordblks)


def _footprint() -> Footprint:
    """Measure the process that calls."""
    gc.collect()
    process = psutil.Process()
    used = process.memory_info().rss - _kept_by_malloc()
    return Footprint(process.num_fds(), process.num_threads(), used)


def _footprints(client: Client) -> dict[str, Footprint]:
    """Measure the notebook, the worker and the server."""
    measured = client.run(lambda dask_worker: (str(dask_worker.name), _footprint()))
    return {"notebook": _footprint(), **dict(measured.values())}


def _servers(client: Client) -> int:
    return sum(client.run(lambda dask_worker: len(dask_worker.plugins["psnb"]._servers)).values())


def _is_free(client: Client) -> bool:
    # Collected each time: a thread that is about to end may have held the strategy the time before.
    gc.collect()
    return _servers(client) == 0


def _round(client: Client, close: bool) -> None:
    """Make one of everything, use it, and end it."""
    strategy = psnb.ParameterServerStrategy(client)
    coordinator = psnb.ClusterCoordinator(strategy)
    v = strategy.variable(np.ones(EACH // 8))
    rows = strategy.embedding("rows", 4, optimizer=psnb.SGD(0.1))
    iterator = iter(coordinator.create_per_worker_dataset(range(100)))
    ballast = coordinator.create_per_worker_resource(np.ones, (EACH // 8,))

    def step(iterator: Iterator[int], ballast: np.ndarray) -> float:
        rows.push([next(iterator)], np.ones((1, 4), np.float32))
        return float(ballast[0])

    remotes = [coordinator.schedule(step, (iterator, ballast)) for _ in range(50)]
    assert coordinator.fetch(remotes) == [1.0] * 50
    failing = coordinator.schedule(lambda: 1 / 0)
    with suppress(ZeroDivisionError):
        coordinator.join(DEADLINE)
    assert failing.done()
    assert float(v.read()[0]) == 1.0
    if close:
        coordinator.close()
        strategy.close()


@dataclass(frozen=True)
class Growth:
    """What processes held after the first rounds, and after so many more."""

    rounds: int
    before: dict[str, Footprint]
    after: dict[str, Footprint]

    def of(self, who: str, what: str) -> int:
        """Return by how much it has grown."""
        before, after = self.before[who], self.after[who]
        return int(getattr(after, what) - getattr(before, what))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A worker and a server that nobody else uses."""
    with psnb.local_cluster(workers=1, servers=1) as client:
        yield client


@pytest.fixture(scope="module", params=[(True, 20), (False, 20)], ids=["closed", "dropped"])
def growth(client: Client, request: pytest.FixtureRequest) -> Growth:
    """Rounds after rounds, each closed or just not held any more."""
    close, number = request.param

    def rounds(number: int) -> dict[str, Footprint]:
        for _ in range(number):
            _round(client, close)
            wait_until(lambda: _is_free(client), "the server is free")
        return _footprints(client)

    return Growth(number, rounds(WARM_UP), rounds(number))


@ENDURANCE
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("what", ["descriptors", "threads"])
def test_no_descriptor_and_no_thread_is_left_in_any_process(
    growth: Growth, who: str, what: str
) -> None:
    # One for each round would be a leak; Dask's pools of connections breathe by one or two.
    assert growth.of(who, what) < growth.rounds / 2


@ENDURANCE
@pytest.mark.skipif(not _TELLS, reason="this system's malloc does not tell what it keeps")
@pytest.mark.parametrize("who", WHO)
def test_memory_does_not_grow_in_any_process(growth: Growth, who: str) -> None:
    assert growth.of(who, "memory") < EACH / 2


def test_the_servers_memory_is_free_once_a_strategy_is_closed(client: Client) -> None:
    server = psutil.Process(pid_of(client, "server-0"))

    def memory() -> int:  # with what malloc keeps: this array is too large for that
        return int(server.memory_info().rss)

    big = 100 * MEGABYTE
    before = memory()
    with psnb.ParameterServerStrategy(client) as strategy:
        held = strategy.variable(np.ones(big // 8))
        assert memory() - before > big * 0.9
    wait_until(lambda: _servers(client) == 0, "the tables are gone")
    wait_until(lambda: memory() - before < big * 0.2, "the memory is given back")
    with pytest.raises(errors.CoordinatorClosedError):
        held.read()
