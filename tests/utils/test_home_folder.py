"""A path that begins with ``~``: the home folder, at every door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import psnb
from psnb._src.data.formats.text import TextLines
from psnb._src.training.prediction_files import PredictionFiles
from psnb.data import Dataset
from psnb.errors import CheckpointError, ExportError


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
