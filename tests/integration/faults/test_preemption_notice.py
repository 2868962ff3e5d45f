"""Processes that are asked to end, and such that are killed: SIGTERM and SIGKILL, in pairs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.cluster.roles import identity
from psnb._src.placement.layout import ServerAddress
from psnb._src.server.serving import GRACE
from psnb._src.strategy.servers import Servers
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.counting import wait_until_copied
from tests.integration.helpers import (
    CommandLine,
    Steps,
    kinds_of,
    pid_of,
    state_of,
    wait_until_ended,
    wait_until_ready,
    worker_name,
)

WORKERS = ("worker-0", "worker-1")
SERVERS = ("server-0", "server-1")


class Processes:
    """A cluster, and the processes that hear of its end, by the names of workers and servers.

    If there is none for a name, it is the worker's process itself.
    """

    def __init__(self, client: Client, hearing: Mapping[str, int]) -> None:
        self.client, self._hearing = client, hearing
        self.leaving: list[int] = []

    def terminate(self, name: str) -> None:
        """Ask a process to end."""
        pid = self._hearing.get(name) or pid_of(self.client, name)
        os.kill(pid, signal.SIGTERM)
        self.leaving.append(pid)

    def kill(self, name: str) -> None:
        """Kill a process."""
        os.kill(pid_of(self.client, name), signal.SIGKILL)


SECOND = pytest.mark.second_tier("a second kind of cluster")
BY_HAND = [pytest.param(kind, marks=SECOND) for kind in ("with nannies", "without nannies")]
ON_ALL = pytest.mark.parametrize("processes", ["local", *BY_HAND], indirect=True)


@pytest.fixture
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    """Two workers and two servers: of a local cluster, or from the command line.

    So SIGTERM gets to a process below a nanny, to a nanny, or to a process that has none.
    """
    if request.param == "local":
        processes = Processes(request.getfixturevalue("whole"), {})
        yield processes
        wait_until_ended(*processes.leaving)  # else the cluster seems whole with who still leaves
        return
    with ExitStack() as stack:
        line = CommandLine(tmp_path)
        stack.enter_context(line.scheduler())
        options = {name: ("--name", name) for name in WORKERS}
        options |= {name: ("--name", name, "--resources", "ps=1") for name in SERVERS}
        if request.param == "without nannies":
            options = {name: (*each, "--no-nanny") for name, each in options.items()}
        pids = {name: stack.enter_context(line.worker(*each)).pid for name, each in options.items()}
        client = stack.enter_context(connected(line.file))
        client.wait_for_workers(4, timeout=DEADLINE)
        yield Processes(client, pids)


def kinds(strategy: psnb.ParameterServerStrategy) -> list[EventKind]:
    return [event.kind for event in strategy.server_events()]


def name_of(client: Client, address: str) -> str:
    return str(identity(client)["workers"][address]["name"])


class Training:
    """Closures that count in every shard, one after the other, until the block ends."""

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self._coordinator = psnb.ClusterCoordinator(strategy)
        self._counts = [strategy.variable(np.zeros(3)) for _ in range(8)]
        self.steps = 0

    def go_on(self, steps: int) -> None:
        """Make some more."""
        counts = self._counts

        def count() -> None:
            for each in counts:
                each.assign_add(np.ones(3))

        for _ in range(steps):
            self._coordinator.schedule(count)
        self.steps += steps

    def check(self) -> None:
        """Check that each has had its effect, once, in all shards."""
        self._coordinator.join(DEADLINE)
        assert [each.read().tolist() for each in self._counts] == [[self.steps] * 3] * 8


@ON_ALL
def test_a_worker_that_is_asked_to_end_ends_its_closure_and_returns_the_others(
    processes: Processes, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(processes.client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, *WORKERS)
        counter = strategy.variable(np.int64(0))
        steps = Steps(tmp_path)
        remote = coordinator.schedule(steps.counting(counter))
        (name,) = steps.begun()
        processes.terminate(name)
        wait_until(lambda: state_of(coordinator, name) == "draining", "it drains")
        others = [coordinator.schedule(worker_name) for _ in range(20)]
        assert name not in coordinator.fetch(others)
        steps.end()
        assert remote.fetch(DEADLINE) == name
        assert (coordinator.statistics().retried, int(counter.read())) == (0, 1)
        wait_until(lambda: EventKind.WORKER_RETIRED in kinds_of(coordinator, name), "it is told")
        assert EventKind.WORKER_LOST not in kinds_of(coordinator, name)


@ON_ALL
def test_a_worker_that_is_killed_costs_a_retry(processes: Processes, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(processes.client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, *WORKERS)
        counter = strategy.variable(np.int64(0))
        steps = Steps(tmp_path)
        remote = coordinator.schedule(steps.counting(counter))
        (name,) = steps.begun()
        processes.kill(name)
        steps.begun(2)
        steps.end()
        assert remote.fetch(DEADLINE) == steps.runs()[1]
        assert (coordinator.statistics().retried, int(counter.read())) == (1, 1)
        assert EventKind.WORKER_LOST in kinds_of(coordinator, name)


@ON_ALL
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_server_that_is_asked_to_end_hands_over_what_it_holds(
    processes: Processes, replicas: int
) -> None:
    with psnb.ParameterServerStrategy(processes.client, replicas=replicas, shards=4) as strategy:
        training = Training(strategy)
        training.go_on(50)
        address = strategy.server_addresses[0]
        processes.terminate(name_of(processes.client, address))
        while address in strategy.server_addresses:
            training.go_on(5)
            training.check()
        training.go_on(50)
        training.check()
        told = kinds(strategy)
        assert told.index(EventKind.SERVER_RETIRING) < told.index(EventKind.SERVER_RETIRED)
        assert not {EventKind.SERVER_LOST, EventKind.SHARDS_LOST, EventKind.UPDATES_LOST} & {*told}


@pytest.mark.parametrize("processes", BY_HAND, indirect=True)  # the local one: test_replicas.py
def test_a_server_with_copies_that_is_killed_loses_nothing(processes: Processes) -> None:
    with psnb.ParameterServerStrategy(processes.client, replicas=1, shards=4) as strategy:
        training = Training(strategy)
        training.go_on(50)
        training.check()
        wait_until_copied(strategy)
        processes.kill(name_of(processes.client, strategy.server_addresses[0]))
        training.go_on(50)
        training.check()
        assert EventKind.SHARDS_TAKEN_OVER in kinds(strategy)


def lost(strategy: psnb.ParameterServerStrategy) -> bool:
    return EventKind.SHARDS_LOST in kinds(strategy)


@ON_ALL
def test_servers_that_are_all_asked_to_end_save_first(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dismiss = Servers.dismiss

    async def dismiss_late(servers: Servers, server: ServerAddress) -> None:
        await asyncio.sleep(0.3)  # in which closures could write what is not saved
        await dismiss(servers, server)

    monkeypatch.setattr(Servers, "dismiss", dismiss_late)
    with psnb.ParameterServerStrategy(processes.client, shards=4) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        manager = psnb.CheckpointManager(coordinator, tmp_path / "checkpoints")
        training = Training(strategy)
        training.go_on(1000)
        for name in SERVERS:
            processes.terminate(name)
        wait_until(lambda: EventKind.CHECKPOINT_SAVED in kinds(strategy), "all is saved")
        wait_until(lambda: lost(strategy), "they have ended")
        wait_until(lambda: not coordinator.statistics().in_flight, "what had begun has failed")
        steps = coordinator.statistics().completed
        coordinator.cancel_queued()
        with pytest.raises(errors.ServerLostError):
            training.check()
        assert EventKind.SERVER_LOST not in kinds(strategy)
        assert EventKind.SERVER_RETIRED in kinds(strategy)
        saved = psnb.checkpoint.load(manager.latest_checkpoint)
        assert {float(value) for name in saved for value in saved[name]} == {float(steps)}


@pytest.mark.parametrize("processes", BY_HAND, indirect=True)  # the local one: test_recovery.py
def test_servers_that_are_killed_lose_what_was_not_saved(
    processes: Processes, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(processes.client, shards=4) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        manager = psnb.CheckpointManager(coordinator, tmp_path / "checkpoints")
        training = Training(strategy)
        training.go_on(50)
        training.check()
        manager.save()
        for name in SERVERS:
            processes.kill(name)
        wait_until(lambda: lost(strategy), "it is noticed")
        assert EventKind.SERVER_LOST in kinds(strategy)
        with pytest.raises(errors.ServerLostError):
            training.check()


def test_a_server_that_joins_in_time_takes_what_the_last_one_holds(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(line.scheduler())
        stack.enter_context(line.worker("--name", "worker-0", "--no-nanny"))
        last = stack.enter_context(line.worker("--resources", "ps=1", "--no-nanny"))
        client = stack.enter_context(connected(line.file))
        client.wait_for_workers(2, timeout=DEADLINE)
        joining = stack.enter_context(ExitStack())  # ends after the strategy
        strategy = stack.enter_context(psnb.ParameterServerStrategy(client))
        training = Training(strategy)
        training.go_on(50)
        last.terminate()
        wait_until(lambda: EventKind.CHECKPOINT_FAILED in kinds(strategy), "nothing can be saved")
        joining.enter_context(line.worker("--resources", "ps=1", "--no-nanny"))
        wait_until(lambda: EventKind.SERVER_RETIRED in kinds(strategy), "it is handed over")
        training.go_on(50)
        training.check()
        last.wait(DEADLINE)


def test_a_server_whose_notebook_has_gone_does_not_wait(whole: Client) -> None:
    with psnb.connect(whole.scheduler.address) as client:
        strategy = psnb.ParameterServerStrategy(client)
        v = strategy.variable([1.0])
        assert v.read() == 1
    address = strategy.server_addresses[0]
    server = psutil.Process(whole.run(os.getpid, workers=[address])[address])
    server.terminate()
    server.wait(GRACE - 5)
    strategy.close()


def test_the_time_of_a_killed_worker_stays_in_the_sum(whole: Client) -> None:
    pause = 0.03

    def work() -> int:
        time.sleep(pause)
        return os.getpid()

    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        remotes = [coordinator.schedule(work) for _ in range(8)]
        coordinator.join(DEADLINE)
        os.kill(remotes[0].fetch(), signal.SIGKILL)
        wait_until(
            lambda: EventKind.WORKER_LOST in [event.kind for event in coordinator.events()],
            "the worker is given up",
        )
        assert coordinator.phases().total.compute >= 8 * pause
