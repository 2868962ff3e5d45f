"""A scheduler that ends, on a cluster from the command line."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.dask_compat.reach import host_and_port
from psnb._src.server.serving import GRACE
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.helpers import CommandLine, Process, wait_until_ended, wait_until_ready

TOLD = 15.0
"""Seconds within which everybody must know, on a busy machine too: Dask tries for thirty."""


class Doomed:
    """A cluster whose scheduler will end."""

    def __init__(self, cluster: CommandLine, scheduler: Process, client: Client) -> None:
        self.cluster, self._scheduler, self.client = cluster, scheduler, client
        self.address = client.scheduler.address

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the scheduler."""
        self._scheduler.send_signal(how)
        self._scheduler.wait(DEADLINE)


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Doomed]:
    """A server, with a nanny, and a worker without."""
    cluster = CommandLine(tmp_path)
    with ExitStack() as stack:
        scheduler = stack.enter_context(cluster.scheduler())
        stack.enter_context(cluster.server())
        stack.enter_context(cluster.worker("--name", "a", "--no-nanny"))
        client = stack.enter_context(connected(cluster.file))
        client.wait_for_workers(2, timeout=DEADLINE)
        yield Doomed(cluster, scheduler, client)


def _join(coordinator: psnb.ClusterCoordinator, _: psnb.Variable) -> None:
    coordinator.join(DEADLINE)


def _schedule(coordinator: psnb.ClusterCoordinator, _: psnb.Variable) -> None:
    while True:
        coordinator.schedule(int)
        time.sleep(0.01)


def _read(_: psnb.ClusterCoordinator, v: psnb.Variable) -> None:
    while True:
        v.read()


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.second_tier("another end of the same")),
    ],
)
def test_every_call_raises_within_seconds_that_the_scheduler_has_ended(
    doomed: Doomed, how: signal.Signals
) -> None:
    calls: list[Callable[[psnb.ClusterCoordinator, psnb.Variable], None]]
    calls = [_join, _schedule, _read]
    with (
        psnb.ParameterServerStrategy(doomed.client) as strategy,
        ThreadPoolExecutor(thread_name_prefix="caller") as threads,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(1))
        wait_until_ready(coordinator, "a")
        coordinator.schedule(time.sleep, (2 * DEADLINE,))
        waiting = [threads.submit(each, coordinator, v) for each in calls]
        doomed.end(how)
        ended = time.monotonic()
        for each in waiting:
            with pytest.raises(errors.CoordinatorClosedError, match=doomed.address) as caught:
                each.result(TOLD)
            assert caught.type is errors.SchedulerLostError
        with pytest.raises(errors.SchedulerLostError):
            strategy.variable(np.zeros(1))
        assert time.monotonic() - ended < TOLD


def test_without_parameters_and_workers_nothing_waits_for_ever(doomed: Doomed) -> None:
    # So it is when a scheduler was cut off for too long: the others end, and it is there.
    with psnb.ParameterServerStrategy(doomed.client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=1)
        strategy.variable(np.zeros(1), "v")
        wait_until_ready(coordinator, "a")
        for pid in doomed.client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
        for _ in range(2):  # not only once
            remote = coordinator.schedule(int)
            with pytest.raises(errors.ServerLostError, match=r"no worker .* lost.*recover.*'v'"):
                coordinator.join(DEADLINE)
            with pytest.raises(errors.ServerLostError):
                remote.fetch(0)


def test_starting_over_with_the_old_client_raises_within_seconds_too(
    doomed: Doomed, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(doomed.client, name="mine") as strategy:
        strategy.variable(np.zeros(1), "v")
        psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path / "saved").save()
        calls: list[Callable[[], object]] = [
            lambda: psnb.attach(doomed.client),
            lambda: psnb.attach(doomed.client, "mine"),
            lambda: psnb.ParameterServerStrategy(doomed.client),
            lambda: psnb.resume(tmp_path / "saved", doomed.client),
        ]
        doomed.end()
        for each in calls:
            began = time.monotonic()
            with pytest.raises(errors.SchedulerLostError, match=doomed.address):
                each()
            assert time.monotonic() - began < TOLD
    doomed.client.close()
    for each in calls:
        with pytest.raises(errors.ClusterError, match="the Dask client is closed"):
            each()


def test_no_server_outlives_its_scheduler_and_one_at_the_same_address_knows_nothing(
    doomed: Doomed,
) -> None:
    # That is why `attach` finds nothing after it.
    with psnb.ParameterServerStrategy(doomed.client, name="mine") as strategy:
        pids = doomed.client.run(os.getpid).values()
        doomed.end()
        ended = time.monotonic()
        with doomed.cluster.scheduler(host_and_port(doomed.address)[1]):
            wait_until_ended(*pids)
            assert time.monotonic() - ended < GRACE  # nobody can take what the server holds
            with connected(doomed.cluster.file) as client:
                assert client.scheduler.address == doomed.address
                assert not psnb.attach(client)

            def told() -> bool:
                try:
                    strategy.variable(np.zeros(1), "v")
                except errors.SchedulerLostError:
                    return True
                except errors.ServerLostError:
                    return False
                raise AssertionError("it was made")

            wait_until(told, "the strategy knows that this is another scheduler")

            def attached() -> bool:
                try:
                    return not psnb.attach(doomed.client)
                except errors.SchedulerLostError:
                    return False

            wait_until(attached, "Dask has connected the old client with it")
