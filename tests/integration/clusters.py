"""Small clusters, however they were started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import psnb
from tests.conftest import DEADLINE, connected
from tests.integration.helpers import CommandLine

BOTH = ("local", "command line")
"""How a cluster is started."""


def on_both(fixture: str) -> pytest.MarkDecorator:
    """Mark a test that uses a fixture's cluster: it runs on one of each kind."""
    local, by_hand = BOTH
    second = pytest.mark.second_tier("on a cluster from the command line as on a local one")
    return pytest.mark.parametrize(
        fixture, [local, pytest.param(by_hand, marks=second)], indirect=True
    )


@contextmanager
def cluster_of(kind: str, folder: Path, servers: int = 2) -> Iterator[Client]:
    """Run a cluster of two workers and some servers, all with nannies, until the block ends."""
    with ExitStack() as stack:
        if kind == "local":
            yield stack.enter_context(psnb.local_cluster(workers=2, servers=servers))
            return
        line = CommandLine(folder)
        stack.enter_context(line.scheduler())
        options = {f"worker-{number}": () for number in range(2)}
        options |= {f"server-{number}": ("--resources", "ps=1") for number in range(servers)}
        for name, more in options.items():
            stack.enter_context(line.worker("--name", name, *more))
        client = stack.enter_context(connected(line.file))
        client.wait_for_workers(len(options), timeout=DEADLINE)
        yield client


@contextmanager
def dask_cluster() -> Iterator[LocalCluster]:
    """Run a cluster of Dask's own, in this process but with sockets, until the block ends."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        memory_limit=None,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
    ) as found:
        yield found
