"""Two notebooks on one cluster: the other one, a process of its own, is killed or closed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

import psnb
from psnb import errors
from tests.soak.chaos import Chaos
from tests.soak.notebook import DEADLINE, Notebook
from tests.soak.processes import LocalProcesses
from tests.soak.table import Row

_HARM = {"worker": 3.0, "server": 8.0, "freeze": 4.0}


def two_notebooks(row: Row, rng: np.random.Generator, seconds: float) -> None:
    """Train here, while others come and go."""
    mine, its, chance = rng.spawn(3)
    with (
        tempfile.TemporaryDirectory() as folder,
        psnb.local_cluster(workers=3, servers=3) as client,
    ):
        shared = Path(folder) / "shared"
        notebook = Notebook(client, Path(folder), shared, mine, row, psnb.Async(), replicas=1)
        over = threading.Event()
        others = Others(client.scheduler.address, shared, its, over)
        thread = threading.Thread(target=others.run, name="other notebooks")
        with notebook.strategy:
            note_kill = notebook.exposure.note_kill
            with Chaos(LocalProcesses(client), chance, _HARM, row, note_kill):
                thread.start()
                try:
                    notebook.train(seconds)
                finally:
                    over.set()
                    thread.join()
            notebook.finish()
        row.add(others.row)
        row.note = f"{others.killed} other notebooks killed, {others.closed} closed"


class Others:
    """Runs one other notebook after the other."""

    def __init__(
        self, scheduler: str, shared: Path, rng: np.random.Generator, over: threading.Event
    ) -> None:
        self._scheduler, self._shared, self._rng, self._over = scheduler, shared, rng, over
        self.row = Row("two notebooks")
        self.killed = self.closed = 0

    def run(self) -> None:
        """Do so until it is over."""
        while not self._over.is_set():
            seed = str(self._rng.integers(2**32))
            where = (self._scheduler, str(self._shared))
            command = [sys.executable, "-m", "tests.soak.phases", "two notebooks", "3600", seed]
            with subprocess.Popen(
                [*command, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as other:
                self._over.wait(self._rng.uniform(4, 15))
                if self._rng.random() < 0.5:
                    other.kill()
                    self.killed += 1
                else:
                    self._close(other)

    def _close(self, other: subprocess.Popen[str]) -> None:
        """Have it end by itself, and hear what it says."""
        try:
            said, _ = other.communicate("end\n", 3 * DEADLINE)
            ended = Row(**json.loads(said.splitlines()[-1]))
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            other.send_signal(signal.SIGUSR1)
            self.row.violations.append(f"the other notebook does not end well: {error!r}")
            other.kill()
            return
        ended.seconds = 0.0  # they are the same as here
        self.row.add(ended)
        self.closed += 1


def other_notebook(
    scheduler: str, shared: str, row: Row, rng: np.random.Generator, seconds: float
) -> None:
    """Be the other one: train until a line is read, and check all of it."""
    told = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    # In a folder that goes when the other process ends, however this one does.
    folder = tempfile.mkdtemp(dir=Path(shared).parent)
    with psnb.connect(scheduler) as client:
        options = {"is_told": False, "replicas": int(rng.integers(2))}
        try:
            notebook = Notebook(
                client, Path(folder), Path(shared), rng, row, psnb.Async(), **options
            )
        except (errors.ServerLostError, errors.ClusterError):
            return  # too early a death
        with notebook.strategy:
            notebook.train(seconds, told.is_set)
            notebook.finish()
