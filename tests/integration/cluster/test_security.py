"""Local clusters that other users of the host cannot enter."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
from distributed import Client, Security
from distributed.comm import connect as reach

import psnb
from psnb import errors
from psnb._src.cluster import local as clusters
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import wait_until_copied


@pytest.fixture(scope="module")
def before() -> set[int]:
    """Return the ports on which this process listened before it had a private cluster."""
    return listening()


@pytest.fixture(scope="module")
def paths() -> set[str]:
    """Return what this process, of which others are forked, imported from before."""
    return set(sys.path)  # also folders of Dask workers that other tests ran in it


@pytest.fixture(scope="module")
def private(before: set[int], paths: set[str]) -> Iterator[Client]:
    """A worker and two servers that talk to nobody without certificates."""
    with psnb.local_cluster(workers=1, servers=2, security=True) as client:
        yield client


def listening(process: psutil.Process | None = None) -> set[int]:
    """Return the ports on which a process listens; this one by default."""
    pid = (process or psutil.Process()).pid
    connections = [each for each in psutil.net_connections("inet") if each.pid == pid]
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def addresses(client: Client) -> set[str]:
    """Return where scheduler, nannies, workers and servers listen."""
    workers = identity(client)["workers"]
    nannies = {worker["nanny"] for worker in workers.values()}
    return {client.scheduler.address, *nannies, *workers}


@pytest.mark.parametrize("security", [Security(), Security.temporary()], ids=["none", "others"])
@pytest.mark.parametrize("protocol", ["tls", "tcp"])
def test_no_client_gets_in_without_the_certificates(
    private: Client, protocol: str, security: Security
) -> None:
    places = [address.replace("tls", protocol, 1) for address in addresses(private)]
    arguments = security.get_connection_args("client") | {"require_encryption": False}

    async def refused(place: str) -> Exception | None:
        try:
            comm = await reach(place, timeout=5, **arguments)
        except (OSError, TypeError) as error:
            return error
        comm.abort()
        return None

    found = [private.sync(refused, place) for place in places]
    assert len(found) == 1 + 3 + 3
    assert all(found)


def test_nothing_listens_but_what_asks_for_certificates(private: Client, before: set[int]) -> None:
    inside = private.run(lambda: listening())
    ports = {urlsplit(address).port for address in addresses(private)}
    assert len(ports) == 1 + 3 + 3
    assert (listening() - before).union(*inside.values()) == ports
    assert all(address.startswith("tls://127.0.0.1:") for address in addresses(private))


@pytest.mark.parametrize("protocol", ["tls", "tcp"])
def test_connecting_without_certificates_raises_what_to_do(private: Client, protocol: str) -> None:
    address = private.scheduler.address.replace("tls", protocol, 1)
    begin = time.monotonic()
    with pytest.raises(errors.ClusterError, match=rf"{address}.*(certificates|tls://)"):
        psnb.connect(address)
    assert time.monotonic() - begin < 10


def test_who_brings_the_certificates_connects(private: Client) -> None:
    address = private.scheduler.address
    with psnb.connect(address, security=private.security) as client:
        assert client.scheduler.address == address
    with pytest.raises(errors.ConfigurationError, match=r"must be a distributed\.Security, found"):
        psnb.connect(address, security={"tls_ca_file": "ca.pem"})  # type: ignore[arg-type]


def test_the_key_is_on_no_command_line(private: Client) -> None:
    pids = [os.getpid(), *private.run(os.getpid).values()]
    assert len(pids) == 4
    for process in map(psutil.Process, pids):
        assert "PRIVATE KEY" not in " ".join(process.cmdline())


def test_closures_train_and_workers_join_behind_certificates(private: Client) -> None:
    with psnb.ParameterServerStrategy(private, replicas=1) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(100_000, np.float32), optimizer=psnb.SGD(1.0))
        table = strategy.embedding("rows", 2, initializer=0.0, optimizer=psnb.SGD(1.0))

        def push() -> None:
            v.push(-np.ones(100_000, np.float32))
            table.push([3], -np.ones((1, 2), np.float32))

        coordinator.add_worker()
        wait_until(lambda: strategy.num_workers == 2, "it has joined", 2 * DEADLINE)
        for _ in range(100):
            coordinator.schedule(push)
        coordinator.join(DEADLINE)
        np.testing.assert_array_equal(v.read(), np.full(100_000, 100))
        np.testing.assert_array_equal(table.lookup([3]), [[100, 100]])
        # Servers reach each other, too.
        wait_until_copied(strategy)


def test_other_users_of_the_host_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clusters, "neighbours", lambda: ["eve", "mallory"])
    clusters._link(security=True)
    assert not caplog.messages
    clusters._link(security=False)
    (message,) = caplog.messages
    assert "(eve, mallory)" in message
    assert "local_cluster(security=True)" in message


def test_there_is_no_warning_without_other_users(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clusters, "neighbours", list)
    clusters._link(security=False)
    assert not caplog.messages


def test_certificates_without_cryptography_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(errors.ClusterError, match=r"pip install 'psnb\[security\]'"):
        psnb.local_cluster(security=True)


def test_processes_of_a_local_cluster_import_from_no_folder_of_others(
    private: Client, paths: set[str]
) -> None:
    def scratch() -> list[str]:
        return [
            folder for folder in sys.path if "dask-scratch-space" in folder and folder not in paths
        ]

    def open_to_others(folder: str) -> bool:
        """Return whether no folder on the way there keeps others out."""
        path = Path(folder)
        return not any(stat.S_IMODE(each.stat().st_mode) == 0o700 for each in path.parents)

    found: dict[Any, list[str]] = private.run(scratch)
    assert len(found) >= 3
    assert all(found.values())
    assert not [each for folders in found.values() for each in folders if open_to_others(each)]
    assert not [each for each in scratch() if open_to_others(each)]
