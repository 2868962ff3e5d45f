"""How many closures a worker runs at the same time, on real workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from distributed import Client

import psnb
from psnb.errors import ConfigurationError

WAIT = 20.0


@pytest.fixture
def client() -> Iterator[Client]:
    with psnb.local_cluster(workers=1, processes=False) as client:
        yield client


@pytest.fixture
def coordinator(client: Client) -> Iterator[psnb.ClusterCoordinator]:
    with psnb.ParameterServerStrategy(client) as strategy:
        yield psnb.ClusterCoordinator(strategy)


meeting = threading.Barrier(3)
"""Closures of a cluster in this process meet here, if three run at the same time."""


def _meet() -> None:
    meeting.wait(WAIT)


def _name() -> str:
    return threading.current_thread().name


def test_more_threads_run_more_closures_at_the_same_time(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    coordinator.use_threads(3)
    for _ in range(6):
        coordinator.schedule(_meet)
    coordinator.join(WAIT)


def test_a_worker_goes_back_to_its_own_threads(coordinator: psnb.ClusterCoordinator) -> None:
    coordinator.use_threads(3)
    for _ in range(3):
        coordinator.schedule(_meet)
    coordinator.join(WAIT)
    coordinator.use_threads(None)
    # The threads that are too many take one more closure each at most, before their end.
    coordinator.fetch([coordinator.schedule(_name) for _ in range(20)])
    assert len(set(coordinator.fetch([coordinator.schedule(_name) for _ in range(20)]))) == 1


def test_workers_that_join_later_do_the_same(
    client: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    coordinator.use_threads(3)
    client.cluster.scale(3)
    for _ in range(3):
        coordinator.schedule(_meet, worker="worker-1")
    coordinator.join(WAIT)


def test_no_threads_are_refused(coordinator: psnb.ClusterCoordinator) -> None:
    with pytest.raises(ConfigurationError, match="use_threads: count"):
        coordinator.use_threads(0)
