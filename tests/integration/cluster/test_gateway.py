"""A cluster that dask-gateway starts: the notebook reaches its scheduler through a proxy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.cluster.roles import identity
from tests.conftest import wait_until
from tests.integration.helpers import free_port, wait_until_ended

pytestmark = pytest.mark.second_tier("another kind of cluster; it starts seven processes")

CONFIGURATION = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{own}"
c.Proxy.address = "127.0.0.1:{proxy}"
c.UnsafeLocalBackend.clusters_directory = {folder!r}
c.UnsafeLocalBackend.inherited_environment = {environment!r}
c.ClusterConfig.scheduler_cmd = [{python!r}, "-m", "distributed.cli.dask_scheduler"]
c.ClusterConfig.worker_cmd = [{python!r}, "-m", "distributed.cli.dask_worker"]
c.ClusterConfig.worker_cores = 1
"""


@contextmanager
def gateway_server(folder: Path) -> Iterator[str]:
    """Run a gateway until the block ends, and with it what it has started; yield its address."""
    proxy, configuration = free_port(), folder / "dask_gateway_config.py"
    configuration.write_text(
        CONFIGURATION.format(
            own=free_port(),
            proxy=proxy,
            folder=str(folder / "clusters"),
            environment=list(os.environ),
            python=sys.executable,
        )
    )
    command = [sys.executable, "-m", "dask_gateway_server", "-f", str(configuration)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
    ):
        try:
            yield f"http://127.0.0.1:{proxy}"
        finally:
            server.terminate()
            try:
                server.wait(60)  # it ends its clusters first
            finally:
                server.kill()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Any]:
    """The gateway's own client."""
    module = pytest.importorskip("dask_gateway")
    with gateway_server(tmp_path) as address, module.Gateway(address, auth="basic") as gateway:

        def answers() -> bool:
            try:
                return gateway.list_clusters() == []
            except Exception:  # of aiohttp, and its own: it does not listen yet
                return False

        wait_until(answers, "the gateway answers")
        yield gateway


def pids(client: Client) -> list[int]:
    """Return the ids of all processes of a cluster."""
    return [*client.run(os.getpid).values(), client.run_on_scheduler(os.getpid)]


def test_a_cluster_of_a_gateway_trains_keeps_its_server_and_is_attached_to(gateway: Any) -> None:
    with gateway.new_cluster(shutdown_on_close=False) as cluster:
        cluster.scale(3)
        with cluster.get_client() as client:
            client.wait_for_workers(3, timeout=60)
            strategy = psnb.ParameterServerStrategy(client, num_servers=1, name="clicks")
            coordinator = psnb.ClusterCoordinator(strategy)
            v = strategy.variable(np.zeros(3, "f4"), optimizer=psnb.SGD(1.0), name="v")

            def step() -> None:
                v.push(np.ones(3, "f4"))

            for _ in range(20):
                coordinator.schedule(step)
            coordinator.join(60)
            np.testing.assert_array_equal(v.read(), np.full(3, -20))
            cluster.scale(1)  # of three, two of which would go
            wait_until(lambda: len(identity(client)["workers"]) == 1, "two leave", 60)
            assert set(identity(client)["workers"]) == set(strategy.server_addresses)
            np.testing.assert_array_equal(v.read(), np.full(3, -20))
            cluster.scale(2)
            client.wait_for_workers(2, timeout=60)
    strategy.close()  # without its client it leaves the parameters
    with gateway.connect(cluster.name) as cluster, cluster.get_client() as client:
        found = psnb.attach(client, "clicks")
        read = found.strategy.parameters["v"].read
        np.testing.assert_array_equal(found.coordinator.schedule(read).fetch(60), np.full(3, -20))
        found.strategy.close()
        processes = pids(client)
        cluster.shutdown()
    wait_until_ended(*processes)
