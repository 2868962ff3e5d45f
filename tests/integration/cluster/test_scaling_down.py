"""Who is ended when somebody else scales a cluster down: a server that was emptied, before all."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

import psnb
from psnb._src.cluster.roles import identity
from psnb._src.dask_compat.plugins import WorkerState
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import Steps, address_of

WORKERS = ("workers-0", "workers-1", "workers-2")
SERVERS = ("servers-0", "servers-1")


@pytest.fixture
def client() -> Iterator[Client]:
    """A cluster of two groups, as on Kubernetes: its scheduler does not know of them."""
    processes: dict[str, Any] = {
        name: {
            "cls": Worker,
            "options": {
                "name": name,
                "nthreads": 1,
                "resources": {"ps": 1} if name in SERVERS else {},
                "dashboard_address": "127.0.0.1:0",
            },
        }
        for name in (*WORKERS, *SERVERS)
    }
    own = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1", "port": 0}
    scheduler = {"cls": Scheduler, "options": own}
    with SpecCluster(workers=processes, scheduler=scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(len(processes), DEADLINE)
        yield client


@pytest.fixture
def strategy(client: Client) -> Iterator[psnb.ParameterServerStrategy]:
    """Its parameters are on both servers."""
    with psnb.ParameterServerStrategy(client) as strategy:
        strategy.embedding("rows", dim=2).lookup(np.arange(100))
        yield strategy


def closable(client: Client, **arguments: Any) -> list[str]:
    """Ask the scheduler whom it would end, by name, as whoever scales a cluster does."""

    async def ask() -> Any:
        return await client.scheduler.workers_to_close(**{"attribute": "name"} | arguments)

    return list(client.sync(ask))


def scale_down(client: Client, by: int) -> list[str]:
    """Do what dask-kubernetes' operator does when a group is to have fewer processes."""

    async def retire() -> Any:
        names = await client.scheduler.workers_to_close(n=by, attribute="name")
        await client.scheduler.retire_workers(names=names)
        return names

    return list(client.sync(retire))


def names(client: Client) -> set[str]:
    return {str(each["name"]) for each in identity(client)["workers"].values()}


def by_last(worker: WorkerState) -> str:
    """Group workers by the last letter of their names."""
    return str(worker.name)[-1]


@pytest.mark.parametrize("drained", SERVERS)
def test_an_emptied_server_is_ended_first(
    client: Client, strategy: psnb.ParameterServerStrategy, drained: str
) -> None:
    assert set(closable(client, n=9)) == set(WORKERS)
    strategy.rebalance(drain=[drained])
    assert scale_down(client, 1) == [drained]
    assert names(client) == {*WORKERS, *SERVERS} - {drained}
    assert set(closable(client, n=9)) == set(WORKERS)


def test_an_emptied_server_goes_first_whatever_dask_would_take(
    client: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    held = client.scatter(np.zeros(1000), workers=[address_of(client, "servers-0")])
    strategy.rebalance(drain=["servers-0"])
    first, *rest = closable(client, n=3)
    assert first == "servers-0"
    assert len(rest) == 2
    assert set(rest) < set(WORKERS)
    assert closable(client, target=4) == ["servers-0"]
    assert closable(client, target=5) == closable(client, n=0) == []
    assert len(closable(client, n=9, minimum=3)) == 2
    assert closable(client, n=1, attribute="address") == [address_of(client, "servers-0")]
    assert held.status == "finished"


def test_emptied_servers_go_first_of_groups_that_go_together(
    client: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    strategy.rebalance(drain=["servers-0"])
    # Where it goes with a worker that was not emptied, Dask chooses.
    assert set(closable(client, n=9, key=pickle.dumps(by_last))) == {*WORKERS, "servers-0"}
    kind: Callable[[WorkerState], str] = lambda worker: str(worker.name)  # noqa: E731
    alone = client.run_on_scheduler(
        lambda dask_scheduler: dask_scheduler.workers_to_close(n=1, key=kind, attribute="name")
    )
    assert alone == ["servers-0"]


def test_a_server_that_is_used_again_stays(
    client: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    strategy.rebalance(drain=["servers-0"])
    strategy.rebalance()
    assert set(closable(client, n=9)) == set(WORKERS)


def test_a_server_that_another_strategy_uses_stays(
    client: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    with psnb.ParameterServerStrategy(client) as other:
        v = other.variable(np.arange(9))
        strategy.rebalance(drain=["servers-0"])
        assert set(scale_down(client, 9)) == set(WORKERS)
        np.testing.assert_array_equal(v.read(), np.arange(9))


def test_servers_that_cannot_be_emptied_stay(
    client: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    with pytest.raises(psnb.errors.ConfigurationError, match="too few"):
        strategy.rebalance(drain=SERVERS)
    assert set(closable(client, n=9)) == set(WORKERS)


def test_workers_that_run_closures_are_not_ended_by_number(
    client: Client, strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    steps = Steps(tmp_path)
    with psnb.ClusterCoordinator(strategy) as coordinator:
        remotes = coordinator.map(lambda _: steps(), range(2))
        try:
            wait_until(lambda: len(closable(client, n=9)) == 1, "two run closures")
            strategy.rebalance(drain=["servers-1"])
            assert len(scale_down(client, 9)) == 2
            assert names(client) == {"servers-0", *steps.runs()}
        finally:
            steps.end()
        coordinator.fetch(remotes)


def test_adaptive_scaling_ends_an_emptied_server_and_no_worker(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    with (
        psnb.local_cluster(workers=2, servers=2, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
        psnb.ClusterCoordinator(strategy) as coordinator,
    ):
        try:
            remotes = coordinator.map(lambda _: steps(), range(2))
            wait_until(lambda: not closable(client, n=9), "the scheduler knows where they run")
            strategy.rebalance(drain=["server-0"])
            adaptive = client.cluster.adapt(
                minimum=1, maximum=4, interval="100ms", wait_count=2, target_duration="1s"
            )
            wait_until(lambda: "server-0" not in names(client), "the server leaves")
            wait_until(lambda: "server-0" not in client.cluster.plan, "it is not started again")
            assert client.cluster.plan == names(client) == {"worker-0", "worker-1", "server-1"}
            adaptive.stop()
        finally:
            steps.end()
        coordinator.fetch(remotes)
