"""Clusters: a local one with roles, a running one by its address, and the roles of workers.

A Dask worker started with ``--resources "ps=1"`` is a parameter server, every other one runs
closures.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import dask
from distributed import Client, Scheduler, Security, Worker

from psnb._src.checks import integer
from psnb._src.cluster.local import QUIET, LocalCluster
from psnb._src.cluster.local_client import LocalClient, Shape, running_with, warn_of_others
from psnb._src.cluster.neighbours import neighbours, private_folder
from psnb._src.cluster.protection import ROLE
from psnb._src.dask_internals import (
    PatientNanny,
    PrivateScheduler,
    PrivateWorker,
    configured_tls_context,
    event_loop,
    has_ended,
    scheduler_identity,
    serves_dashboard,
)
from psnb._src.threads import on_loop
from psnb.errors import ClusterError

logger = logging.getLogger("psnb")

CONNECT_TIMEOUT = 8.0
"""Seconds in which a scheduler must answer."""

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


def local_cluster(
    workers: int = 2,
    servers: int = 1,
    threads_per_worker: int = 1,
    dashboard_address: str | None = None,
    security: bool = False,
    *,
    dashboard: bool = False,
    reuse: bool = False,
) -> Client:
    """Start a cluster of processes on this machine.

    Each worker and server is a process of its own, watched by a Dask nanny, which starts it again
    when it dies. The stop button of a notebook and Ctrl-C leave them alone.
    ``client.cluster.scale`` and ``adapt`` count all processes and never take a server away.

    Parameters
    ----------
    workers : int
        Processes that run closures; 1 or more.
    servers : int
        Processes that hold parameters; 1 or more.
    threads_per_worker : int
        Closures that a worker runs at the same time; 1 or more.
    dashboard_address : str, optional
        Where Dask's own dashboard listens, for example ``":8787"``, as ``dashboard=True`` does. By
        default there is no dashboard, and Dask does not profile its tasks either. Everybody who can
        reach it sees everything: it has no password.
    security : bool
        Whether to keep the other users of this host out. They can reach the cluster's ports on
        loopback, and run code as you; a warning is logged if there are any. With True everything
        goes over TLS, only processes of this cluster and this client have its certificates, and
        without a dashboard nothing is served over HTTP. It needs ``psnb[security]``, and costs: in
        three runs on two busy cores wide & deep made 10 to 18 % fewer examples/s at batch 512, and
        up to 8 % fewer at 4,096 (`tests/benchmarks/security.py`).
    dashboard : bool
        Whether there is Dask's own dashboard, on a free port of loopback unless
        ``dashboard_address`` says where; ``client.dashboard_link`` leads there. It needs
        ``psnb[dashboard]``.
    reuse : bool
        Whether to return the client of the local cluster that this process has, if one runs: a cell
        that starts a cluster can then be run again. Else a second one is started, and a warning
        logged, as the first one goes on with what it has.

    Returns
    -------
    distributed.Client
        Connected; closing it closes the cluster as well. Also a context manager.

    Raises
    ------
    ConfigurationError
        If a number is below 1.
    ClusterError
        If its processes do not start, ``security`` or ``dashboard`` needs what is not installed,
        or with ``reuse`` a cluster runs that was started with other arguments.
    """
    workers = integer("local_cluster: workers", workers, 1)
    servers = integer("local_cluster: servers", servers, 1)
    threads_per_worker = integer("local_cluster: threads_per_worker", threads_per_worker, 1)
    if dashboard and dashboard_address is None:
        dashboard_address = "127.0.0.1:0"
    if dashboard_address is not None and find_spec("bokeh") is None:
        raise ClusterError(
            "Dask's dashboard needs the package bokeh, which is not installed: "
            "pip install 'psnb[dashboard]'"
        )
    shape = Shape(workers, servers, threads_per_worker, dashboard_address, bool(security))
    if reuse and (found := running_with(shape)) is not None:
        return found
    warn_of_others()
    link = _link(security)
    settings = dict(QUIET) if dashboard_address is None else {}
    options = {
        **link,
        "worker_class": PrivateWorker if security else Worker,
        "settings": settings,
        "nthreads": threads_per_worker,
        "dashboard": False,
        "silence_logs": logging.WARNING,
        "preload": [*dask.config.get("distributed.worker.preload"), "psnb._src.runtime.interrupt"],
    }
    worker = {"cls": PatientNanny, "options": options}
    server = {"cls": PatientNanny, "options": {**options, "nthreads": 1, "resources": {ROLE: 1}}}
    scheduler = PrivateScheduler if security and dashboard_address is None else Scheduler
    try:
        # Dask imports from its folder, and uses one that somebody else has made in its place.
        parent = dask.config.get("temporary-directory") or tempfile.gettempdir()
        settings["temporary-directory"] = private_folder(parent)
        with dask.config.set(settings):  # for what runs in this process, the scheduler above all
            cluster = LocalCluster(
                workers={
                    **{f"server-{i}": server for i in range(servers)},
                    **{f"worker-{i}": worker for i in range(workers)},
                },
                worker=worker,
                scheduler={
                    "cls": scheduler,
                    "options": {
                        **link,
                        "port": 0,
                        "dashboard": dashboard_address is not None,
                        # Its HTTP server runs in any case; the default port may be taken.
                        "dashboard_address": dashboard_address or "127.0.0.1:0",
                    },
                },
                security=link["security"],
                silence_logs=logging.WARNING,
                name="psnb",
            )
    except (OSError, RuntimeError) as error:
        raise ClusterError(f"the local cluster did not start: {_first_cause(error)}") from error
    try:
        return LocalClient(cluster, shape)
    except BaseException:
        cluster.close()
        raise


def _first_cause(error: BaseException) -> str:
    """Return what an error began with; Dask wraps it, as "Nanny failed to start."."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _link(security: bool) -> dict[str, Any]:
    """Return how the processes of a local cluster reach each other; log which others can."""
    if security:
        try:
            certificates = Security.temporary()
        except ImportError as error:
            raise ClusterError(
                "local_cluster(security=True) makes certificates with the package cryptography, "
                "which is not installed: pip install 'psnb[security]'"
            ) from error
        return {"host": "127.0.0.1", "protocol": "tls://", "security": certificates}
    if others := neighbours():
        logger.warning(
            "other users of this host (%s) can reach the ports of this cluster, and run code as "
            "you: local_cluster(security=True) keeps them out",
            ", ".join(others),
        )
    return {"host": "127.0.0.1", "protocol": "tcp://", "security": Security()}


def connect(address: str) -> Client:
    """Connect to a running cluster.

    Parameters
    ----------
    address : str
        The scheduler's address, for example ``"tcp://host:8786"``.

    Returns
    -------
    distributed.Client
        Connected.

    Raises
    ------
    ClusterError
        If no scheduler answers there within ten seconds, or if the address is for TLS and Dask's
        configuration names no certificates.
    """
    # Checked before: Dask raises a TypeError, and its client waits for itself when it is collected.
    if address.startswith("tls://") and configured_tls_context() is None:
        raise ClusterError(
            f"{address!r} lets in only who has certificates: name them in Dask's configuration, "
            "distributed.comm.tls"
        )
    try:
        return Client(address, timeout=CONNECT_TIMEOUT)
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
