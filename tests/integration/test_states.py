"""The states that people see, after what happens to real clusters."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import psnb
from tests.conftest import DEADLINE, wait_until

pytestmark = pytest.mark.slow


def state(coordinator: psnb.ClusterCoordinator) -> str:
    return coordinator.statistics().state


def test_a_server_that_is_killed_with_its_parameters_is_told_until_they_are_brought_back(
    tmp_path: Path,
) -> None:
    with (
        psnb.local_cluster(workers=1, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        variable = strategy.variable(np.zeros(2, np.float32), name="weights")
        psnb.CheckpointManager(coordinator, tmp_path).save()
        (server,) = strategy.server_addresses
        pid = client.run(os.getpid, workers=[server])[server]
        assert state(coordinator) == "idle"
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: state(coordinator) == "parameters lost", "it is told")
        strategy.recover()
        assert state(coordinator) == "idle"
        assert variable.read().tolist() == [0, 0]


def test_the_last_worker_that_leaves_is_retired_and_what_waits_has_no_workers() -> None:
    with (
        psnb.local_cluster(workers=1, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(os.getpid).fetch(DEADLINE)
        (worker,) = coordinator.statistics().workers
        client.retire_workers([worker.address])
        wait_until(lambda: coordinator.statistics().workers[0].state == "retired", "it has left")
        assert state(coordinator) == "idle"
        coordinator.schedule(os.getpid)
        assert state(coordinator) == "no workers"
        coordinator.cancel_queued()
        assert state(coordinator) == "idle"


def test_a_closed_coordinator_has_released_its_workers(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    coordinator.schedule(os.getpid).fetch(DEADLINE)
    coordinator.close()
    now = coordinator.statistics()
    assert now.state == "closed"
    assert {worker.state for worker in now.workers} == {"released"}
