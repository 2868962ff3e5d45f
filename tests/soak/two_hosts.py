"""Two hosts, as namespaces, whose link is cut for random times while processes die and freeze.

Its phase runs in a network of its own: `tests.soak.__main__` sees to that.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import psnb
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, connected
from tests.integration.helpers import CommandLine
from tests.integration.namespaces import HERE, THERE, Link, linked
from tests.soak.chaos import Chaos
from tests.soak.notebook import Notebook
from tests.soak.processes import Process
from tests.soak.table import Row

_HARM = {"worker": 8.0, "server": 12.0, "freeze": 6.0, "cut": 6.0}
_SERVERS = {"near": 1, "far": 2}


class Hosts:
    """Processes from the command line on two hosts; who dies is replaced."""

    def __init__(self, cluster: CommandLine, link: Link, stack: ExitStack) -> None:
        self._cluster, self._link, self._stack = cluster, link, stack
        self._started = 0
        self._running: dict[str, tuple[subprocess.Popen[bytes], str, bool]] = {}
        self._addresses: dict[str, str] = {}
        for host, servers in _SERVERS.items():
            self._start(host, False)
            for _ in range(servers):
                self._start(host, True)
        self.client = stack.enter_context(connected(cluster.file))
        self.client.wait_for_workers(len(self._running), DEADLINE)
        self._stack.callback(self._kill)

    def all(self) -> Sequence[Process]:
        """Return those that run and are known to the scheduler."""
        if self._running.keys() - self._addresses.keys():
            workers = identity(self.client)["workers"]
            self._addresses |= {str(worker["name"]): a for a, worker in workers.items()}
        return [
            Process(process.pid, self._addresses[name], is_server)
            for name, (process, _, is_server) in self._running.items()
            if name in self._addresses and process.poll() is None
        ]

    def mend(self) -> None:
        """Start others in place of those that have ended."""
        for name, (process, host, is_server) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                self._start(host, is_server)

    def cut(self, is_cut: bool) -> None:
        """Cut the link, or mend it."""
        self._link.set("down" if is_cut else "up")

    def _start(self, host: str, is_server: bool) -> None:
        self._started += 1
        name = f"{host}-{self._started}"
        process = self._stack.enter_context(
            self._cluster.worker(
                *("--name", name, "--no-nanny"),
                *(("--resources", "ps=1") if is_server else ()),
                where=("--host", HERE if host == "near" else THERE),
                before=() if host == "near" else self._link.enter,
            )
        )
        self._running[name] = process, host, is_server

    def _kill(self) -> None:
        for process, _, _ in self._running.values():
            process.kill()


def two_hosts(row: Row, rng: np.random.Generator, seconds: float) -> None:
    """Train over both hosts for so long."""
    mine, chance = rng.spawn(2)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        link = stack.enter_context(linked())
        cluster = CommandLine(folder, HERE)
        stack.enter_context(cluster.scheduler())
        hosts = Hosts(cluster, link, stack)
        notebook = Notebook(
            hosts.client, folder, folder / "shared", mine, row, psnb.Async(), replicas=1, shards=4
        )
        with notebook.strategy:
            with Chaos(hosts, chance, _HARM, row, notebook.exposure.note_kill):
                notebook.train(seconds)
            notebook.finish()
