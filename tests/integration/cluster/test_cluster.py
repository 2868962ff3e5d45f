"""Clusters: roles, plain ones, too small ones, and ones started from the command line."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.helpers import CommandLine, worker_name


@pytest.fixture(scope="module")
def command_line_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`dask scheduler` and three `dask worker`s, one of them a server; yields the address."""
    cluster = CommandLine(tmp_path_factory.mktemp("dask"), anew=True)
    with ExitStack() as stack:
        stack.enter_context(cluster.scheduler())
        stack.enter_context(cluster.server())
        stack.enter_context(cluster.worker())
        stack.enter_context(cluster.worker("--no-nanny"))
        with connected(cluster.file) as client:
            client.wait_for_workers(3, timeout=DEADLINE)
            address = client.scheduler.address
        yield address


def _names(client: Client) -> dict[str, str]:
    """Return the name of each worker and server by its address."""
    return {a: str(worker["name"]) for a, worker in identity(client)["workers"].items()}


def test_closures_run_on_workers_only_and_parameters_live_on_servers_only(
    cluster: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    coordinator = psnb.ClusterCoordinator(strategy)
    names = _names(cluster)
    servers = {names[address] for address in strategy.server_addresses}
    ran = set(coordinator.fetch([coordinator.schedule(worker_name) for _ in range(50)]))
    assert len(servers) == 2
    assert ran <= set(names.values()) - servers
    assert (strategy.num_servers, strategy.num_workers) == (2, 2)


def test_a_plain_cluster_gives_up_workers_for_servers(plain: Client) -> None:
    with psnb.ParameterServerStrategy(plain, num_servers=1) as strategy:
        assert strategy.num_workers == 1
        v = strategy.variable(np.arange(3))
        coordinator = psnb.ClusterCoordinator(strategy)
        remotes = [coordinator.schedule(lambda: (worker_name(), v.read())) for _ in range(20)]
        found = coordinator.fetch(remotes)
        addresses = {worker.name: worker.address for worker in coordinator.statistics().workers}
        for name, value in found:
            assert addresses[name] not in strategy.server_addresses
            np.testing.assert_array_equal(value, np.arange(3))


@pytest.mark.parametrize(
    ("num_servers", "said"),
    [(2, "needs 3 workers.*has 2"), (None, "none of the cluster's 2 workers.*num_servers=k")],
)
def test_a_cluster_that_is_too_small_is_refused(
    plain: Client, num_servers: int | None, said: str
) -> None:
    with pytest.raises(errors.ClusterError, match=said):
        psnb.ParameterServerStrategy(plain, num_servers=num_servers)


def test_more_servers_than_were_started_are_refused(cluster: Client) -> None:
    with pytest.raises(errors.ClusterError, match=r"num_servers=3.*2 workers started"):
        psnb.ParameterServerStrategy(cluster, num_servers=3)


@pytest.mark.parametrize("num_servers", [0, -1, 1.5, "two"])
def test_a_number_of_servers_that_makes_no_sense_is_refused(
    cluster: Client, num_servers: object
) -> None:
    with pytest.raises(errors.ConfigurationError, match="num_servers must be 1 or more"):
        psnb.ParameterServerStrategy(cluster, num_servers=num_servers)  # type: ignore[arg-type]


def test_something_else_than_a_client_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match=r"psnb\.local_cluster"):
        psnb.ParameterServerStrategy("tcp://127.0.0.1:8786")  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["workers", "servers", "threads_per_worker"])
def test_a_local_cluster_of_nothing_is_refused(argument: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"{argument} must be 1 or more"):
        psnb.local_cluster(**{argument: 0})  # type: ignore[arg-type]


def test_no_scheduler_at_the_address_is_reported_in_time() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(errors.ClusterError, match=rf"{address}.* after 0\.5 s"):
            psnb.connect(address, timeout=0.5)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "8 s", True])
def test_a_timeout_too_short_to_connect_is_refused(timeout: object) -> None:
    with pytest.raises(errors.ConfigurationError, match="connect: timeout must be a positive"):
        psnb.connect("tcp://127.0.0.1:1", timeout=timeout)  # type: ignore[arg-type]


def test_an_address_that_is_none_is_reported() -> None:
    with pytest.raises(errors.ClusterError, match="nonsense://"):
        psnb.connect("nonsense://")


def test_processes_of_a_local_cluster_profile_nothing_and_end_with_its_client() -> None:
    key = "distributed.worker.profile.enabled"
    with psnb.local_cluster(workers=1, servers=1) as client:
        pids = list(client.run(os.getpid).values())
        assert len({*pids, os.getpid()}) == 3
        # Nobody looks at what Dask would tell.
        assert not any(client.run(dask.config.get, key).values())
        assert dask.config.get(key)  # here it is as it was
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "they have ended")


def test_a_cluster_from_the_command_line_trains(command_line_cluster: str) -> None:
    with (
        psnb.connect(command_line_cluster) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        assert (strategy.num_servers, strategy.num_workers) == (1, 2)
        v = strategy.variable(np.zeros(2, np.float32), optimizer=psnb.SGD(1.0))
        coordinator = psnb.ClusterCoordinator(strategy)
        for _ in range(100):
            coordinator.schedule(lambda: v.push(-np.ones(2, np.float32)))
        coordinator.join(DEADLINE)
        np.testing.assert_array_equal(v.read(), [100, 100])


def test_workers_from_the_command_line_have_names(command_line_cluster: str) -> None:
    with (
        psnb.connect(command_line_cluster) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        assert strategy.worker_names() == {"worker-0", "worker-1"}
        coordinator = psnb.ClusterCoordinator(strategy)
        for name in strategy.worker_names():
            remote = coordinator.schedule(lambda: psnb.worker_context().worker_name, worker=name)
            assert remote.fetch(DEADLINE) == name


def test_a_closed_client_is_named_whatever_is_asked_of_it() -> None:
    client = psnb.local_cluster(workers=1, processes=False)
    strategy = psnb.ParameterServerStrategy(client)
    coordinator = psnb.ClusterCoordinator(strategy)
    client.close()
    for call in (
        lambda: psnb.ParameterServerStrategy(client),
        lambda: strategy.num_workers,
        lambda: strategy.variable([1.0]),
        lambda: coordinator.schedule(print),
    ):
        with pytest.raises(errors.PsnbError, match=r"the Dask client is closed.*psnb\.connect"):
            call()
    strategy.close()


def test_who_waits_is_told_that_the_client_was_closed() -> None:
    with psnb.local_cluster(workers=1, processes=False) as owner:
        client = Client(owner.cluster)  # its event loop goes on without it, as it is the cluster's
        strategy = psnb.ParameterServerStrategy(client)
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.pause()
        coordinator.schedule(print)
        with ThreadPoolExecutor(1) as threads, closing(strategy):
            waits = threads.submit(coordinator.join)
            client.close()
            with pytest.raises(errors.CoordinatorClosedError, match="the Dask client is closed"):
                waits.result(DEADLINE)
