"""LocalClient: the client of a local cluster, and which of them this process has."""

from __future__ import annotations

import atexit
import logging
import weakref
from dataclasses import dataclass, fields
from html import escape
from typing import Any

from distributed import Client

from psnb._src.cluster.local import LocalCluster
from psnb._src.dask_internals import is_connected
from psnb.errors import ClusterError

logger = logging.getLogger("psnb")


@dataclass(frozen=True)
class Shape:
    """What a local cluster was asked to be: the arguments of `psnb.local_cluster`."""

    workers: int
    servers: int
    threads_per_worker: int
    dashboard_address: str | None
    security: bool
    processes: bool

    def __str__(self) -> str:
        return f"workers={self.workers}, servers={self.servers}"

    def differences(self, other: Shape) -> str:
        """Return the arguments in which another one differs, as it has them."""
        return ", ".join(
            f"{each.name}={getattr(other, each.name)!r}"
            for each in fields(self)
            if getattr(self, each.name) != getattr(other, each.name)
        )


class LocalClient(Client):
    """A client that closes its cluster when it closes, or when Python ends.

    Parameters
    ----------
    cluster : LocalCluster
        As it has started.
    shape : Shape
        What was asked for.
    """

    def __init__(self, cluster: LocalCluster, shape: Shape) -> None:
        self.shape = shape
        super().__init__(cluster)
        _all.add(self)

    def close(self, *args: Any, **kwargs: Any) -> None:
        """Close the client, and then its cluster."""
        cluster = self.cluster
        super().close(*args, **kwargs)
        if cluster is not None:
            cluster.close()

    def _repr_html_(self) -> str:
        # Dask's has a link to its dashboard, also where there is none.
        if self.shape.dashboard_address is not None:
            return str(super()._repr_html_())
        return f"<code>{escape(repr(self))}</code>"


_all: weakref.WeakSet[LocalClient] = weakref.WeakSet()


def running() -> list[LocalClient]:
    """Return the clients of the local clusters of this process that are not closed."""
    return [client for client in list(_all) if is_connected(client)]


def running_with(shape: Shape) -> LocalClient | None:
    """Return the client of the local cluster that runs; None if none does.

    Raises
    ------
    ClusterError
        If one runs, but none of this shape.
    """
    there = running()
    for client in there:
        if client.shape == shape:
            return client
    if not there:
        return None
    raise ClusterError(
        f"local_cluster(reuse=True): the cluster that runs at {there[0].cluster.scheduler_address} "
        f"was started with {shape.differences(there[0].shape)}: ask for the same, or end it first "
        "with close() of its client"
    )


def warn_of_others() -> None:
    """Log that another local cluster runs: it may have been forgotten, and work for nobody."""
    for client in running():
        logger.warning(
            "another local cluster of this process runs at %s (%s), and goes on with what it has: "
            "local_cluster(reuse=True) returns it, close() of its client ends it",
            client.cluster.scheduler_address,
            client.shape,
        )


def _close_all() -> None:
    for client in running():
        client.close()


# Before Dask ends all clusters: to a client that is still open, servers would seem to die.
atexit.register(_close_all)
