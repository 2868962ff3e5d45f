"""Processes of the command line for tests, forked like those of a local cluster.

Users' are not: each imports all of it anew, for seconds, and tests start thousands. Where this is
imported, the fork server also has what tests need, `tests.preloaded`.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

import dask

from psnb._src.cluster import forking
from psnb._src.cluster.local import QUIET
from psnb._src.dask_compat import local

forking.ALWAYS.append("tests.preloaded")


class Forked:
    """A process that runs a module as ``python -m`` does, with what `subprocess.Popen` has.

    Processes of nannies in it are forked likewise, by the same fork server.

    Attributes
    ----------
    pid : int
        Its number.
    stdout : TextIO or None
        What it prints if ``heard``. What nobody hears goes nowhere, and errors to a file if one is
        given.
    """

    def __init__(self, *command: str, heard: bool = False, errors_to: Path | None = None) -> None:
        context = forking.ForkContext()
        reader, writer = context.Pipe(duplex=False) if heard else (None, None)
        server = _Shared(forking.fork_server(os.environ))
        arguments = (command, server, writer, errors_to or os.devnull)
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


class _Shared(forking.ForkServer):
    """The fork server of the process that started this one."""

    def __init__(self, server: forking.ForkServer) -> None:
        self._asking = server._asking


def _run(
    command: tuple[str, ...],
    server: forking.ForkServer,
    out: Connection | None,
    errors_to: Path | str,
) -> None:
    forking.fork_server = lambda *args, **kwargs: server  # whatever Dask adds to the environment
    local._processes.set(forking.ForkContext())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which workers of a notebook ignore
    with (
        open(os.devnull, "r+b") as nothing,
        open(errors_to, "wb") as errors,
        out or open(os.devnull, "wb") as said,
    ):
        for number, each in enumerate((nothing, said, errors)):
            os.dup2(each.fileno(), number)
    dask.config.refresh()
    dask.config.set(QUIET)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
