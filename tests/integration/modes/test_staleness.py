"""How stale updates are, as measured on the servers, and the bound on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import wait_for_file, wait_until_ready

BOUND, FAST = 3, 12


class Uneven:
    """One closure that holds its worker up after its read, and many that do not."""

    def __init__(self, coordinator: psnb.ClusterCoordinator, folder: Path) -> None:
        self.coordinator = coordinator
        wait_until_ready(coordinator, "worker-0", "worker-1")
        begun, self._end = folder / "begun", folder / "end"
        end = self._end
        variable = coordinator.strategy.variable(np.zeros(2), optimizer=psnb.SGD(1.0))

        def step(slow: bool) -> None:
            variable.read()
            if slow:
                begun.touch()
                wait_for_file(end)
            variable.push(-np.ones(2))

        self.variable = variable
        coordinator.schedule(step, (True,))
        wait_until(begun.exists, "the slow closure has read")
        for _ in range(FAST):
            coordinator.schedule(step, (False,))

    def wait_for_fast(self, count: int) -> None:
        """Wait until so many have ended while the slow one runs."""
        statistics = self.coordinator.statistics
        wait_until(lambda: statistics().completed == count, f"{count} closures have ended")

    def end(self) -> psnb.StalenessStatistics:
        """Let the slow closure end, and return what was measured."""
        self._end.touch()
        self.coordinator.join(DEADLINE)
        assert self.variable.read().tolist() == [FAST + 1, FAST + 1]
        return self.coordinator.statistics().staleness


def test_asynchronous_updates_may_be_as_stale_as_others_are_fast(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    uneven = Uneven(coordinator, tmp_path)
    uneven.wait_for_fast(FAST)
    found = uneven.end()
    assert (found.count, found.max, sum(found.histogram)) == (FAST + 1, FAST, FAST + 1)
    assert found.mean == FAST / (FAST + 1)  # the others were alone


def test_no_update_is_staler_than_the_bound_and_no_closure_waits_before(
    cluster: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=psnb.BoundedStaleness(BOUND)) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        uneven = Uneven(coordinator, tmp_path)
        uneven.wait_for_fast(BOUND)
        now = coordinator.statistics()
        assert (now.queued, now.in_flight) == (FAST - BOUND, 1)
        found = uneven.end()
        assert (found.count, found.max) == (FAST + 1, BOUND)


@pytest.mark.parametrize("reads", [True, False])
def test_updates_of_closures_alone_are_counted(
    coordinator: psnb.ClusterCoordinator, reads: bool
) -> None:
    v = coordinator.strategy.variable(np.zeros(2), optimizer=psnb.SGD(1.0))

    def step() -> None:
        if reads:
            v.read()
        v.push(-np.ones(2))

    for _ in range(3):
        v.push(np.ones(2))
        coordinator.schedule(step).fetch(DEADLINE)
    coordinator.schedule(v.read).fetch(DEADLINE)
    found = coordinator.statistics().staleness
    assert (found.count, found.max) == (3, 0)
