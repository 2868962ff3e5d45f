"""ServerClient: how parameters reach the servers.

Each Dask worker has one, and parameters that are unpickled in its process use it: in a closure the
one of its worker, since workers of a cluster without processes share a process. The parameters in
the notebook use the strategy's client.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from psnb._src.client.requests import Request
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.utils.ahead import require_closure
from psnb.errors import ConfigurationError


class ServerClient(Protocol):
    """Sends requests to servers."""

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Run all requests, in parallel where possible, and return their results in order.

        ``seen`` gets the version (the count of updates) of each shard that is not in it yet.

        Raises
        ------
        ServerLostError
            If a server cannot be reached, or has nothing of this strategy any more.
        SerializationError
            If arguments or results cannot be pickled, or cannot be unpickled by the receiver. Then
            other requests to that server that were under way fail as well.
        """

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Run requests as `call` does, also to servers themselves; return errors as results.

        After a `ServerUnresponsiveError` the request may still be carried out later. After any
        other error it was not carried out, and will not be.

        Raises
        ------
        PsnbError
            If an error stops all of them, with the same meaning.
        """

    def insist(self, requests: Sequence[Request]) -> None:
        """Make requests until each server has answered or is lost; returns at once."""

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        """Make the writes of a commit on all shards or none; see `psnb._src.client.commit`."""

    def server_of(self, to: ShardId) -> ServerAddress | None:
        """Return the server of a shard, if it is known."""

    def allocate(
        self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray | None:
        """Return an array that can be sent to a shard's server without a copy, or None.

        It must not be changed after it was sent.
        """


_of_workers: list[ServerClient] = []
"""Those of this process's workers, in the order in which they came."""

_of_thread = threading.local()


def add_process_client(server_client: ServerClient) -> None:
    """Let parameters that are unpickled in this process use a worker's client."""
    _of_workers.append(server_client)


def remove_process_client(server_client: ServerClient) -> None:
    """Stop using it: its worker leaves."""
    _of_workers.remove(server_client)


@contextmanager
def reaching_by(server_client: ServerClient) -> Iterator[None]:
    """Use a client in this thread, whatever other workers this process has."""
    before = getattr(_of_thread, "client", None)
    _of_thread.client = server_client
    try:
        yield
    finally:
        _of_thread.client = before


def process_client() -> ServerClient:
    """Return the `ServerClient` of this thread's worker; else of the last that came.

    Raises
    ------
    ConfigurationError
        If this is not a process of a cluster that psnb prepared.
    """
    require_closure()
    own: ServerClient | None = getattr(_of_thread, "client", None)
    if own is not None:
        return own
    if not _of_workers:
        raise ConfigurationError(
            "parameters can only be used in the notebook that made them and on the workers of its "
            "cluster; this process is neither"
        )
    return _of_workers[-1]


class FrontClient(ServerClient):
    """In front of another client: what it does not answer itself goes there.

    Parameters
    ----------
    behind : ServerClient, optional
        The other client; by default that of the thread's worker.
    """

    def __init__(self, behind: ServerClient | None = None) -> None:
        self._given = behind

    @property
    def _behind(self) -> ServerClient:
        return self._given or process_client()

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Ask the servers."""
        return self._behind.attempt(requests)

    def insist(self, requests: Sequence[Request]) -> None:
        """Ask the servers until they answer."""
        if requests:
            self._behind.insist(requests)

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        """Make writes on the servers."""
        return self._behind.commit(commit, parts)

    def server_of(self, to: ShardId) -> ServerAddress | None:
        """Return the server of a shard, if it is known."""
        return self._behind.server_of(to)

    def allocate(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Return None: what is written stays in this process at first."""
