"""A worker runs the next closure while the last one's commit is on its way to the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import frozen, pid_of, wait_for_file


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One worker, whose nanny starts it again, and one server."""
    with psnb.local_cluster(workers=1, servers=1) as client:
        yield client


@pytest.fixture
def coordinator(client: Client) -> Iterator[psnb.ClusterCoordinator]:
    with (
        # A server that is frozen is not taken for unresponsive.
        psnb.ParameterServerStrategy(client, heartbeat_timeout=2 * DEADLINE) as strategy,
        psnb.ClusterCoordinator(strategy) as coordinator,
    ):
        yield coordinator


class Pair:
    """Two closures in a row, on one thread; the second one leaves a trace and waits.

    They are held until both are there, and their function is known to be quick, so that the worker
    gets both at once.
    """

    def __init__(self, coordinator: psnb.ClusterCoordinator, folder: Path) -> None:
        self.coordinator = coordinator
        self.counter = counter = coordinator.strategy.variable(np.zeros(2, np.int64))
        self.begun, self._end = begun, end = folder / "begun", folder / "end"

        def count(first: int, second: int) -> None:
            counter.assign_add(np.array([first, second]))
            if second:
                begun.write_text(str(os.getpid()))
                wait_for_file(end)

        self._count = count
        for _ in range(20):  # the first ones also connect, and load
            coordinator.schedule(count, (0, 0)).fetch(DEADLINE)

    def schedule(self) -> list[psnb.RemoteValue]:
        self.coordinator.pause()
        found = [self.coordinator.schedule(self._count, each) for each in ((1, 0), (0, 1))]
        self.coordinator.resume()
        return found

    def wait(self) -> int:
        """Wait until the second one runs, and return its worker's process."""
        wait_until(lambda: self.begun.exists() and self.begun.read_text() != "", "it has begun")
        return int(self.begun.read_text())

    def end(self) -> list[int]:
        """Let the second one end, and return what both have counted."""
        self._end.touch()
        self.coordinator.join(DEADLINE)
        return self.counter.read().tolist()


def test_the_next_closure_begins_before_the_servers_have_answered(
    client: Client, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    pair = Pair(coordinator, tmp_path)
    with frozen(pid_of(client, "server-0")):
        first, second = pair.schedule()
        pair.wait()
        assert not first.done()
    first.fetch(DEADLINE)  # though the thread is in the next one
    assert not second.done()
    assert pair.end() == [1, 1]


def test_both_count_once_if_their_worker_is_killed_meanwhile(
    client: Client, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    pair = Pair(coordinator, tmp_path)
    with frozen(pid_of(client, "server-0")):
        pair.schedule()
        os.kill(pair.wait(), signal.SIGKILL)
    assert pair.end() == [1, 1]
    assert coordinator.statistics().failed == 0


def test_a_closure_sees_what_the_one_before_it_has_written(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    counter = coordinator.strategy.variable(np.int64(0))

    def count() -> int:
        before = int(counter.read())
        counter.assign_add(np.int64(1))
        return before

    found = [coordinator.schedule(count) for _ in range(300)]
    assert coordinator.fetch(found) == list(range(300))


def test_a_commit_that_is_refused_fails_its_own_closure(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def only_once(step: int) -> float:
        if step:
            raise ValueError("no rate for this step")
        return 1.0

    strategy = coordinator.strategy
    refuses = strategy.variable(np.zeros(1, np.float32), optimizer=psnb.SGD(only_once))
    counter = strategy.variable(np.int64(0))
    coordinator.pause()
    pushed = [coordinator.schedule(refuses.push, (np.ones(1, np.float32),)) for _ in "ab"]
    counted = [coordinator.schedule(counter.assign_add, (np.int64(1),)) for _ in "ab"]
    coordinator.resume()
    with pytest.raises(errors.ConfigurationError, match="no rate for this step") as raised:
        coordinator.join(DEADLINE)
    assert "in closure" in "".join(raised.value.__notes__)
    assert [each.status.name for each in pushed] == ["COMPLETED", "FAILED"]
    assert int(counter.read()) == sum(each.status.name == "COMPLETED" for each in counted)
    assert refuses.read().tolist() == [-1.0]


@pytest.mark.parametrize("write", ["assign", "assign_add", "push"])
def test_a_closure_may_change_arrays_that_it_has_written(
    coordinator: psnb.ClusterCoordinator, write: str
) -> None:
    """Large ones, which go through memory that is shared with the server."""
    variable = coordinator.strategy.variable(np.zeros(100_000, np.float32), optimizer=psnb.SGD(1.0))

    def changes() -> None:
        given = np.full(100_000, 3, np.float32)
        getattr(variable, write)(given)
        given[...] = 5

    coordinator.schedule(changes).fetch(DEADLINE)
    assert np.unique(np.abs(variable.read())).tolist() == [3]
