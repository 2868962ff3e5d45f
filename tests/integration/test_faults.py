"""Workers and servers that go, gently and abruptly, on clusters of their own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.cluster.cluster import identity
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import wait_until_gone, wait_until_ready

pytestmark = pytest.mark.slow

LOSS_NOTICED = 10.0
"""Seconds within which a lost server must be noticed by whoever uses it."""


def _pids(client: Client) -> dict[str, int]:
    """Return the process id of each worker and server by its address."""
    return client.run(os.getpid)


def _kill(client: Client, address: str) -> None:
    os.kill(_pids(client)[address], signal.SIGKILL)


def _retire(client: Client, address: str) -> None:
    client.retire_workers([address], close_workers=True)


LOSSES = pytest.mark.parametrize("lose", [_retire, _kill], ids=["graceful", "abrupt"])


@LOSSES
def test_closures_of_a_lost_worker_run_elsewhere(
    fragile: Client, tmp_path: Path, lose: Callable[[Client, str], None]
) -> None:
    with psnb.ParameterServerStrategy(fragile) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, drain_timeout=2)
        begun = tmp_path / "begun"

        def once_stuck(x: int) -> int:
            # The first run never ends by itself; whoever runs it again returns.
            if x == 0 and not begun.exists():
                begun.write_text(psnb.worker_context().worker_name)
                threading.Event().wait()
            return x

        remotes = [coordinator.schedule(once_stuck, (x,)) for x in range(50)]
        wait_until(lambda: begun.exists() and begun.read_text() != "", "the first closure runs")
        stuck = next(
            w.address for w in coordinator.statistics().workers if w.name == begun.read_text()
        )
        lose(fragile, stuck)
        assert [remote.fetch(DEADLINE) for remote in remotes] == list(range(50))
        coordinator.join(DEADLINE)
        s = coordinator.statistics()
        assert s.retried >= 1
        assert (s.completed, s.failed) == (50, 0)


def test_a_worker_that_comes_back_gets_its_values_and_work(fragile: Client) -> None:
    with psnb.ParameterServerStrategy(fragile) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        pid = coordinator.create_per_worker_resource(os.getpid)
        address = coordinator.schedule(lambda: psnb.worker_context().worker_name).fetch(DEADLINE)
        victim = next(w for w in coordinator.statistics().workers if w.name == address)
        before = set(_pids(fragile).values())
        _kill(fragile, victim.address)

        def both_ready() -> bool:
            workers = coordinator.statistics().workers
            return [w.state for w in workers] == ["ready", "ready"] and victim.address not in {
                w.address for w in workers
            }

        wait_until(both_ready, "the nanny's new worker is ready, in the place of the lost one")

        def new_worker_works() -> bool:
            pids = coordinator.fetch([coordinator.schedule(lambda p: p, (pid,)) for _ in range(20)])
            return bool(set(pids) - before)

        wait_until(new_worker_works, "the new worker runs closures with its own value")


def test_a_closure_that_kills_its_worker_again_and_again_fails(fragile: Client) -> None:
    with psnb.ParameterServerStrategy(fragile) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        poison = coordinator.schedule(os._exit, (3,), retries=1)
        with pytest.raises(errors.WorkerLostError, match=r"_exit.*2 times"):
            coordinator.join(DEADLINE)
        with pytest.raises(errors.WorkerLostError):
            poison.fetch()
        assert coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3


def test_work_waits_until_a_worker_joins(fragile: Client) -> None:
    with psnb.ParameterServerStrategy(fragile) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(lambda: None).fetch(DEADLINE)
        wait_until_ready(coordinator, "worker-0", "worker-1")
        fragile.cluster.scale(1)  # the server alone
        wait_until(lambda: strategy.num_workers == 0, "both workers are gone")
        wait_until_gone(coordinator, "worker-0", "worker-1")
        remote = coordinator.schedule(lambda: 3)
        with pytest.raises(TimeoutError):
            remote.fetch(timeout=0.5)
        fragile.cluster.scale(2)
        assert remote.fetch(DEADLINE) == 3


def test_a_lost_server_is_an_error_at_once_wherever_it_is_used(fragile: Client) -> None:
    with psnb.ParameterServerStrategy(fragile) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(3))
        table = strategy.embedding("table", 2)
        coordinator.schedule(lambda: v.read()).fetch(DEADLINE)
        _kill(fragile, strategy.server_addresses[0])
        wait_until(
            lambda: strategy.server_addresses[0] not in identity(fragile)["workers"],
            "the server has left",
        )
        begin = time.monotonic()
        with pytest.raises(errors.ServerLostError, match=r"checkpoint|gone"):
            v.read()
        remote = coordinator.schedule(lambda: table.lookup([1]))
        with pytest.raises(errors.ServerLostError):
            remote.fetch(LOSS_NOTICED)
        with pytest.raises(errors.ServerLostError):
            coordinator.join(LOSS_NOTICED)
        assert time.monotonic() - begin < 2 * LOSS_NOTICED


def test_join_ends_when_the_client_is_closed_under_it() -> None:
    with psnb.local_cluster(workers=1, servers=1) as client:
        strategy = psnb.ParameterServerStrategy(client)
        coordinator = psnb.ClusterCoordinator(strategy)
        started = coordinator.create_per_worker_resource(lambda: None)
        coordinator.schedule(lambda _: None, (started,)).fetch(DEADLINE)
        coordinator.schedule(lambda: threading.Event().wait(60))
        ended: list[BaseException] = []

        def join() -> None:
            try:
                coordinator.join(DEADLINE)
            except BaseException as error:
                ended.append(error)

        joining = threading.Thread(target=join)
        joining.start()
        client.close()
        joining.join(DEADLINE)
        assert [type(error) for error in ended] == [errors.CoordinatorClosedError]
        with pytest.raises(errors.CoordinatorClosedError):
            coordinator.schedule(print)
        strategy.close()


@pytest.mark.slow
def test_a_coordinator_that_wrote_to_another_strategy_closes_after_its_client() -> None:
    with psnb.local_cluster(workers=1, servers=1) as client:
        strategies = [psnb.ParameterServerStrategy(client) for _ in range(2)]
        own, others = (strategy.variable(np.zeros(1)) for strategy in strategies)
        coordinator = psnb.ClusterCoordinator(strategies[0])

        def write() -> None:
            own.assign_add([1.0])
            others.assign_add([1.0])

        coordinator.schedule(write).fetch(DEADLINE)
        client.close()
        coordinator.close()
        assert coordinator.statistics().state == "closed"


def test_training_goes_on_while_workers_are_killed(fragile: Client) -> None:
    with psnb.ParameterServerStrategy(fragile) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        counter = strategy.variable(np.int64(0))

        def count() -> None:
            counter.assign_add(np.int64(1))

        total = 3000
        for _ in range(total):
            coordinator.schedule(count)
        for killed in range(2):
            wait_until(
                lambda killed=killed: coordinator.statistics().completed > 500 * (killed + 1),
                "some closures have ended",
            )
            ready = [w.address for w in coordinator.statistics().workers if w.state == "ready"]
            _kill(fragile, ready[0])
        coordinator.join(2 * DEADLINE)
        s = coordinator.statistics()
        assert (s.completed, s.failed) == (total, 0)
        assert int(counter.read()) == total
