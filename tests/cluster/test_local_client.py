"""The local clusters of this process: a second one, the same once more, and Dask's dashboard."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.cluster import local, start
from psnb._src.cluster.local import LocalClient
from psnb._src.cluster.roles import dashboard_link
from psnb._src.coordinator import coordinator as coordinators
from psnb._src.dask_compat.plugins import serves_dashboard
from tests.conftest import wait_until

ONE: dict[str, Any] = {"workers": 1, "servers": 1, "processes": False}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A cluster that seems to be the only one, though another may run."""
    monkeypatch.setattr(local, "_all", weakref.WeakSet())
    with psnb.local_cluster(**ONE) as client:
        yield client


def test_a_cluster_that_runs_is_used_again_until_it_is_closed(small: Client) -> None:
    assert psnb.local_cluster(**ONE, reuse=True) is small
    small.close()
    with psnb.local_cluster(**ONE, reuse=True) as another:
        assert another is not small


SET_UP = """
client = psnb.local_cluster(workers=1, servers=1, processes=False, reuse=True)
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy)
for _ in range(100):
    coordinator.schedule(time.sleep, (0.1,))
"""


def test_a_set_up_cell_that_runs_again_ends_what_it_has_made_before(small: Client) -> None:
    notebook: dict[str, Any] = {"psnb": psnb, "time": time}
    exec(SET_UP, notebook)
    before = coordinators.coordinator_core(notebook["coordinator"]).queue  # it keeps nobody alive
    exec(SET_UP, notebook)
    gc.collect()
    wait_until(lambda: before.statistics().closed, "the first coordinator has ended")
    assert notebook["coordinator"].statistics().state == "running"
    notebook["strategy"].close()


def test_a_cluster_of_another_shape_is_not_used(small: Client) -> None:
    with pytest.raises(errors.ClusterError, match=r"was started with workers=1, servers=1: ask"):
        psnb.local_cluster(**ONE | {"workers": 7, "servers": 2}, reuse=True)


def test_a_second_cluster_warns_of_the_first(
    small: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "psnb"), psnb.local_cluster(**ONE):
        pass
    [told] = [each.getMessage() for each in caplog.records if "another local" in each.getMessage()]
    assert small.scheduler.address in told
    assert "workers=1, servers=1" in told
    assert "reuse=True" in told


def test_a_dashboard_without_bokeh_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    with pytest.raises(errors.ClusterError, match=r"bokeh.*pip install 'psnb\[dashboard\]'"):
        psnb.local_cluster(dashboard=True)


def test_a_link_leads_only_where_there_is_a_dashboard(small: Client) -> None:
    assert dashboard_link(small) == ""
    assert "http" not in small._repr_html_()
    with psnb.ParameterServerStrategy(small) as strategy:
        view = coordinators.coordinator_core(psnb.ClusterCoordinator(strategy))
        assert view.identity()["dashboard"] == ""


def test_a_scheduler_serves_a_dashboard_if_bokeh_does() -> None:
    served_by_bokeh = type("BokehTornado", (), {"__module__": "bokeh.server.tornado"})
    dasks = type("DaskBokehTornado", (served_by_bokeh,), {"__module__": "distributed"})

    def scheduler(*applications: object) -> SimpleNamespace:
        return SimpleNamespace(http_application=SimpleNamespace(applications=list(applications)))

    assert not serves_dashboard(scheduler())  # type: ignore[arg-type]
    assert not serves_dashboard(scheduler(object()))  # type: ignore[arg-type]
    assert serves_dashboard(scheduler(dasks()))  # type: ignore[arg-type]


def test_dasks_dashboard_is_where_its_link_leads() -> None:
    with psnb.local_cluster(workers=1, servers=1, dashboard=True) as client:
        assert isinstance(client, LocalClient)
        link = dashboard_link(client)
        assert link == client.dashboard_link
        assert urlopen(link, timeout=30).status == 200
        assert link in client._repr_html_()
