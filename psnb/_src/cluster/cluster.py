"""Running clusters: connecting to one, and the roles of its workers.

A Dask worker started with ``--resources "ps=1"`` is a parameter server, every other one runs
closures.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Client, Security

from psnb._src.checks import seconds
from psnb._src.cluster.protection import ROLE
from psnb._src.dask_internals import (
    event_loop,
    has_ended,
    scheduler_identity,
    serves_dashboard,
    tls_context_of,
)
from psnb._src.excerpt import excerpt
from psnb._src.threads import on_loop
from psnb.errors import ClusterError, ConfigurationError

logger = logging.getLogger("psnb")

IDENTITY_TIMEOUT = 60.0
"""Seconds in which a connected one must: it may be busy with somebody else's tasks."""


CLIENT_ENDED = (
    "the Dask client is closed: make a new one with psnb.local_cluster() or psnb.connect(address), "
    "then a new strategy"
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The servers and workers of a cluster, as name by address, in the order of their arrival."""

    servers: dict[str, str]
    workers: dict[str, str]


def identity(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of its cluster and all of its workers.

    Not `Client.scheduler_info`: it returns a copy that the client itself renews every two seconds,
    without workers, so that now and then a cluster seems to have no workers.

    Raises
    ------
    ClusterError
        If the scheduler does not answer, or the client is closed.
    """
    if has_ended(client):
        raise ClusterError(CLIENT_ENDED)
    try:
        return on_loop(event_loop(client), partial(scheduler_identity, client), IDENTITY_TIMEOUT)
    except TimeoutError as error:
        raise ClusterError(
            f"the Dask scheduler says nothing for {IDENTITY_TIMEOUT:.0f} s: it hangs, or this "
            "client's event loop does"
        ) from error


def roles(cluster: dict[str, Any]) -> Roles:
    """Return the roles of the workers, from the scheduler's description of its cluster."""
    servers: dict[str, str] = {}
    workers: dict[str, str] = {}
    for address, worker in cluster["workers"].items():
        if worker["status"] in ("running", "paused", "init"):
            role = servers if worker["resources"].get(ROLE) else workers
            role[address] = str(worker["name"])
    return Roles(servers, workers)


def closure_workers(taken: frozenset[str], cluster: dict[str, Any]) -> dict[str, str]:
    """Return name by address of the workers that may run closures.

    Parameters
    ----------
    taken : frozenset of str
        Addresses that a strategy uses for servers, whatever they were started as.
    cluster : dict
        The Dask scheduler's description of the cluster.
    """
    workers = roles(cluster).workers
    return {address: name for address, name in workers.items() if address not in taken}


def connect(address: str, *, timeout: float = 8.0, security: Security | None = None) -> Client:
    """Connect to a running cluster.

    Parameters
    ----------
    address : str
        The scheduler's address, for example ``"tcp://host:8786"``.
    timeout : float
        Seconds in which the scheduler must answer.
    security : distributed.Security, optional
        The certificates with which a scheduler at ``tls://…`` lets in, for example
        ``Security(tls_ca_file=…, tls_client_cert=…, tls_client_key=…, require_encryption=True)``.
        By default those that Dask's configuration names.

    Returns
    -------
    distributed.Client
        Connected.

    Raises
    ------
    ClusterError
        If no scheduler answers there in time, or if the address is for TLS and there are no
        certificates.
    ConfigurationError
        If ``timeout`` is not a positive number, or ``security`` is of another type.
    """
    timeout = seconds("connect: timeout", timeout)
    if not isinstance(security, Security | None):
        raise ConfigurationError(
            f"connect: security must be a distributed.Security, found {excerpt(repr(security))}"
        )
    # Checked before: Dask raises a TypeError, and its client waits for itself when it is collected.
    if address.startswith("tls://") and tls_context_of(security or Security()) is None:
        raise ClusterError(
            f"{address!r} lets in only who has certificates: name them with security=, or in "
            "Dask's configuration, distributed.comm.tls"
        )
    try:
        return Client(address, timeout=timeout, security=security)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r}: {error}. Start one with `dask scheduler`, "
            "or check the address it printed, which is tls://... where it wants certificates"
        ) from None  # Dask's own errors say no more, in a hundred lines


def dashboard_link(client: Client) -> str:
    """Return where the scheduler shows Dask's own dashboard; empty if it shows none."""
    if not client.run_on_scheduler(serves_dashboard):
        return ""
    return str(client.dashboard_link or "")


def choose_servers(client: Client, num_servers: int | None) -> tuple[list[str], bool]:
    """Return the addresses of the workers that serve parameters, and if they were started to.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    num_servers : int or None
        How many; None for all that were started as servers.

    Raises
    ------
    ClusterError
        If there are not that many, or no worker would be left for closures.
    """
    found = roles(identity(client))
    total = len(found.servers) + len(found.workers)
    if found.servers:
        wanted = len(found.servers) if num_servers is None else num_servers
        if wanted > len(found.servers):
            raise ClusterError(
                f"num_servers={wanted}, but the cluster has {len(found.servers)} workers started "
                'with --resources "ps=1"'
            )
        if not found.workers:
            raise ClusterError(
                f"all {total} workers of the cluster are parameter servers: closures need at least "
                'one that was started without --resources "ps=1"'
            )
        return list(found.servers)[:wanted], True
    if num_servers is None:
        raise ClusterError(
            f"none of the cluster's {total} workers is a parameter server: start some with "
            'dask worker ADDRESS --resources "ps=1", or pass num_servers=k to take k of these'
        )
    if total < num_servers + 1:
        raise ClusterError(
            f"num_servers={num_servers} needs {num_servers + 1} workers (the servers and one that "
            f"runs closures), but the cluster has {total}"
        )
    return list(found.workers)[:num_servers], False
