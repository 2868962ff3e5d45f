"""PulledVariables: copies of variables, pulled again while steps compute with the last ones.

A `ServerClient` for closures in front of the real one. Variables that are read as a whole come
from copies; all else goes to the servers.

Threads: all closure threads of a worker share the copies. One thread at a time, named
``psnb-pull``, fetches new ones; it ends when they are there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import FrontClient, ServerClient
from psnb._src.client.whole_tables import TableName
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.tables.operations import OnTable, ReadValues


class _Copy(NamedTuple):
    value: np.ndarray
    version: int  # of its shard, when it was read


class PulledVariables(FrontClient):
    """A `ServerClient` that keeps copies of variables; thread-safe.

    Parameters
    ----------
    every : int
        After how many batches they are pulled again.
    server_client : ServerClient, optional
        The client of the servers; by default that of the process.
    """

    def __init__(self, every: int, server_client: ServerClient | None = None) -> None:
        super().__init__(server_client)
        self._every = every
        self._lock = threading.Lock()  # guards what follows, for a moment each
        self._copies: dict[TableName, _Copy] = {}
        self._batches = 0
        self._pulls = False  # a thread does
        self._error: Exception | None = None  # of the last pull, for the next reader

    def begin_batch(self) -> None:
        """Note that a batch begins; if it is time, pull again in another thread."""
        with self._lock:
            self._batches += 1
            if self._batches % self._every or self._pulls or not self._copies:
                return
            self._pulls, wanted = True, list(self._copies)
        arguments = (self._behind, wanted)  # the client of this thread's worker
        threading.Thread(target=self._pull, args=arguments, name="psnb-pull", daemon=True).start()

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Answer reads of variables from copies, and ask the servers for all else.

        Raises
        ------
        ServerLostError
            If a server that is asked is gone, or was when copies were pulled.
        """
        keys = [_variable(request) for request in requests]
        with self._lock:
            error, self._error = self._error, None
            copies = {key: self._copies[key] for key in keys if key in self._copies}
        if error is not None:
            raise error
        versions: dict[ShardId, int] = {}
        others = [at for at, key in enumerate(keys) if key not in copies]
        answers: dict[int, Any] = {}
        if others:
            found = self._behind.call([requests[at] for at in others], versions)
            answers = dict(zip(others, found, strict=True))
            self._keep({key: answers[at] for at in others if (key := keys[at])}, versions)
        if seen is not None:
            # The older of a copy and a freshly fetched one counts.
            for (shard, _), copy in copies.items():
                seen[shard] = min(copy.version, seen.get(shard, copy.version))
            for shard, version in versions.items():
                seen.setdefault(shard, version)
        # Copied: the result belongs to the caller.
        return [
            np.array(copies[key].value) if key in copies else answers[at]
            for at, key in enumerate(keys)
        ]

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        """Make writes on the servers."""
        return self._behind.commit(commit, parts)

    def _pull(self, server_client: ServerClient, wanted: Sequence[TableName]) -> None:
        versions: dict[ShardId, int] = {}
        requests = [on_table(shard, table, ReadValues()) for shard, table in wanted]
        try:
            values = server_client.call(requests, versions)
            self._keep(dict(zip(wanted, values, strict=True)), versions)
        except Exception as error:  # the next reader raises it
            with self._lock:
                self._error = error
        finally:
            with self._lock:
                self._pulls = False

    def _keep(
        self, values: Mapping[TableName, np.ndarray], versions: Mapping[ShardId, int]
    ) -> None:
        made = {key: _Copy(np.array(value), versions[key[0]]) for key, value in values.items()}
        with self._lock:
            self._copies |= made


def _variable(request: Request) -> TableName | None:
    """Return the variable that a request reads as a whole; None if it is another request."""
    match request:
        case Request(ShardId() as shard, OnTable(table, ReadValues())):
            return shard, table
    return None
