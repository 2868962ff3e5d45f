"""Files of predictions that several calls write, and what each may remove."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from psnb._src.training.prediction_files import PredictionFiles

ROWS = [{"p": np.zeros(2, np.float32)}]
WEEK = 7 * 86_400


@pytest.fixture
def others(tmp_path: Path) -> list[str]:
    """Files that are no part, but are called nearly so: of Spark, of an editor, of somebody."""
    names = [".part-00000.csv.crc", ".part-00000.csv.swp", f".part-00000.csv.{'a' * 32}.mine"]
    for name in names:
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (0, 0))
    return names


def files(folder: Path) -> PredictionFiles:
    made = PredictionFiles(f"{folder}/part-*.csv")
    made.prepare(2)
    return made


def test_a_call_removes_nothing_of_another_that_writes(tmp_path: Path, others: list[str]) -> None:
    first = files(tmp_path)
    assert first.write(0, ROWS)
    second = files(tmp_path)
    second.write(0, ROWS)
    second.clear()
    assert first.publish([True, False]) == [str(tmp_path / "part-00000.csv")]
    first.clear()
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "part-00000.csv"])


def test_what_a_killed_call_has_left_goes_later(tmp_path: Path, others: list[str]) -> None:
    files(tmp_path).write(0, ROWS)
    (left,) = set(os.listdir(tmp_path)) - {*others}
    (tmp_path / f"{left}.{'0' * 32}").touch()  # an attempt that has not ended
    files(tmp_path)
    assert len(os.listdir(tmp_path)) == len(others) + 2
    for name in os.listdir(tmp_path):
        os.utime(tmp_path / name, (time.time() - WEEK,) * 2)
    files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(others)
