"""Workers of the local cluster come back, however often they die."""

from __future__ import annotations

import os
import signal

import dask

import psnb
from psnb import EventKind
from tests.conftest import DEADLINE, wait_until


def test_a_worker_comes_back_though_dask_had_given_it_up() -> None:
    # Dask closes the nanny of a worker that is not there so long after it was lost: here, sooner
    # than a process can start.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10ms"}),
        psnb.local_cluster(workers=1, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        first = coordinator.schedule(os.getpid).fetch(DEADLINE)
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: any(e.kind is EventKind.WORKER_LOST for e in coordinator.events()), "it is lost"
        )
        assert coordinator.schedule(os.getpid).fetch(DEADLINE) != first
