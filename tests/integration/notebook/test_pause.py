"""Training that is held and goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import psnb
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import Steps, wait_for_file


def test_a_paused_coordinator_begins_nothing_and_goes_on_when_resumed(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    coordinator.pause()
    remotes = coordinator.map(abs, range(-20, 0))
    with pytest.raises(TimeoutError, match="20 closures queued"):
        coordinator.join(0.2)
    assert coordinator.statistics().state == "paused"
    coordinator.resume()
    assert coordinator.fetch(remotes) == list(range(20, 0, -1))
    assert coordinator.statistics().state == "idle"


def test_parameters_stand_still_between_draining_and_resuming(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    v, draining = strategy.variable(np.int64(0)), tmp_path / "draining"

    def count(number: int) -> None:
        if number >= 20:  # however fast they are, some are left then
            wait_for_file(draining)
        v.assign_add(np.int64(1))

    def note_draining() -> None:
        held = {"draining", "paused"}  # the latter if none had begun that waits
        wait_until(lambda: coordinator.statistics().state in held, "it drains")
        draining.touch()

    coordinator.map(count, range(200))
    wait_until(lambda: int(v.read()) > 0, "training runs")
    noting = threading.Thread(target=note_draining)
    noting.start()
    coordinator.drain(DEADLINE)
    noting.join()
    assert coordinator.statistics().in_flight == 0
    done = coordinator.statistics().completed
    for _ in range(20):
        assert int(v.read()) == done
    assert done < 200
    coordinator.resume()
    coordinator.join(DEADLINE)
    assert int(v.read()) == 200
    assert coordinator.statistics().retried == 0


def test_what_runs_when_the_coordinator_is_paused_ends(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    steps = Steps(tmp_path)
    remote = coordinator.schedule(steps)
    (name,) = steps.begun()
    coordinator.pause()
    assert coordinator.statistics().state == "draining"
    with pytest.raises(TimeoutError, match="1 closure in flight"):
        coordinator.drain(0.05)
    steps.end()
    coordinator.drain(DEADLINE)
    assert remote.fetch(0) == name
    coordinator.resume()
