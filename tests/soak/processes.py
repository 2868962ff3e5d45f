"""Processes: those of a cluster that can be killed and frozen, and come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from distributed import Client


class Process(NamedTuple):
    """One of a cluster's."""

    pid: int
    address: str
    is_server: bool

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Processes(Protocol):
    """Those of a cluster."""

    def all(self) -> Sequence[Process]:
        """Return those that run at the moment."""

    def mend(self) -> None:
        """Start others in place of those that have ended, if nobody else does."""

    def cut(self, is_cut: bool) -> None:
        """Cut the link between hosts, or mend it."""


class LocalProcesses:
    """Those of a local cluster, which nannies start again."""

    def __init__(self, client: Client) -> None:
        self._cluster = client.cluster
        self._count = len(client.cluster.worker_spec)

    def all(self) -> Sequence[Process]:
        """Return those that run at the moment."""
        return [
            Process(nanny.pid, nanny.worker_address, str(name).startswith("server"))
            for name, nanny in list(self._cluster.workers.items())
            if nanny.pid and nanny.worker_address
        ]

    def mend(self) -> None:
        """Have Dask start those that it gave up because their nannies were too slow."""
        self._cluster.scale(self._count)

    def cut(self, is_cut: bool) -> None:
        """Do nothing: there is one host."""
