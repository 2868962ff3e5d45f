"""A scheduler with an idle timeout, whose cluster holds parameters while nothing runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.core import Status

import psnb
from tests.conftest import wait_until
from tests.integration.clusters import dask_cluster

pytestmark = pytest.mark.second_tier(
    "waits for the end of a retention; test_layout_registry.py has what the scheduler does"
)

IDLE, RETENTION = 0.5, 2.0


@pytest.fixture
def local() -> Iterator[LocalCluster]:
    """A cluster of this process, but with sockets, whose scheduler may end before it."""
    # Or it would wait for its scheduler for half a minute.
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        dask_cluster() as found,
    ):
        yield found


def test_it_goes_on_as_long_as_a_strategy_is_kept_and_no_longer(local: LocalCluster) -> None:
    scheduler = local.scheduler
    client = Client(local.scheduler_address)
    strategy = psnb.ParameterServerStrategy(
        client, num_servers=1, heartbeat_timeout=0.5, retention=RETENTION
    )
    v = strategy.variable(np.zeros(1))
    scheduler.idle_timeout = IDLE  # only now: else it would end before
    threading.Event().wait(4 * IDLE)
    assert v.read() == 0
    left = time.monotonic()
    client.close()  # as if the notebook had died: what it had is kept for a while
    wait_until(lambda: scheduler.status is Status.closed, "its retention is over")
    assert time.monotonic() - left >= RETENTION
