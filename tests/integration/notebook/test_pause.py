"""Training that is held and goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

import psnb
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import wait_for_file


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
