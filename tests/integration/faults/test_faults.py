"""Workers and servers that go, gently and abruptly, and clients closed under a strategy."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import (
    frozen,
    kill_myself,
    wait_for_file,
    wait_until_gone,
    wait_until_ready,
)


@pytest.fixture
def small() -> Iterator[Client]:
    """A worker and a server in this process, for one test alone."""
    with psnb.local_cluster(workers=1, servers=1, processes=False) as client:
        yield client


def test_a_closure_that_kills_its_worker_again_and_again_fails(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        poison = coordinator.schedule(os._exit, (3,), retries=1)
        with pytest.raises(errors.WorkerLostError, match=r"_exit.*2 times"):
            coordinator.join(DEADLINE)
        with pytest.raises(errors.WorkerLostError):
            poison.fetch()
        assert coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3


def test_work_waits_until_a_worker_joins(small: Client) -> None:
    with psnb.ParameterServerStrategy(small) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(lambda: None).fetch(DEADLINE)
        wait_until_ready(coordinator, "worker-0")
        small.cluster.scale(1)  # the server alone
        wait_until(lambda: strategy.num_workers == 0, "the worker is gone")
        wait_until_gone(coordinator, "worker-0")
        remote = coordinator.schedule(lambda: 3)
        with pytest.raises(TimeoutError):
            remote.fetch(timeout=0.5)
        small.cluster.scale(2)
        assert remote.fetch(DEADLINE) == 3


def _schedule(coordinator: psnb.ClusterCoordinator, _: psnb.Variable) -> None:
    # The queue holds one, and nobody takes it: the second waits for room.
    coordinator.schedule(int, worker="nobody")
    coordinator.schedule(int)


def _join(coordinator: psnb.ClusterCoordinator, _: psnb.Variable) -> None:
    coordinator.join(DEADLINE)


def _done(coordinator: psnb.ClusterCoordinator, _: psnb.Variable) -> None:
    wait_until(coordinator.done, "all is done, or has failed")


def _read(_: psnb.ClusterCoordinator, v: psnb.Variable) -> None:
    v.read()


@pytest.mark.parametrize("call", [_schedule, _join, _done, _read])
def test_a_killed_server_is_an_error_at_once_for_all_who_wait(
    whole: Client,
    tmp_path: Path,
    call: Callable[[psnb.ClusterCoordinator, psnb.Variable], None],
) -> None:
    with (
        # They hear of it because its process has ended, not after a time without a heartbeat.
        psnb.ParameterServerStrategy(
            whole, num_servers=1, heartbeat_timeout=4 * DEADLINE
        ) as strategy,
        ThreadPoolExecutor(thread_name_prefix="caller") as threads,
    ):
        coordinator = psnb.ClusterCoordinator(strategy, max_queue_size=1)
        v = strategy.variable(np.arange(3))
        asked = tmp_path / "asked"

        def read() -> list[int]:
            asked.touch()
            return v.read().tolist()

        (address,) = strategy.server_addresses
        server = whole.run(os.getpid, workers=[address])[address]
        with frozen(server):
            remote = coordinator.schedule(read)
            wait_until(asked.exists, "a closure waits for the server")
            calling = threads.submit(call, coordinator, v)
            os.kill(server, signal.SIGKILL)
            with pytest.raises(errors.ServerLostError):
                calling.result(DEADLINE)
        with pytest.raises(errors.ServerLostError):
            remote.fetch(DEADLINE)
        if call is _read:  # the others have raised the closure's error
            with pytest.raises(errors.ServerLostError):
                coordinator.join(DEADLINE)
        assert coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3


def test_join_ends_when_the_client_is_closed_under_it(small: Client, tmp_path: Path) -> None:
    strategy = psnb.ParameterServerStrategy(small)
    coordinator = psnb.ClusterCoordinator(strategy)
    started = coordinator.create_per_worker_resource(lambda: None)
    coordinator.schedule(lambda _: None, (started,)).fetch(DEADLINE)
    end = tmp_path / "end"
    coordinator.schedule(wait_for_file, (end,))
    ended: list[BaseException] = []

    def join() -> None:
        try:
            coordinator.join(DEADLINE)
        except BaseException as error:
            ended.append(error)
        finally:
            end.touch()  # closing waits for it

    joining = threading.Thread(target=join)
    joining.start()
    small.close()
    joining.join(DEADLINE)
    assert [type(error) for error in ended] == [errors.CoordinatorClosedError]
    with pytest.raises(errors.CoordinatorClosedError):
        coordinator.schedule(print)
    strategy.close()


def test_a_coordinator_that_wrote_to_another_strategy_closes_after_its_client(
    small: Client,
) -> None:
    strategies = [psnb.ParameterServerStrategy(small) for _ in range(2)]
    own, others = (strategy.variable(np.zeros(1)) for strategy in strategies)
    coordinator = psnb.ClusterCoordinator(strategies[0])

    def write() -> None:
        own.assign_add([1.0])
        others.assign_add([1.0])

    coordinator.schedule(write).fetch(DEADLINE)
    small.close()
    coordinator.close()
    assert coordinator.statistics().state == "closed"


def test_training_goes_on_while_workers_are_killed(whole: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        counter = strategy.variable(np.int64(0))

        def count(number: int) -> None:
            counter.assign_add(np.int64(1))
            killed = tmp_path / f"killed in {number}"
            if number in (500, 1000) and not killed.exists():
                killed.touch()
                kill_myself()  # others wait behind it, and commits are on their way

        coordinator.map(count, range(1500))
        coordinator.join(2 * DEADLINE)
        s = coordinator.statistics()
        assert (s.completed, s.failed) == (1500, 0)
        assert len(list(tmp_path.iterdir())) == 2  # both have been killed
        assert int(counter.read()) == 1500
