"""ServerClient: how parameters reach the servers.

A process that runs Dask workers has one client for all of them (`set_process_client`); parameters
that are unpickled there use it. The parameters in the notebook use the strategy's client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from psnb._src.parameters.request_batch import Request
from psnb._src.placement import ShardId
from psnb._src.server import Commit, Part
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

        After a `ServerSilentError` the request may still be carried out later. After any other
        error it was not carried out, and will not be.

        Raises
        ------
        PsnbError
            If an error stops all of them, with the same meaning.
        """

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        """Make the writes of a commit on all shards or none; see `psnb._src.parameters.commit`."""

    def server_name(self, shard: ShardId) -> str:
        """Return what people call the server of a shard, or the shard if that is not known."""

    def lend(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """Return an array that can be sent to a shard's server without a copy, or None.

        It must not be changed after it was sent.
        """


_process_client: ServerClient | None = None


def set_process_client(server_client: ServerClient | None) -> None:
    """Set the `ServerClient` for parameters that are unpickled in this process."""
    global _process_client
    _process_client = server_client


def process_client() -> ServerClient:
    """Return the `ServerClient` of this process.

    Raises
    ------
    ConfigurationError
        If this is not a process of a cluster that psnb prepared.
    """
    if _process_client is None:
        raise ConfigurationError(
            "parameters can only be used in the notebook that made them and on the workers of its "
            "cluster; this process is neither"
        )
    return _process_client
