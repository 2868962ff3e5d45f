"""Clusters that a test may harm: local ones, unless `clusters.on_both` says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster

from tests.integration.clusters import BOTH, cluster_of
from tests.integration.counting import signalled
from tests.integration.helpers import wait_until_ended, wait_until_whole

Request, Folders = pytest.FixtureRequest, pytest.TempPathFactory


def _cluster(request: Request, folders: Folders, servers: int) -> Iterator[Client]:
    kind = getattr(request, "param", BOTH[0])
    with cluster_of(kind, folders.mktemp("dask"), servers) as client:
        yield client


@pytest.fixture
def fragile(request: Request, tmp_path_factory: Folders) -> Iterator[Client]:
    """A cluster of two workers and one server for one test alone."""
    yield from _cluster(request, tmp_path_factory, 1)


@pytest.fixture
def pair(request: Request, tmp_path_factory: Folders) -> Iterator[Client]:
    """A cluster of two workers and two servers for one test alone."""
    yield from _cluster(request, tmp_path_factory, 2)


@pytest.fixture(scope="module")
def started(request: Request, tmp_path_factory: Folders) -> Iterator[Client]:
    """Two workers and two servers for one module alone, which nannies start again."""
    yield from _cluster(request, tmp_path_factory, 2)


@pytest.fixture
def whole(started: Client) -> Client:
    """That cluster, once nobody is missing or about to end: Dask still lists those for a moment."""
    wait_until_ended(*signalled)
    signalled.clear()
    wait_until_whole(started, 4)
    return started


@pytest.fixture
def plain() -> Iterator[Client]:
    """A Dask cluster of two workers that psnb did not start and that knows no roles."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            memory_limit=None,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
