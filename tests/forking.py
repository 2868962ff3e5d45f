"""Processes for tests, forked from one that has imported all they need.

Users' are not: each imports all of it anew, for seconds, and tests start thousands.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TextIO

import dask
from distributed.utils import get_mp_context

from psnb._src.cluster.local import QUIET

FORKED = {"distributed.worker.multiprocessing-method": "forkserver"}
"""Of Dask: how nannies start workers."""


@contextmanager
def forked_workers() -> Iterator[None]:
    """Fork the processes of local clusters, as Dask can, until the block ends."""
    with dask.config.set(FORKED):
        get_mp_context()  # the first call sets what Dask wants to be imported
        _forks()
        yield


def _forks() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    return context


class Forked:
    """A process that runs a module as ``python -m`` does, with what `subprocess.Popen` has.

    Processes that it starts by multiprocessing are forked likewise.

    Attributes
    ----------
    pid : int
        Its number.
    stdout : TextIO or None
        What it prints if ``heard``. What nobody hears goes nowhere, and errors to a file if one is
        given.
    """

    def __init__(self, *command: str, heard: bool = False, errors_to: Path | None = None) -> None:
        context = _forks()
        reader, writer = context.Pipe(duplex=False) if heard else (None, None)
        arguments = (command, dict(os.environ), os.getcwd(), writer, errors_to or os.devnull)
        self._process = context.Process(target=_run, args=arguments)
        self._process.start()
        self.pid: int = self._process.pid
        self.stdout: TextIO | None = None
        if heard:
            writer.close()
            self.stdout = os.fdopen(os.dup(reader.fileno()))
            reader.close()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Wait until it ends."""
        if self.stdout is not None:
            self.stdout.close()
        self.wait()

    def poll(self) -> int | None:
        """Return what `wait` does if it has ended."""
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit code, or minus the signal that ended it."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code


def _run(
    command: tuple[str, ...],
    environment: dict[str, str],
    folder: str,
    out: Connection | None,
    errors_to: Path | str,
) -> None:
    # Python means processes of this one to be forked from the same, and forgets that it runs.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with (
        open(os.devnull, "r+b") as nothing,
        open(errors_to, "wb") as errors,
        out or open(os.devnull, "wb") as said,
    ):
        for number, each in enumerate((nothing, said, errors)):
            os.dup2(each.fileno(), number)
    dask.config.refresh()
    dask.config.set(FORKED | QUIET)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
