"""Checkpoints that servers write by themselves, on real clusters, some of which lose processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.server.files import writing
from psnb.errors import CheckpointError, ServerLostError
from tests.checkpoint.saved import names
from tests.conftest import DEADLINE, wait_until

Coordinator = psnb.ClusterCoordinator
Strategy = psnb.ParameterServerStrategy


def gated(folder: Path) -> None:
    """Let each server of this process note there when it begins to write, and wait for ``go``."""
    new = writing.NewFile

    class Gated(new):  # type: ignore[misc, valid-type]
        def __init__(self, *at: str) -> None:
            super().__init__(*at)
            (folder / f"begun-{os.getpid()}-{threading.get_ident()}").touch()
            end = time.monotonic() + DEADLINE
            while not (folder / "go").exists() and time.monotonic() < end:
                time.sleep(0.01)

    writing.NewFile = Gated  # type: ignore[misc, assignment]


def ungated() -> None:
    from psnb._src.utils.files import NewFile

    writing.NewFile = NewFile  # type: ignore[misc, assignment]


class Gate:
    """Stands before all that servers write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begun(self) -> int:
        """Return how many servers wait."""
        return len(list(self.folder.glob("begun-*")))

    def pid(self) -> int:
        """Wait until a server waits, and return its process."""
        wait_until(lambda: self.begun() > 0, "a server writes")
        return int(next(self.folder.glob("begun-*")).name.split("-")[1])

    def open(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Stands before the servers of this process."""
    made = Gate(tmp_path / "gate")
    made.folder.mkdir()
    gated(made.folder)
    try:
        yield made
    finally:
        made.open()
        ungated()


class Saving:
    """A save in a thread of its own."""

    def __init__(self, save: Callable[[], Path]) -> None:
        self.found: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(save,))
        self._thread.start()

    def _run(self, save: Callable[[], Path]) -> None:
        try:
            self.found.append(save())
        except Exception as error:
            self.found.append(error)

    def end(self) -> Any:
        """Return its path, or the error."""
        self._thread.join(DEADLINE)
        (found,) = self.found
        return found


def two(strategy: Strategy) -> tuple[psnb.Variable, psnb.Variable]:
    """Return variables on two servers."""
    left, right = (strategy.variable(np.zeros(1000), name=name) for name in ("left", "right"))
    assert [len(tables) for tables in strategy.memory().values()] == [1, 1]
    return left, right


def manager_of(strategy: Strategy, folder: Path, **more: Any) -> psnb.CheckpointManager:
    return psnb.CheckpointManager(Coordinator(strategy), folder / "checkpoints", **more)


def test_all_servers_write_at_once_and_training_goes_on_meanwhile(
    strategy: Strategy, coordinator: Coordinator, tmp_path: Path, gate: Gate
) -> None:
    left, right = two(strategy)
    table = strategy.embedding("table", 4, initializer=0.0, optimizer=psnb.SGD(1.0))
    table.push(range(100), -np.ones((100, 4), np.float32))
    manager = manager_of(strategy, tmp_path)
    saving = Saving(manager.save)
    wait_until(lambda: gate.begun() == 2, "both write")
    assert manager.status.state == "saving"

    def step(number: int) -> None:
        left.assign_add(np.ones(1000))
        right.assign_add(np.ones(1000))
        table.push(range(50, 150), -np.ones((100, 4), np.float32))

    coordinator.map(step, range(5))
    coordinator.join(DEADLINE)
    gate.open()
    path = saving.end()
    saved = psnb.checkpoint.load(path)
    assert saved["left"].sum() == saved["right"].sum() == 0
    assert saved["table"].ids.tolist() == list(range(100))
    assert (saved["table"].rows == 1).all()
    assert (left.read() == 5).all()
    assert 0 < manager.status.held < 5


def test_what_is_removed_while_it_is_written_is_saved_as_it_was(
    strategy: Strategy, tmp_path: Path, gate: Gate
) -> None:
    table = strategy.embedding(
        "table", 2, initializer=0.0, optimizer=psnb.SGD(1.0), accessor=psnb.CtrAccessor()
    )
    table.push(range(100), -np.ones((100, 2), np.float32))
    saving = Saving(manager_of(strategy, tmp_path).save)
    wait_until(lambda: gate.begun() == 2, "both write")
    table.shrink(1.0)
    assert table.statistics().rows == 0
    gate.open()
    assert (psnb.checkpoint.load(saving.end())["table"].rows == 1).all()


def test_servers_of_one_process_write_into_memory(strategy: Strategy) -> None:
    left, _ = two(strategy)
    manager = psnb.CheckpointManager(Coordinator(strategy), "memory://run-1/checkpoints")
    left.assign(np.arange(1000.0))
    manager.save({"step": 1})
    left.assign(np.zeros(1000))
    assert manager.restore() == {"step": 1}
    assert (left.read() == np.arange(1000.0)).all()
    saved = psnb.checkpoint.load(str(manager.latest_checkpoint))
    assert (saved["left"] == np.arange(1000.0)).all()


def test_two_managers_save_at_once_in_one_folder(
    strategy: Strategy, tmp_path: Path, gate: Gate
) -> None:
    two(strategy)
    managers = [manager_of(strategy, tmp_path) for _ in range(2)]
    savings = [Saving(each.save) for each in managers]
    wait_until(lambda: len(names(managers[0].directory)) == 2, "both have begun")
    gate.open()
    paths = {each.end() for each in savings}
    assert [path.name for path in sorted(paths)] == ["ckpt-000001", "ckpt-000002"]
    for path in paths:
        psnb.checkpoint.load(path).verify()
    assert names(managers[0].directory) == ["ckpt-000001", "ckpt-000002"]


def test_an_interrupted_save_ends_at_once_and_leaves_nothing(
    strategy: Strategy, tmp_path: Path, gate: Gate
) -> None:
    two(strategy)
    manager = manager_of(strategy, tmp_path)

    def interrupt() -> None:
        wait_until(lambda: gate.begun() == 2, "both write")
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        manager.save()
    interrupting.join()
    assert names(manager.directory) == []
    gate.open()
    wait_until(lambda: not writing_threads(), "the servers stop")
    assert manager.save() == manager.latest_checkpoint


def writing_threads() -> list[int]:
    """Return the threads of this process that write a checkpoint."""

    def writes(frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not writing.TableWriting._run.__code__:
            frame = frame.f_back
        return frame is not None

    return [thread for thread, frame in sys._current_frames().items() if writes(frame)]


SECOND = pytest.mark.second_tier("the other kind of save for each kind of death")
WHOLE, DELTA = 1, 9
"""Of so many saves one is whole: what the second is."""


def table_of(strategy: Strategy) -> psnb.Embedding:
    return strategy.embedding("rows", 4, 1000, 0.5, optimizer=psnb.SGD(1.0))


def check_that_saves_go_on(table: psnb.Embedding, manager: psnb.CheckpointManager) -> None:
    """Save twice; what is restored is what was saved last."""
    for id_ in 5, 6:
        table.push([id_], np.ones((1, 4), np.float32))
        manager.save()
    saved = table.lookup(np.arange(1000))
    table.push([5, 7], np.ones((2, 4), np.float32))
    manager.restore()
    np.testing.assert_array_equal(table.lookup(np.arange(1000)), saved)


@pytest.mark.parametrize("full_every", [pytest.param(WHOLE, marks=SECOND), DELTA])
def test_a_server_that_is_killed_while_it_writes_leaves_the_checkpoint_before(
    whole: Client, tmp_path: Path, full_every: int
) -> None:
    gate = Gate(tmp_path)
    with Strategy(whole) as strategy:
        table = table_of(strategy)
        manager = manager_of(strategy, tmp_path, full_every=full_every)
        first = manager.save()
        table.push([3], np.ones((1, 4), np.float32))
        whole.run(gated, tmp_path)
        saving = Saving(manager.save)
        os.kill(gate.pid(), signal.SIGKILL)
        gate.open()
        whole.run(ungated, on_error="ignore")  # of those that live
        assert isinstance(saving.end(), ServerLostError)
        assert names(manager.directory) == [first.name]
        psnb.checkpoint.load(first).verify()
        strategy.recover()
        assert (table.lookup([3]) == 0.5).all()
        check_that_saves_go_on(table, manager)


NOTEBOOK = """
from pathlib import Path
import sys
import numpy as np
import psnb
from tests.integration.checkpoint.test_writing import gated, manager_of, table_of

address, folder, full_every = sys.argv[1:]
with psnb.connect(address) as client:
    strategy = psnb.ParameterServerStrategy(client)
    table = table_of(strategy)
    manager = manager_of(strategy, Path(folder), full_every=int(full_every))
    manager.save()
    table.push([3], np.ones((1, 4), np.float32))
    client.run(gated, Path(folder))
    manager.save()
"""


@pytest.mark.parametrize("full_every", [WHOLE, pytest.param(DELTA, marks=SECOND)])
def test_a_notebook_that_is_killed_while_servers_write_leaves_the_checkpoint_before(
    whole: Client, tmp_path: Path, full_every: int
) -> None:
    gate = Gate(tmp_path)
    address = whole.scheduler_info()["address"]
    command = [sys.executable, "-c", NOTEBOOK, address, str(tmp_path), str(full_every)]
    notebook = subprocess.Popen(command)
    try:
        gate.pid()
    finally:
        notebook.kill()
        notebook.wait()
    first, left = sorted(names(tmp_path / "checkpoints"), reverse=True)
    assert left.startswith(".incomplete-")
    gate.open()
    wait_until(lambda: not any(whole.run(writing_threads).values()), "they have written")
    whole.run(ungated)
    with Strategy(whole) as strategy:
        table = table_of(strategy)
        manager = manager_of(strategy, tmp_path, full_every=full_every)
        assert names(manager.directory) == [first]
        table.push([4], np.ones((1, 4), np.float32))
        manager.restore()
        assert (table.lookup([3, 4]) == 0.5).all()
        check_that_saves_go_on(table, manager)


def limit_files(nbytes: int) -> None:
    """Let no file of this process grow further."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))


def test_a_server_that_cannot_write_is_named_and_nothing_is_left(
    whole: Client, tmp_path: Path
) -> None:
    with Strategy(whole) as strategy:
        strategy.variable(np.zeros(1000), name="v")
        manager = manager_of(strategy, tmp_path)
        whole.run(limit_files, 1000)
        try:
            said = r"server .* cannot write 0000.*File too large"
            with pytest.raises(CheckpointError, match=said):
                manager.save()
        finally:
            whole.run(limit_files, resource.RLIM_INFINITY)
        assert names(manager.directory) == []


def elsewhere(folder: Path) -> None:
    """Let what servers of this process write be on another disk, as that of another host."""
    new = writing.NewFile

    class Elsewhere(new):  # type: ignore[misc, valid-type]
        def __init__(self, _: str, name: str) -> None:
            super().__init__(str(folder), name)

    writing.NewFile = Elsewhere  # type: ignore[misc, assignment]


def test_what_a_server_writes_where_the_notebook_does_not_see_it_is_reported(
    strategy: Strategy, tmp_path: Path
) -> None:
    strategy.variable(np.zeros(1000), name="v")
    manager = manager_of(strategy, tmp_path)
    elsewhere(tmp_path)
    try:
        with pytest.raises(CheckpointError, match=r"server .* in the notebook it is not there"):
            manager.save()
    finally:
        ungated()
    assert names(manager.directory) == []
