"""The stop button, pressed once or twice in each call that waits, whatever it waits for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from distributed import Client

import psnb
from tests.conftest import DEADLINE
from tests.integration.clusters import cluster_of
from tests.integration.helpers import Steps, frozen, pid_of
from tests.interrupting import assert_as_before, sleeping

VALUES = 1000

AT_ONCE = 3.0
"""Seconds; it takes less than one where nobody else computes. Who waits does so for ten or more."""

PRESSES = {"once": None, "twice at once": 0.05, "twice": 0.3}
"""Seconds between two; None: there is one."""


class Notebook(NamedTuple):
    """What a user has in a notebook, and a closure that runs until it is told to end."""

    coordinator: psnb.ClusterCoordinator
    variable: psnb.Variable
    manager: psnb.CheckpointManager
    dataset: psnb.data.Dataset
    steps: Steps

    def take(self) -> Callable[[Iterator[object]], None]:
        """Return a step of training that takes an element, and then runs for long."""
        steps = self.steps

        def step(iterator: Iterator[object]) -> None:
            next(iterator)
            steps()

        return step


SECOND = pytest.mark.second_tier("another kind of cluster")


@pytest.fixture(scope="module", params=["local", pytest.param("command line", marks=SECOND)])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Two workers and two servers."""
    with cluster_of(request.param, tmp_path_factory.mktemp("dask")) as client:
        yield client


@pytest.fixture
def notebook(coordinator: psnb.ClusterCoordinator, tmp_path: Path) -> Iterator[Notebook]:
    variable = coordinator.strategy.variable(np.zeros(VALUES))
    manager = psnb.CheckpointManager(coordinator, tmp_path / "checkpoints")
    manager.save()
    variable.assign(np.ones(VALUES))
    dataset = psnb.data.Dataset.range(20).batch(2)
    made = Notebook(coordinator, variable, manager, dataset, Steps(tmp_path))
    yield made
    made.steps.end()


def join(notebook: Notebook) -> None:
    notebook.coordinator.schedule(notebook.steps)
    notebook.coordinator.join()


def fetch(notebook: Notebook) -> None:
    notebook.coordinator.schedule(notebook.steps).fetch()


def run_epoch(notebook: Notebook) -> None:
    made = notebook.coordinator.create_per_worker_dataset(notebook.dataset, sharding="dynamic")
    notebook.coordinator.run_epoch(notebook.take(), iter(made))


def train(notebook: Notebook) -> None:
    trainer = psnb.Trainer(notebook.coordinator, notebook.take())
    trainer.train_from_dataset(notebook.dataset)


def save(notebook: Notebook) -> None:
    notebook.coordinator.schedule(notebook.steps)
    notebook.steps.begun()
    notebook.manager.save()


def restore(notebook: Notebook) -> None:
    notebook.manager.restore()


class Presses:
    """Presses the stop button when a call waits, and perhaps once more a moment later."""

    def __init__(self, again: float | None) -> None:
        self._again = again
        self._main = threading.main_thread().ident or 0
        self._over = threading.Event()
        self.first = 0.0

    def press(self, waits: Callable[[], bool]) -> None:
        while not waits():
            if self._over.wait(0.01):
                return
        self._over.wait(0.1)  # let it wait for what it waits for last
        self.first = time.monotonic()
        signal.pthread_kill(self._main, signal.SIGINT)
        if self._again is not None:
            threading.Event().wait(self._again)
            signal.pthread_kill(self._main, signal.SIGINT)

    @contextmanager
    def around(self, waits: Callable[[], bool]) -> Iterator[None]:
        thread = threading.Thread(target=self.press, args=(waits,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            while thread.is_alive():  # the second may strike here
                try:
                    thread.join()
                except KeyboardInterrupt:
                    continue


def pressed(call: Callable[[], object], waits: Callable[[], bool], again: float | None) -> float:
    """Return after how many seconds a call has raised KeyboardInterrupt."""
    presses, raised = Presses(again), 0.0
    with presses.around(waits):
        try:
            call()
        except KeyboardInterrupt:
            raised = time.monotonic()
    assert raised, "it was not interrupted"
    return raised - presses.first


def each_of(*calls: Callable[[Notebook], None]) -> pytest.MarkDecorator:
    """Mark a test for all calls, however the button is pressed: the first tier has each once."""
    second = pytest.mark.second_tier("further presses for each call")
    cases = [
        pytest.param(
            call,
            again,
            id=f"{call.__name__}, {how}",
            marks=() if at == number % len(PRESSES) else second,
        )
        for number, call in enumerate(calls)
        for at, (how, again) in enumerate(PRESSES.items())
    ]
    return pytest.mark.parametrize(("call", "again"), cases)


@each_of(join, fetch, run_epoch, train, save)
def test_each_call_that_waits_for_closures_ends_at_once_and_all_goes_on(
    notebook: Notebook, call: Callable[[Notebook], None], again: float | None
) -> None:
    coordinator, steps = notebook.coordinator, notebook.steps

    def waits() -> bool:
        return bool(steps.runs()) and sleeping()

    assert pressed(lambda: call(notebook), waits, again) < AT_ONCE
    assert_as_before()
    assert not coordinator.paused
    steps.end()
    assert coordinator.schedule(len, ("abc",)).fetch(DEADLINE) == 3
    coordinator.join(DEADLINE)
    assert len(notebook.manager.checkpoints) == 1
    assert coordinator.statistics().failed == 0
    notebook.manager.save()
    notebook.manager.restore()
    assert notebook.variable.read().tolist() == [1] * VALUES


@each_of(save, restore)
def test_each_call_that_waits_for_unresponsive_servers_ends_at_once_and_all_goes_on(
    cluster: Client, notebook: Notebook, call: Callable[[Notebook], None], again: float | None
) -> None:
    notebook.steps.end()
    servers = [pid_of(cluster, name) for name in ("server-0", "server-1")]
    with frozen(servers[0]), frozen(servers[1]):
        assert pressed(lambda: call(notebook), sleeping, again) < AT_ONCE
        assert_as_before()
    assert notebook.coordinator.schedule(len, ("abc",)).fetch(DEADLINE) == 3
    assert len(notebook.manager.checkpoints) == 1
    notebook.manager.save()  # once all is restored that was begun to be
    # A restore that had not begun to change anything has restored nothing.
    wanted = [{1.0}, {0.0}] if call is restore else [{1.0}]
    assert set(notebook.variable.read().tolist()) in wanted
