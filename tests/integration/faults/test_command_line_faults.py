"""Faults on a cluster from the command line, with a real scheduler process and real nannies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client

import psnb
from psnb import EventKind
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.helpers import (
    CommandLine,
    Steps,
    address_of,
    frozen,
    kinds_of,
    pid_of,
    state_of,
    wait_until_ended,
    wait_until_ready,
    worker_name,
)

pytestmark = pytest.mark.second_tier(
    "a second kind of cluster: of the local one test_preemption_notice.py, test_hangs.py and "
    "test_worker_faults.py tell the same"
)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandLine, Client]]:
    """A server and the workers ``a`` and ``b``; nannies mend what the tests break."""
    cluster = CommandLine(tmp_path_factory.mktemp("dask"))
    with ExitStack() as stack:
        stack.enter_context(cluster.scheduler())
        stack.enter_context(cluster.server())
        for name in "ab":
            stack.enter_context(cluster.worker("--name", name))
        yield cluster, stack.enter_context(connected(cluster.file))


@pytest.fixture
def client(started: tuple[CommandLine, Client]) -> Client:
    """The cluster, whole."""
    _, client = started

    def whole() -> bool:
        workers = identity(client)["workers"].values()
        return sorted(str(worker["name"]) for worker in workers) == ["a", "b", "server"]

    wait_until(whole, "the cluster is whole")
    return client


def test_a_frozen_workers_closure_runs_elsewhere_and_it_comes_back(
    client: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=2)
        counter = strategy.variable(np.int64(0))
        steps = Steps(tmp_path)
        remote = coordinator.schedule(steps.counting(counter))
        (name,) = steps.begun()
        with frozen(pid_of(client, name)):
            other = steps.begun(2)[1]
            steps.end()
            assert remote.fetch(DEADLINE) == other != name
        wait_until_ready(coordinator, name)
        pinned = coordinator.schedule(worker_name, worker=name)
        assert pinned.fetch(DEADLINE) == name
        assert kinds_of(coordinator, name)[:2] == [EventKind.WORKER_JOINED, EventKind.WORKER_LOST]
        assert kinds_of(coordinator, name)[-1] is EventKind.WORKER_JOINED
        assert coordinator.statistics().retried == 1
        assert int(counter.read()) == 1


def test_a_killed_workers_closure_runs_again_and_its_nanny_brings_it_back(
    client: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        value = coordinator.create_per_worker_resource(worker_name)
        steps = Steps(tmp_path)
        remote = coordinator.schedule(steps)
        (name,) = steps.begun()
        os.kill(pid_of(client, name), signal.SIGKILL)
        assert len(steps.begun(2)) == 2
        steps.end()
        assert remote.fetch(DEADLINE) == steps.runs()[1]
        wait_until(
            lambda: (
                kinds_of(coordinator, name)
                == [EventKind.WORKER_JOINED, EventKind.WORKER_LOST, EventKind.WORKER_JOINED]
            ),
            "it has come back",
        )
        again = coordinator.schedule(lambda value: value, (value,), worker=name)
        assert again.fetch(DEADLINE) == name
        assert coordinator.statistics().retried == 1


def test_a_worker_that_joins_by_hand_takes_over_from_one_that_dies_for_good(
    client: Client, started: tuple[CommandLine, Client], tmp_path: Path
) -> None:
    cluster, _ = started
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        steps = Steps(tmp_path)
        with (
            cluster.worker("--name", "first", "--no-nanny") as first,
            cluster.worker("--name", "second", "--no-nanny"),
        ):
            wait_until_ready(coordinator, "first")
            remote = coordinator.schedule(
                steps, worker=lambda worker: worker.name in ("first", "second")
            )
            if steps.begun() == ["first"]:
                first.kill()
            else:
                # The second was there first: the first, just as good, takes over.
                os.kill(pid_of(client, "second"), signal.SIGKILL)
            assert sorted(steps.begun(2)) == ["first", "second"]
            steps.end()
            assert remote.fetch(DEADLINE) == steps.runs()[1]
            assert coordinator.statistics().retried == 1


def test_retiring_two_workers_at_once_loses_no_closure(
    client: Client, started: tuple[CommandLine, Client], tmp_path: Path
) -> None:
    cluster, _ = started
    with psnb.ParameterServerStrategy(client) as strategy, ExitStack() as extra:
        coordinator = psnb.ClusterCoordinator(strategy)
        counter = strategy.variable(np.int64(0))
        names = ["c", "d"]
        workers = [cluster.worker("--name", name, "--no-nanny") for name in names]
        pids = [extra.enter_context(worker).pid for worker in workers]
        wait_until_ready(coordinator, *names)
        steps = Steps(tmp_path)
        count = steps.counting(counter)
        remotes = [coordinator.schedule(count, worker=name) for name in names]
        steps.begun(2)
        client.retire_workers([address_of(client, name) for name in names])
        wait_until(
            lambda: {state_of(coordinator, name) for name in names} == {"draining"}, "both drain"
        )
        steps.end()
        assert coordinator.fetch(remotes) == names
        wait_until_ended(*pids)
        assert (coordinator.statistics().retried, int(counter.read())) == (0, 2)


def test_a_node_that_dies_with_its_nanny_loses_no_closure(
    client: Client, started: tuple[CommandLine, Client], tmp_path: Path
) -> None:
    cluster, _ = started
    with psnb.ParameterServerStrategy(client) as strategy, cluster.worker("--name", "e") as nanny:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, "e")
        steps = Steps(tmp_path)
        dead = threading.Event()
        remote = coordinator.schedule(steps, worker=lambda w: w.name == "e" or dead.is_set())
        steps.begun()
        for each in [nanny.pid, *(p.pid for p in psutil.Process(nanny.pid).children())]:
            os.kill(each, signal.SIGKILL)
        dead.set()
        steps.begun(2)
        steps.end()
        assert remote.fetch(DEADLINE) in ("a", "b")
