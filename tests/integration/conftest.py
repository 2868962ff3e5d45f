"""Clusters that a test may harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client

import psnb
from tests.integration.helpers import wait_until_whole


@pytest.fixture
def fragile() -> Iterator[Client]:
    """A cluster of two workers and one server for one test alone."""
    with psnb.local_cluster(workers=2, servers=1) as client:
        yield client


@pytest.fixture(scope="module")
def started() -> Iterator[Client]:
    """Two workers and two servers for one module alone, which nannies start again."""
    with psnb.local_cluster(workers=2, servers=2) as client:
        yield client


@pytest.fixture
def whole(started: Client) -> Client:
    """That cluster, once nobody is missing."""
    wait_until_whole(started, 4)
    return started
