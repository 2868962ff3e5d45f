"""Saved runs as views take them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import psnb
from psnb._src.cli import main
from psnb._src.monitor import protocol
from psnb._src.monitor.charts.curves import curves_of
from psnb._src.monitor.history import History
from psnb._src.monitor.jupyter_server import messages
from psnb._src.training.run_updates import update_of
from psnb._src.training.runs import Run
from tests.monitor.test_protocol import fits


def run(path: str = "runs/ads", began: float = 100.0) -> Run:
    history = History()
    for step in range(1, 4):
        history.add(float(step), {"loss": 1.0 / step if step > 1 else math.nan, "examples": 8.0})
    history.cut(4.0, 2.0)
    return Run("ads", Path(path), began, began + 50.0, {}, 2, curves_of(history))


def test_a_run_is_a_full_update_with_its_curves() -> None:
    update = update_of(run())
    assert fits(json.loads(json.dumps(update)), protocol.Update)
    assert messages.read(json.dumps(update), protocol.Update)["full"]
    assert set(update) == protocol.Update.__required_keys__ | protocol.Update.__optional_keys__
    assert (update["identity"]["name"], update["identity"]["started"]) == ("ads", 100.0)
    assert (update["summary"]["state"], update["summary"]["elapsed"]) == ("saved", 50.0)
    assert update["summary"]["examples"] == 24.0
    assert update["rewinds"] == [{"step": 3, "time": 4.0, "kept": 2.0}]
    (loss,) = update["metrics"]  # how many examples a step had is nothing to chart
    assert (loss["name"], loss["count"], loss["last"]) == ("loss", 3, pytest.approx(1 / 3))


def test_a_run_is_the_same_coordinator_each_time_and_another_one_is_not() -> None:
    assert update_of(run())["coordinator"] == update_of(run())["coordinator"]
    assert update_of(run())["coordinator"] != update_of(run("runs/other"))["coordinator"]


def test_times_that_are_not_known_are_zero() -> None:
    update = update_of(run(began=math.nan))
    assert (update["summary"]["time"], update["summary"]["elapsed"]) == (0.0, 0.0)


def test_the_command_lists_runs_and_writes_the_newest_as_updates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        rows = (psnb.EpochRow(1, {"loss": 0.5 * number}, 100, 10, 1.5),)
        psnb.TrainingHistory(rows).save(tmp_path / f"day-{number}.run.json")
    assert main(["runs", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert "day-1" in table
    assert "day-2" in table
    assert main(["runs", "--updates", "1", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    metrics = json.loads(line)["metrics"]
    assert [each["last"] for each in metrics] == [1.0]
    assert np.isfinite(metrics[0]["smoothed"])


def test_a_folder_without_runs_is_an_error_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--updates", "1", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"psnb: there is no run in {tmp_path}\n"
