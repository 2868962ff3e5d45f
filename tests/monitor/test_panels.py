"""Who is told of a coordinator."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from psnb._src.monitor.links.hub_link import HubLink
from psnb._src.monitor.links.panels import connect_panels
from psnb._src.monitor.links.scheduler_link import SchedulerLink
from tests.monitor.viewed import FakeViewed


def test_updates_go_to_the_jupyter_server_if_there_is_one_and_else_to_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed = FakeViewed()
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, timeout=10) as client,
        socket.socket() as held,
    ):
        monkeypatch.delenv("JPY_PARENT_PID", raising=False)
        far = connect_panels(viewed, client)
        assert isinstance(far, SchedulerLink)
        far.stop()
        held.bind(("127.0.0.1", 0))  # one that does not answer is told, too
        told = {"url": f"http://127.0.0.1:{held.getsockname()[1]}/", "base_url": "/"}
        (tmp_path / f"jpserver-{os.getpid()}.json").write_text(json.dumps(told))
        monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
        near = connect_panels(viewed, client)
        assert isinstance(near, HubLink)
        near.stop()
        assert not near.alive


def test_nothing_is_sent_to_the_scheduler_if_dasks_configuration_forbids_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, timeout=10) as client,
        dask.config.set({"psnb.tell-scheduler": False}),
    ):
        assert connect_panels(FakeViewed(), client) is None
        assert "psnb-updates" not in cluster.scheduler.plugins


def test_a_scheduler_that_is_gone_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    viewed = FakeViewed()
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        client = Client(cluster, timeout=10)
        client.close()
        assert connect_panels(viewed, client) is None
