"""Workers that are retired, scaled and joined while closures run; servers that must stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import (
    Steps,
    address_of,
    kinds_of,
    state_of,
    wait_until_gone,
    wait_until_ready,
)


@pytest.fixture
def small() -> Iterator[Client]:
    """Two workers and a server in this process, for one test alone."""
    with psnb.local_cluster(workers=2, servers=1, processes=False) as client:
        yield client


def _retire(client: Client, name: str) -> None:
    client.retire_workers([address_of(client, name)])


def _terminate(client: Client, name: str) -> None:
    # What Kubernetes does to a pod: the worker's nanny asks it to close.
    address = address_of(client, name)
    client.run(
        lambda dask_worker: dask_worker.loop.add_callback(dask_worker.close), workers=[address]
    )


@pytest.mark.parametrize("leave", [_retire, _terminate], ids=["retired", "closed"])
def test_a_worker_that_leaves_finishes_its_closure_and_gets_no_other(
    small: Client, tmp_path: Path, leave: Callable[[Client, str], None]
) -> None:
    with psnb.ParameterServerStrategy(small) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        counter = strategy.variable(np.int64(0))
        steps = Steps(tmp_path)

        def count() -> str:
            name = steps()
            counter.assign_add(np.int64(1))
            return name

        remote = coordinator.schedule(count)
        wait_until(lambda: len(steps.runs()) == 1, "it runs")
        (name,) = steps.runs()
        leave(small, name)
        wait_until(lambda: state_of(coordinator, name) == "draining", "the worker drains")
        others = [coordinator.schedule(lambda: psnb.worker_context().worker_name) for _ in range(9)]
        assert name not in coordinator.fetch(others)
        assert state_of(coordinator, name) == "draining"
        steps.end()
        assert remote.fetch(DEADLINE) == name
        coordinator.join(DEADLINE)
        assert coordinator.statistics().retried == 0
        assert int(counter.read()) == 1
        wait_until(
            lambda: (
                kinds_of(coordinator, name)
                == [
                    EventKind.WORKER_JOINED,
                    EventKind.WORKER_RETIRING,
                    EventKind.WORKER_RETIRED,
                ]
            ),
            "events tell of its leaving",
        )


def test_a_worker_that_does_not_finish_in_time_loses_its_closure(
    small: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(small) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, drain_timeout=1)
        steps = Steps(tmp_path)
        remote = coordinator.schedule(steps)
        wait_until(lambda: len(steps.runs()) == 1, "it runs")
        _retire(small, steps.runs()[0])
        wait_until(lambda: len(steps.runs()) == 2, "it runs elsewhere")
        steps.end()
        assert remote.fetch(DEADLINE) == steps.runs()[1] != steps.runs()[0]
        assert coordinator.statistics().retried == 1


def test_scaling_down_takes_workers_and_never_servers(small: Client) -> None:
    with psnb.ParameterServerStrategy(small) as strategy:
        v = strategy.variable(np.arange(3))
        coordinator = psnb.ClusterCoordinator(strategy)
        small.cluster.scale(4)
        wait_until(lambda: strategy.num_workers == 3, "a worker has joined")
        small.cluster.scale(1)
        wait_until(lambda: strategy.num_workers == 0, "all workers have left")
        np.testing.assert_array_equal(v.read(), np.arange(3))
        with pytest.raises(errors.ConfigurationError, match=r"scale\(0\).*scale\(1 \+ workers\)"):
            small.cluster.scale(0)
        small.cluster.scale(2)
        np.testing.assert_array_equal(coordinator.schedule(v.read).fetch(DEADLINE), np.arange(3))


def test_servers_that_were_taken_from_a_plain_cluster_are_guarded(
    cluster: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    # On this cluster the servers are marked; the guard must know them by the layouts as well.
    servers = strategy.server_addresses

    def may_go(dask_scheduler: object) -> list[str]:
        marks = [dask_scheduler.workers[address].resources for address in servers]
        kept = [dict(mark) for mark in marks]
        for mark in marks:
            mark.clear()
        try:
            return dask_scheduler.workers_to_close(n=4)
        finally:
            for mark, before in zip(marks, kept, strict=True):
                mark.update(before)

    found = cluster.run_on_scheduler(may_go)
    assert len(found) == 2
    assert not set(found) & set(servers)


def test_work_without_any_worker_fails_after_the_worker_timeout_and_goes_on_later(
    small: Client,
) -> None:
    with psnb.ParameterServerStrategy(small) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, worker_timeout=1)
        coordinator.schedule(lambda: None).fetch(DEADLINE)
        wait_until_ready(coordinator, "worker-0", "worker-1")
        small.cluster.scale(1)
        wait_until(lambda: strategy.num_workers == 0, "all workers have left")
        wait_until_gone(coordinator, "worker-0", "worker-1")
        remotes = [coordinator.schedule(lambda: 3) for _ in range(2)]
        with pytest.raises(errors.WorkerLostError, match="no worker for 1 s"):
            coordinator.join(DEADLINE)
        for remote in remotes:
            with pytest.raises(errors.WorkerLostError):
                remote.fetch(0)
        assert EventKind.NO_WORKERS in [event.kind for event in coordinator.events()]
        small.cluster.scale(2)
        wait_until(lambda: strategy.num_workers == 1, "a worker has joined")
        assert re.fullmatch(r"worker-\d", *strategy.worker_names())

        def works() -> bool:
            try:
                return coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3
            except errors.WorkerLostError:
                return False

        wait_until(works, "the coordinator goes on")


def test_events_tell_of_failures_and_cancellations(
    strategy: psnb.ParameterServerStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "psnb")
    coordinator = psnb.ClusterCoordinator(strategy)
    with pytest.raises(ZeroDivisionError):
        coordinator.schedule(lambda: 1 // 0).fetch(DEADLINE)
    with pytest.raises(ZeroDivisionError):
        coordinator.join(DEADLINE)

    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "psnb"]

    # The thread that has settled the closure writes its event after others may have the error.
    wait_until(lambda: any("#0 failed" in each for each in logged()), "the failure is logged")
    coordinator.close()
    events = coordinator.events()
    assert [e.kind for e in events if e.kind is not EventKind.WORKER_JOINED] == [
        EventKind.CLOSURE_FAILED,
        EventKind.COORDINATOR_CLOSED,
    ]
    failed = next(e for e in events if e.kind is EventKind.CLOSURE_FAILED)
    assert failed.closures[0].endswith("<lambda> #0")
    assert logged() == [event.message for event in events]
