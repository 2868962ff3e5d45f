"""The states that people see, after what happens to real clusters."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
from distributed import Client

import psnb
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import kill


def state(coordinator: psnb.ClusterCoordinator) -> str:
    return coordinator.statistics().state


def test_servers_that_are_killed_with_their_parameters_are_reported_until_they_are_brought_back(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        variable = strategy.variable(np.zeros(2, np.float32), name="weights")
        psnb.CheckpointManager(coordinator, tmp_path).save()
        assert state(coordinator) == "idle"
        kill(whole, *strategy.server_addresses)
        wait_until(lambda: state(coordinator) == "parameters lost", "it is told")
        assert "lost" in [each.state for each in coordinator.statistics().servers]
        strategy.recover()
        assert state(coordinator) == "idle"
        assert "lost" not in [each.state for each in coordinator.statistics().servers]
        assert variable.read().tolist() == [0, 0]


def test_the_last_worker_that_leaves_is_retired_and_what_waits_has_no_workers() -> None:
    with (
        psnb.local_cluster(workers=1, servers=1, processes=False) as client,
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


def test_a_worker_that_is_started_again_takes_the_place_of_the_one_whose_name_it_has(
    whole: Client,
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        pid = coordinator.schedule(os.getpid, worker="worker-1").fetch(DEADLINE)

        def workers() -> list[tuple[str, str]]:
            return [(each.name, each.state) for each in coordinator.statistics().workers]

        wait_until(
            lambda: sorted(workers()) == [("worker-0", "ready"), ("worker-1", "ready")],
            "both workers are ready",
        )
        coordinator.retire_worker("worker-0")
        wait_until(lambda: workers()[0] == ("worker-0", "retired"), "the first has left")
        os.kill(pid, signal.SIGKILL)
        assert coordinator.schedule(os.getpid).fetch(DEADLINE) != pid
        assert workers() == [("worker-0", "retired"), ("worker-1", "ready")]


def test_a_closed_coordinator_has_released_its_workers(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    coordinator.schedule(os.getpid).fetch(DEADLINE)
    coordinator.close()
    now = coordinator.statistics()
    assert now.state == "closed"
    assert {worker.state for worker in now.workers} == {"released"}
    assert {server.state for server in now.servers} == {"released"}  # nobody asks them now
