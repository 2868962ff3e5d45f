"""The `psnb` command as a user runs it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import psnb
import psnb._src.cluster.local
from psnb._src import cli
from psnb._src.demo.run import write_learning_curve

PNG = b"\x89PNG\r\n\x1a\n"


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "psnb._src.cli", "demo", "--checkpoint-dir", str(folder), *options],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def no_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no data: errors come before they are needed."""
    monkeypatch.setattr("psnb._src.demo.run.loaded", lambda: None)


def test_the_help_is_about_the_tool(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = capsys.readouterr().out
    assert "psnb trains models in notebooks, on a Dask cluster" in said
    assert re.search(r"^ +demo +train a wide & deep model", said, re.MULTILINE)
    assert "psnb demo --workers 2" in said


def test_the_demo_trains_saves_and_resumes_with_the_same_batch_size_only(
    cluster: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = ("--scheduler", cluster.scheduler.address)
    # Few steps, of many flights each: it is the command that is tested here, not the model.
    options = ("demo", "--checkpoint-dir", str(tmp_path), *scheduler, "--batch-size")
    assert cli.main([*options, "65536"]) == 0
    said = capsys.readouterr().out
    assert "2 parameter server(s), 2 worker(s)" in said
    auc = _auc(said)
    assert 0.5 < auc < 1
    checkpoint = re.search(r"checkpoint\s+(\S+)", said)
    assert checkpoint is not None
    assert (Path(checkpoint[1]) / "manifest.json").exists()
    assert (tmp_path / "learning-curve.png").read_bytes().startswith(PNG)

    assert cli.main([*options, "32768"]) == 1
    assert "--batch-size 65536" in capsys.readouterr().err
    assert cli.main([*options, "65536"]) == 0
    said = capsys.readouterr().out
    assert "3 of 3 steps are done" in said
    assert _auc(said) == auc


@pytest.mark.parametrize("saved", [False, True])
def test_a_lost_server_is_answered_with_what_the_command_can_do(
    cluster: Client,
    tmp_path: Path,
    no_flights: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved: bool,
) -> None:
    def lose(
        trainer: psnb.Trainer, *args: Any, checkpoint: psnb.CheckpointManager, **how: Any
    ) -> None:
        if saved:
            checkpoint.save()
        raise psnb.errors.ServerLostError("shard 0 is gone; strategy.recover() it is")

    monkeypatch.setattr(psnb.Trainer, "train_from_dataset", lose)
    scheduler = ("--scheduler", cluster.scheduler.address)
    assert cli.main(["demo", "--checkpoint-dir", str(tmp_path), *scheduler]) == 1
    said = capsys.readouterr().err
    assert "shard 0 is gone; " in said
    assert "strategy.recover" not in said
    way = f"the same command goes on from {tmp_path / 'ckpt-'}" if saved else "--checkpoint-seconds"
    assert way in said


@pytest.mark.second_tier("two full runs: the first tier has a short one, and the quickstart's AUC")
def test_the_demo_reaches_an_auc_of_080_and_resumes_where_it_ended(tmp_path: Path) -> None:
    first = demo(tmp_path)
    assert first.returncode == 0, first.stderr
    auc = _auc(first.stdout)
    assert auc > 0.80
    for said in ("0.787    histogram gradient boosting", "references, not run now"):
        assert said in first.stdout
    assert re.search(r"training speed\s+[\d,]+ examples/s", first.stdout)
    checkpoint = re.search(r"checkpoint\s+(\S+)", first.stdout)
    assert checkpoint is not None
    assert (Path(checkpoint[1]) / "manifest.json").exists()
    assert (tmp_path / "learning-curve.png").read_bytes().startswith(PNG)

    second = demo(tmp_path, "--workers", "1")
    assert second.returncode == 0, second.stderr
    assert "511 of 511 steps are done" in second.stdout
    assert _auc(second.stdout) == auc


def _auc(output: str) -> float:
    found = re.search(r"^held-out AUC\s+([\d.]+)", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


@pytest.mark.usefixtures("no_flights")
@pytest.mark.parametrize("security", [False, True])
def test_the_demo_keeps_other_users_out_if_asked(
    security: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def local_cluster(**options: Any) -> Client:
        asked.append(options["security"])
        raise psnb.errors.ClusterError("enough was seen")

    monkeypatch.setattr(psnb, "local_cluster", local_cluster)
    options = ("demo", "--checkpoint-dir", str(tmp_path), *(["--security"] if security else []))
    assert cli.main(options) == 1
    assert asked == [security]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--epochs", "0"], "--epochs: must be a whole number, 1 or more"),
        (["--batch-size", "many"], "--batch-size: must be a whole number"),
        (["--batch-size", "300000"], "--batch-size must be 261,877 at most"),
        (["--workers", "-1"], "--workers: must be a whole number"),
        (["--servers", "0"], "--servers: must be a whole number"),
        (["--scheduler", "tcp://127.0.0.1:1", "--workers", "2"], "--workers is for the local"),
        (["--scheduler", "tcp://127.0.0.1:1", "--security"], "--security is for the local"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["demo", *options])
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The address of a port that is taken, and where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.usefixtures("no_flights")
def test_a_scheduler_that_is_not_there_is_an_error_without_a_traceback(
    nowhere: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(psnb, "connect", partial(psnb.connect, timeout=0.5))
    options = ("--checkpoint-dir", str(tmp_path), "--scheduler", nowhere)
    assert cli.main(["demo", *options]) == 1
    assert f"no Dask scheduler answers at {nowhere!r}" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_an_error_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["demo", "--checkpoint-dir", str(tmp_path / "file" / "below")]) == 1
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert "cluster" not in said.out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("psnb ")


def test_a_learning_curve_of_one_point_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    row = psnb.EpochRow(1, {"loss": float("nan"), "val_auc": 0.5}, None, 0, 1.0)
    write_learning_curve(path, psnb.TrainingHistory((row,)), 512)
    assert path.read_bytes().startswith(PNG)
