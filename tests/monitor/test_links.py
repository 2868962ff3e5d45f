"""Who is told of a coordinator."""

from __future__ import annotations

import dask
import pytest
from distributed import Client, LocalCluster

from psnb._src.monitor.served.hub_link import HubLink
from psnb._src.monitor.served.links import tell_panels
from psnb._src.monitor.served.scheduler_link import SchedulerLink
from tests.monitor.hub.jupyter import Jupyter
from tests.monitor.viewed import FakeViewed


@pytest.mark.slow
def test_the_jupyter_server_is_told_if_there_is_one_and_else_the_scheduler(
    server: Jupyter, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed = FakeViewed()
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, timeout=10) as client,
    ):
        monkeypatch.delenv("JPY_PARENT_PID", raising=False)
        far = tell_panels(viewed, client)
        assert isinstance(far, SchedulerLink)
        far.close()
        monkeypatch.setenv("JPY_PARENT_PID", str(server.process))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.runtime))
        near = tell_panels(viewed, client)
        assert isinstance(near, HubLink)
        near.close()
        assert not near.alive


@pytest.mark.slow
def test_the_scheduler_is_told_nothing_if_dasks_configuration_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, timeout=10) as client,
        dask.config.set({"psnb.tell-scheduler": False}),
    ):
        assert tell_panels(FakeViewed(), client) is None
        assert "psnb-updates" not in cluster.scheduler.plugins


@pytest.mark.slow
def test_a_scheduler_that_is_gone_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    viewed = FakeViewed()
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        client = Client(cluster, timeout=10)
        client.close()
        assert tell_panels(viewed, client) is None
