"""A path that begins with ``~``: the home folder, at every door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import psnb
from psnb._src.cli import _parsers
from psnb._src.data.formats.text import TextLines
from psnb._src.training.prediction_files import PredictionFiles
from psnb.data import Dataset
from psnb.errors import CheckpointError, ExportError
from tests.training.fake_trainer import FakeTrainer


def files_of(dataset: Dataset) -> str:
    node: Any = dataset.node
    return str(node.files[0].path)


DOORS: dict[str, Callable[[str], Any]] = {
    "text_lines": lambda path: files_of(Dataset.text_lines(path)),
    "csv": lambda path: files_of(Dataset.csv([path])),
    "from_files": lambda path: files_of(Dataset.from_files(TextLines(), path)),
    "with_files": lambda path: files_of(Dataset.text_lines("x").with_files(path)),
    "TFRecordWriter": lambda path: psnb.data.TFRecordWriter(path).path,
    "CSVLog": lambda path: psnb.CSVLog(path)._path,
    "JSONLinesLog": lambda path: psnb.JSONLinesLog(path)._path,
    "TensorBoard": lambda path: psnb.TensorBoard(path)._folder,
    "predictions": lambda path: Path(PredictionFiles(f"{path}/*.csv").pattern).parent,
    "predictions of a Path": lambda path: Path(PredictionFiles(Path(path, "*.csv")).pattern).parent,
    "psnb runs": lambda path: _parsers()[0].parse_args(["runs", path]).directory,
    "psnb checkpoints": lambda path: _parsers()[0].parse_args(["checkpoints", path]).directory,
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_tilde_is_the_home_folder(door: Callable[[str], Any], home: Path) -> None:
    assert str(door("~/there")) == str(home / "there")


def test_datasets_are_saved_and_cached_in_the_home_folder(home: Path) -> None:
    Dataset.range(3).save("~/saved")
    assert [*Dataset.load("~/saved").cache("~/cached")] == [0, 1, 2]
    assert sorted(each.name for each in home.iterdir()) == ["cached", "saved"]


def test_models_and_checkpoints_are_sought_in_the_home_folder(home: Path) -> None:
    with pytest.raises(ExportError, match=str(home / "model")):
        psnb.load_model("~/model")
    with pytest.raises(CheckpointError, match=str(home / "step-1")):
        psnb.checkpoint.load("~/step-1")


ROWS = (psnb.EpochRow(1, {"loss": 0.5}, 100, 10, 1.5),)


def written(path: str) -> dict[str, Callable[[], object]]:
    """Return what writes a file, by its name."""
    trainer: Any = FakeTrainer()
    history = psnb.TrainingHistory(ROWS)
    return {
        "log.csv": lambda: psnb.CSVLog(f"{path}/log.csv").on_epoch(trainer, ROWS[0]),
        "log.jsonl": lambda: psnb.JSONLinesLog(f"{path}/log.jsonl").on_begin(trainer),
        "day.run.json": lambda: history.save(f"{path}/day.run.json"),
        "loss.png": lambda: psnb.compare(history).savefig(f"{path}/loss.png"),
    }


@pytest.mark.parametrize("name", written(""))
def test_files_are_written_there_also_in_a_folder_that_is_new(name: str, home: Path) -> None:
    written("~/new")[name]()
    assert (home / "new" / name).is_file()
