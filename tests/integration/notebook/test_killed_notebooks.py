"""Notebooks that are killed while they train, and started again: nothing is lost or doubled."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import psnb
from tests.conftest import DEADLINE, wait_until
from tests.forking import Forked
from tests.integration.clusters import cluster_of
from tests.integration.notebook.killed_notebook import (
    EPOCHS,
    ROWS,
    rounds,
    synchronous_epoch,
    synchronous_trainer,
    unfinished,
    waiting,
)


class Notebook:
    """A process that trains, of a kind that `killed_notebook` has."""

    def __init__(self, kind: str, folder: Path, where: str = "2", struck: bool = True) -> None:
        self._checkpoints, self._result = folder / "checkpoints", folder / "result.json"
        if struck:  # it is not to end before
            unfinished(self._checkpoints).touch()
        arguments = [kind, str(self._checkpoints), str(self._result), where]
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

    def strike(self, number: signal.Signals, saves: int, delay: float) -> None:
        """Send a signal some time after it has saved so often, or at the end of its training."""
        wanted, at_the_end = self._newest() + saves, waiting(self._checkpoints)
        wait_until(
            lambda: self._newest() >= wanted or at_the_end.exists(),
            f"{saves} checkpoints are saved",
        )
        time.sleep(delay)  # the moment is to be any
        assert self._process.poll() is None
        self._process.send_signal(number)
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


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a cluster from the command line, which outlives its notebooks."""
    with cluster_of("command line", tmp_path_factory.mktemp("dask")) as client:
        yield client.scheduler.address


@pytest.fixture(
    params=[
        "local",
        pytest.param(
            "command line", marks=pytest.mark.second_tier("another kind of cluster: test_attach")
        ),
    ]
)
def where(request: pytest.FixtureRequest) -> str:
    """Return the address of a cluster for notebooks; "2" if each has its own that ends with it."""
    address: str = "2" if request.param == "local" else request.getfixturevalue("by_hand")
    return address


def killed(kind: str, folder: Path, seed: int, *where: str) -> dict[str, Any]:
    """Kill a notebook twice, at random moments, then let it train to the end.

    The three have so many workers, or are all on one cluster.
    """
    moments = random.Random(seed)
    *killed, last = where if len(where) > 1 else 3 * where
    for each in killed:
        with Notebook(kind, folder, each) as notebook:
            notebook.strike(signal.SIGKILL, moments.randint(1, 3), moments.uniform(0, 0.1))
    with Notebook(kind, folder, last, struck=False) as notebook:
        return notebook.result()


@pytest.mark.second_tier(
    "test_resuming has it without the kill, the asynchronous one here the kill"
)
def test_a_synchronous_run_that_was_killed_equals_an_undisturbed_one_to_the_bit(
    cluster: Client, tmp_path: Path, where: str
) -> None:
    expected = rounds(cluster, tmp_path / "undisturbed")
    assert killed("rounds", tmp_path, 1, where) == expected


@pytest.mark.second_tier(
    "test_resumed_trainers has it without the kill, the asynchronous one here the kill"
)
def test_a_synchronous_epoch_of_leased_data_that_was_killed_equals_an_undisturbed_one_to_the_bit(
    cluster: Client, tmp_path: Path, where: str
) -> None:
    expected = synchronous_trainer(cluster, tmp_path / "undisturbed")
    assert killed("synchronous_trainer", tmp_path, 3, where) == expected


@pytest.mark.second_tier(
    "test_sync_epochs has it without the kill, the asynchronous one here the kill"
)
def test_an_epoch_that_was_killed_equals_an_undisturbed_one_also_with_other_numbers_of_workers(
    cluster: Client, tmp_path: Path
) -> None:
    expected = synchronous_epoch(cluster, tmp_path / "undisturbed")
    assert killed("synchronous_epoch", tmp_path, 4, "3", "1", "2") == expected


def test_an_asynchronous_run_that_was_killed_has_used_each_example_exactly_once_an_epoch(
    tmp_path: Path, where: str
) -> None:
    found = killed("asynchronous_trainer", tmp_path, 2, where)
    assert found["visits"] == [EPOCHS] * ROWS
    assert found["examples"] == [ROWS] * EPOCHS
    assert found["loss"] == [(ROWS - 1) / 2] * EPOCHS


@pytest.mark.second_tier("test_trainer has it with an interrupt in this process")
def test_a_run_that_was_interrupted_has_saved_all_and_goes_on_likewise(tmp_path: Path) -> None:
    with Notebook("asynchronous_trainer", tmp_path) as notebook:
        notebook.strike(signal.SIGINT, 1, 0.05)
        visits = notebook.result()["visits"]
        assert 0 < sum(visits) < EPOCHS * ROWS
    newest = max((tmp_path / "checkpoints").glob("ckpt-*"))
    assert psnb.checkpoint.load(newest)["visits"].rows[:, 0].tolist() == visits
    with Notebook("asynchronous_trainer", tmp_path, struck=False) as notebook:
        assert notebook.result()["visits"] == [EPOCHS] * ROWS
