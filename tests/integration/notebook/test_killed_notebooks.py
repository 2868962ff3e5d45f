"""Notebooks that are killed while they train, and started again: nothing is lost or doubled."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from tests.conftest import DEADLINE, wait_until
from tests.forking import Forked
from tests.integration.notebook.killed_notebook import (
    EPOCHS,
    ROWS,
    synchronous_epoch,
    unfinished,
    waiting,
)


class Notebook:
    """A process that trains, of a kind that `killed_notebook` has."""

    def __init__(self, kind: str, folder: Path, workers: int, struck: bool = True) -> None:
        self._checkpoints, self._result = folder / "checkpoints", folder / "result.json"
        if struck:  # it is not to end before
            unfinished(self._checkpoints).touch()
        arguments = [kind, str(self._checkpoints), str(self._result), str(workers)]
        self._process = Forked("tests.integration.notebook.killed_notebook", *arguments, heard=True)

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

    def strike(self, saves: int, delay: float) -> None:
        """Kill it some time after it has saved so often, or at the end of its training."""
        wanted, at_the_end = self._newest() + saves, waiting(self._checkpoints)
        wait_until(
            lambda: self._newest() >= wanted or at_the_end.exists(),
            f"{saves} checkpoints are saved",
        )
        time.sleep(delay)  # the moment is to be any
        assert self._process.poll() is None
        self._process.send_signal(signal.SIGKILL)
        assert not self._result.exists()
        unfinished(self._checkpoints).unlink()
        at_the_end.unlink(missing_ok=True)

    def result(self) -> dict[str, Any]:
        """Wait until it ends, and return what it has found."""
        assert self._process.wait(2 * DEADLINE) == 0
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found

    def _newest(self) -> int:
        found = self._checkpoints.glob("ckpt-*")
        return max((int(each.name.removeprefix("ckpt-")) for each in found), default=0)


def killed(kind: str, folder: Path, seed: int, *workers: int) -> dict[str, Any]:
    """Kill notebooks with these workers at random moments, then let one train to the end."""
    moments = random.Random(seed)
    *killed, last = workers
    for each in killed:
        with Notebook(kind, folder, each) as notebook:
            notebook.strike(moments.randint(1, 3), moments.uniform(0, 0.1))
    with Notebook(kind, folder, last, struck=False) as notebook:
        return notebook.result()


@pytest.mark.second_tier("the asynchronous one here is killed, too")
def test_an_epoch_that_was_killed_equals_an_undisturbed_one_also_with_other_numbers_of_workers(
    cluster: Client, tmp_path: Path
) -> None:
    expected = synchronous_epoch(cluster, tmp_path / "undisturbed")
    assert killed("synchronous_epoch", tmp_path, 4, 3, 1, 2) == expected


def test_an_asynchronous_run_that_was_killed_has_used_each_example_exactly_once_an_epoch(
    tmp_path: Path,
) -> None:
    found = killed("asynchronous_trainer", tmp_path, 2, 2, 2, 2)
    assert found["visits"] == [EPOCHS] * ROWS
    assert found["examples"] == [ROWS] * EPOCHS
    assert found["loss"] == [(ROWS - 1) / 2] * EPOCHS
