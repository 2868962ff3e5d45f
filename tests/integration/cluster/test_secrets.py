"""Who reads what a closure was called with when it fails: the notebook, and who has logged in."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import psnb
from psnb._src.cluster.roles import identity
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.monitor.links.hub_link import HubLink, JupyterServer
from psnb._src.monitor.links.scheduler_link import SchedulerLink
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.helpers import CommandLine
from tests.monitor.hub.jupyter import TOKEN, Jupyter, jupyter

# In parts, so that no code that travels has it as a whole.
SECRET = "-".join(["hunter2", "secret"])


def login(user: str, password: str) -> None:
    raise PermissionError(f"{user} may not come in with {password}")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    dask = CommandLine(tmp_path, anew=True)
    with (
        dask.scheduler(),
        dask.server(),
        dask.worker("--no-nanny"),
        connected(dask.file) as client,
    ):
        client.wait_for_workers(2, timeout=DEADLINE)
        yield client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Jupyter]:
    with jupyter(tmp_path, f"--IdentityProvider.token={TOKEN}") as server:
        yield server


@pytest.mark.second_tier(
    "all of it once more: test_outline.py, test_scheduler_link.py have each part"
)
def test_the_scheduler_never_hears_what_a_closure_that_failed_was_called_with(
    client: Client, server: Jupyter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    strategy = psnb.ParameterServerStrategy(client)
    coordinator = psnb.ClusterCoordinator(strategy)  # outside of Jupyter: the scheduler is told
    hub = HubLink(coordinator_core(coordinator), JupyterServer(server.url, "", TOKEN))
    assert isinstance(coordinator._link, SchedulerLink)
    try:
        coordinator.schedule(login, ("bob", SECRET))
        with pytest.raises(PermissionError, match=SECRET):
            coordinator.join()
        (failure,) = coordinator.failures()
        assert f"login('bob', '{SECRET}')" in failure.traceback

        hub.start()
        with server.panel() as panel:
            told = panel.hear("update", coordinator=coordinator_core(coordinator).id, full=True)
            assert SECRET in told["failures"][0]["traceback"]

        wait_until(lambda: bool(_failures(client)), "the scheduler has heard of the failure")
        (row,) = _failures(client)
        assert row["error"] == "PermissionError"
        assert row["closure"].startswith("login #")
        assert SECRET not in json.dumps(_asked(client))
        if sys.platform == "linux":
            pid = client.run_on_scheduler(lambda: __import__("os").getpid())
            assert b"login #" in _memory(pid)
            assert SECRET.encode() not in _memory(pid)
    finally:
        hub.stop()
        coordinator.close()
        strategy.close()


def _asked(client: Client) -> Any:
    port = identity(client)["services"]["dashboard"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/psnb/updates", timeout=5) as answer:
        return json.loads(answer.read())


def _failures(client: Client) -> list[dict[str, Any]]:
    updates = [each for told in _asked(client)["coordinators"] for each in told["updates"]]
    return [row for each in updates for row in each.get("failures", [])]


def _memory(pid: int) -> bytes:
    """Return all that a process may write to."""
    parts = []
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(each, 16) for each in where.split("-"))
            try:
                memory.seek(start)
                parts.append(memory.read(end - start))
            except (OSError, OverflowError):  # mapped for devices, or gone meanwhile
                continue
    return b"".join(parts)
