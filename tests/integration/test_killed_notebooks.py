"""Notebooks that are killed while they train, and started again: nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEADLINE
from tests.integration.killed_notebook import EPOCHS, ROWS

pytestmark = pytest.mark.slow


class Notebook:
    """A process that trains, of a kind that `killed_notebook` has."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._result = folder / "result.json"
        arguments = [kind, str(folder / "checkpoints"), str(self._result)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.killed_notebook", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Notebook:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("trains"):
                return self
        raise AssertionError(f"it ended with {self._process.wait()} before it trained")

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def strike(self, number: signal.Signals) -> bool:
        """Send a signal; return whether it has trained to the end before."""
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        return self._result.exists()

    def result(self) -> dict[str, Any]:
        """Wait until it ends, and return what it has found."""
        assert self._process.wait(2 * DEADLINE) == 0
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found


def killed(kind: str, folder: Path, seed: int, kills: int = 3) -> dict[str, Any]:
    """Kill a notebook at random moments, then let it train to the end."""
    moments = random.Random(seed)
    for _ in range(kills):
        with Notebook(kind, folder) as notebook:
            time.sleep(moments.uniform(0.05, 0.8))
            notebook.strike(signal.SIGKILL)
    assert any((folder / "checkpoints").glob("ckpt-*"))
    assert not (folder / "result.json").exists()
    with Notebook(kind, folder) as notebook:
        return notebook.result()


@pytest.mark.parametrize("kind", ["rounds", "synchronous_trainer"])
def test_a_synchronous_run_that_was_killed_equals_an_undisturbed_one_to_the_bit(
    kind: str, tmp_path: Path
) -> None:
    undisturbed, disturbed = (tmp_path / name for name in ("undisturbed", "disturbed"))
    for each in (undisturbed, disturbed):
        each.mkdir()
    with Notebook(kind, undisturbed) as notebook:
        expected = notebook.result()
    assert killed(kind, disturbed, seed=1) == expected


def test_an_asynchronous_run_that_was_killed_has_used_each_example_exactly_once_an_epoch(
    tmp_path: Path,
) -> None:
    found = killed("trainer", tmp_path, seed=2)
    assert found["visits"] == [EPOCHS] * ROWS
    assert found["examples"] == [ROWS] * EPOCHS
    assert found["loss"] == [(ROWS - 1) / 2] * EPOCHS


def test_a_run_that_was_interrupted_goes_on_likewise(tmp_path: Path) -> None:
    with Notebook("trainer", tmp_path) as notebook:
        time.sleep(0.3)
        notebook.strike(signal.SIGINT)
        assert sum(notebook.result()["visits"]) < EPOCHS * ROWS
    (tmp_path / "result.json").unlink()
    with Notebook("trainer", tmp_path) as notebook:
        assert notebook.result()["visits"] == [EPOCHS] * ROWS
