"""The servers and workers of a running cluster, and the names that people read.

A Dask worker started with ``--resources "ps=1"`` is a parameter server, every other one runs
closures.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Client

from psnb._src.cluster.links import CLIENT_ENDED, present
from psnb._src.dask_compat.plugins import serves_dashboard
from psnb._src.dask_compat.reach import event_loop, has_ended, scheduler_identity
from psnb._src.utils.threads import run_on_loop
from psnb.errors import ClusterError

ROLE = "ps"
"""The Dask resource that marks a parameter server."""


IDENTITY_TIMEOUT = 60.0
"""Seconds in which the scheduler must answer: it may be busy with others' tasks."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The servers and workers of a cluster, as name by address, in the order of their arrival."""

    servers: dict[str, str]
    workers: dict[str, str]


def identity(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of its cluster and all of its responding workers.

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
        found = run_on_loop(
            event_loop(client), partial(scheduler_identity, client), IDENTITY_TIMEOUT
        )
    except TimeoutError as error:
        raise ClusterError(
            f"the Dask scheduler has not answered for {IDENTITY_TIMEOUT:.0f} s: it hangs, or this "
            "client's event loop does"
        ) from error
    return present(found)


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


class WorkerNames:
    """Names of workers, each of one worker at a time; thread-safe.

    A worker may be given a name when it is started; else Dask names it by its address, or by a
    number. Such a worker gets a name like ``worker-0``, and so does a second one of the same name.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the names and what is connected
        self._names: dict[str, str] = {}  # by address
        self._connected: frozenset[str] = frozenset()

    def of(
        self, workers: Mapping[str, str], connected: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return the names of workers by their addresses, in order; a worker keeps its name.

        Parameters
        ----------
        workers : mapping of str to str
            The names in the Dask cluster of the present workers, by address.
        connected : collection of str, optional
            Addresses of workers whose names are taken although they may have left the cluster: they
            still finish their closures. By default those of the previous call.
        """
        with self._lock:
            if connected is not None:
                self._connected = frozenset(connected)
            there = self._connected.union(workers)
            self._names = {a: name for a, name in self._names.items() if a in there}
            new = {a: name for a, name in workers.items() if a not in self._names}
            taken = set(self._names.values())
            # First the workers that have a name, which no other must get.
            for address, name in sorted(new.items(), key=lambda each: _is_no_name(*each)):
                found = f"worker-{int(name)}" if name.isdecimal() else name
                if not found or _is_no_name(address, name) or found in taken:
                    numbered = map("worker-{}".format, itertools.count())
                    found = next(each for each in numbered if each not in taken)
                self._names[address] = found
                taken.add(found)
            return {a: self._names[a] for a in sorted(workers, key=self._in_order)}

    def _in_order(self, address: str) -> tuple[list[str], list[int]]:
        # ``worker-10`` comes after ``worker-9``.
        name = self._names[address]
        return re.split(r"\d+", name), [int(digits) for digits in re.findall(r"\d+", name)]


def _is_no_name(address: str, name: str) -> bool:
    return name == address or re.match(r"\w+://", name) is not None
