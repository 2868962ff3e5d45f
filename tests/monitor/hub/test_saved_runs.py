"""Saved runs of a folder in the hub's list."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import psnb
from psnb._src.monitor.jupyter_server import saved_runs
from psnb._src.monitor.jupyter_server.hub import Hub
from psnb._src.monitor.jupyter_server.saved_runs import is_folder
from psnb._src.monitor.protocol import VERSION, Attach, CommandReply
from tests.monitor.hub.test_hub import Managers


def attached(hub: Hub, folder: str) -> CommandReply:
    """Return the hub's answer to a page that has typed a folder."""

    async def ask() -> CommandReply:
        answered: asyncio.Future[CommandReply] = asyncio.get_running_loop().create_future()
        request = Attach(type="attach", version=VERSION, id="1", address=folder)
        hub.attach(request, answered.set_result)
        return await answered

    return asyncio.run(ask())


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(Managers(), Managers(), root=tmp_path)


def test_the_runs_of_a_folder_are_listed_as_what_is_gone_and_once(hub: Hub, tmp_path: Path) -> None:
    rows = (psnb.EpochRow(1, {"loss": 0.5}, 100, 10, 1.5),)
    (tmp_path / "runs").mkdir()
    path = psnb.TrainingHistory(rows).save(tmp_path / "runs" / "monday.run.json")
    for _ in range(2):
        reply = attached(hub, "./runs")
        assert (reply["error"], reply["result"]) == ("", "listed the runs of ./runs")
    (source,) = hub.listing()["sources"]
    assert (source["kind"], source["address"]) == ("saved", str(tmp_path / "runs"))
    assert source["gone"] == f"a saved run: {path}"
    ((_, text),) = hub.sources[source["coordinator"]].backlog.since()
    assert b'"monday' in text


def script(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have another program read the folder."""
    monkeypatch.setattr(saved_runs, "_READ", (sys.executable, "-S", "-c", code))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import sys; sys.exit('psnb: there is no run')", "there is no run"),
        ("print('{}')", "Object missing required field"),
        ("import time; time.sleep(60)", "was not read within 0.5 s"),
    ],
    ids=["it fails", "its answer is no update", "it takes too long"],
)
def test_what_cannot_be_read_is_said(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, code: str, error: str
) -> None:
    script(monkeypatch, code)
    monkeypatch.setattr(saved_runs, "TIME_LIMIT", 0.5 if "sleep" in code else 60.0)
    assert error in attached(hub, "runs/ads")["error"]
    assert hub.listing()["sources"] == []


@pytest.mark.parametrize(
    ("typed", "folder"),
    [
        *[(each, True) for each in ("./runs", "~/runs", "/data/runs", "runs/ads", "..")],
        *[(each, False) for each in ("host", "host:8786", "tcp://host:8786", "http://host/x")],
    ],
)
def test_a_folder_is_told_from_an_address(typed: str, folder: bool) -> None:
    assert is_folder(typed) is folder
