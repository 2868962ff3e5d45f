"""local_cluster: starts a cluster of processes on this machine, or of threads of this process."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import re
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from importlib.util import find_spec
from typing import Any

import dask
import psutil
from distributed import Client, Scheduler, Security, Worker

from psnb._src.cluster.links import CLIENT_ENDED, present, raise_limits
from psnb._src.cluster.scaling import ROLE
from psnb._src.dask_compat.local import (
    PrivateScheduler,
    PrivateWorker,
    SlowStartNanny,
    SteadyCluster,
)
from psnb._src.dask_compat.plugins import serves_dashboard
from psnb._src.dask_compat.reach import event_loop, has_ended, is_connected, scheduler_identity
from psnb._src.utils.checks import integer
from psnb._src.utils.foreign_names import explained
from psnb._src.utils.threads import run_on_loop
from psnb.errors import ClusterError, ConfigurationError

# The local cluster, of which no server is scaled away.

# A hundred times a second and more Dask profiles tasks in each process, which closures are not, and
# measures the delays of event loops. With two workers and a server that takes a tenth of a core,
# and makes the server slower. What processes measure of themselves, at Dask's pace, is half of what
# such a cluster takes while it waits.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.worker.memory.monitor-interval": "500ms",
}
"""Settings for clusters whose Dask dashboard is not shown."""


class LocalCluster(SteadyCluster):
    """Processes on this machine, servers and workers; made by `psnb.local_cluster`."""

    @property
    def num_servers(self) -> int:
        """How many processes hold parameters."""
        return sum(map(_is_server, self.worker_spec.values()))

    def scale(self, n: int) -> Any:
        """Start or retire workers until there are ``n`` processes, servers included.

        Returns at once. The workers that came last go first, after they have finished their
        closures; servers never go.

        Raises
        ------
        ConfigurationError
            If ``n`` is less than the number of servers.
        """
        if not self.runs:  # Dask closes a cluster with scale(0)
            return super().scale(n)
        servers = self.num_servers
        if n < servers:
            raise ConfigurationError(
                f"scale({n}) would take parameter servers away: n counts all processes, "
                f"{servers} of which are servers, so scale({servers} + workers); close the client "
                "to end all of them"
            )
        removable = [name for name, spec in self.worker_spec.items() if not _is_server(spec)]
        while len(self.worker_spec) > n:
            del self.worker_spec[removable.pop()]
        return super().scale(n)

    async def scale_down(self, workers: Iterable[Any]) -> None:
        """Retire the workers of these names, never a server; adaptive scaling calls this.

        Of servers it forgets those that the scheduler has retired before, as they were emptied.
        Adaptive scaling also names processes that the scheduler does not know yet, such as servers
        that their nannies are just starting again.
        """
        specs = self.worker_spec
        await super().scale_down(
            [w for w in workers if w not in specs or not _is_server(specs[w]) or self.is_closed(w)]
        )


def _is_server(spec: dict[str, Any]) -> bool:
    return bool(spec["options"].get("resources", {}).get(ROLE))


# LocalClient: the client of a local cluster, and which of them this process has.

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
    """Log that another local cluster runs, which may have been forgotten."""
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


# Running clusters: the roles of their workers.
#
# A Dask worker started with ``--resources "ps=1"`` is a parameter server, every other one runs
# closures.

IDENTITY_TIMEOUT = 60.0
"""Seconds in which a connected one must: it may be busy with others' tasks."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The servers and workers of a cluster, as name by address, in the order of their arrival."""

    servers: dict[str, str]
    workers: dict[str, str]


def identity(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of its cluster and all of its workers that are heard.

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


# WorkerNames: names that people can read for workers, each of one worker at a time. Pure.
#
# A worker may be given a name when it is started; else Dask names it by its address, or by a
# number. Such a worker is called ``worker-0`` or the like, and so is a second one of the same name.


class WorkerNames:
    """Names workers; thread-safe."""

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
            The names in the Dask cluster of those that are there, by address.
        connected : collection of str, optional
            Addresses of workers whose names are taken although they may have left the cluster: they
            still end what they have. By default those of the call before.
        """
        with self._lock:
            if connected is not None:
                self._connected = frozenset(connected)
            there = self._connected.union(workers)
            self._names = {a: name for a, name in self._names.items() if a in there}
            new = {a: name for a, name in workers.items() if a not in self._names}
            taken = set(self._names.values())
            # First those that have a name, which no other must get.
            for address, name in sorted(new.items(), key=lambda each: _is_no_name(*each)):
                found = _wanted(address, name)
                if not found or found in taken:
                    numbered = map("worker-{}".format, itertools.count())
                    found = next(each for each in numbered if each not in taken)
                self._names[address] = found
                taken.add(found)
            return {a: self._names[a] for a in sorted(workers, key=self._in_order)}

    def _in_order(self, address: str) -> tuple[list[str], list[int]]:
        # ``worker-10`` comes after ``worker-9``.
        name = self._names[address]
        return re.split(r"\d+", name), [int(digits) for digits in re.findall(r"\d+", name)]


def _wanted(address: str, name: str) -> str:
    """Return what a worker is to be called if no other is; empty for any number."""
    if _is_no_name(address, name):
        return ""
    return f"worker-{int(name)}" if name.isdecimal() else name


def _is_no_name(address: str, name: str) -> bool:
    return name == address or re.match(r"\w+://", name) is not None


# Neighbours: the other users of this host, and a folder that they cannot enter.
#
# The system protects users' processes and memory from each other, but not their ports on loopback.
# And a name in the folder for temporary files belongs to the user who takes it first.

_FIRST_PERSON = 1000
_SYSTEMS_OWN = range(61184, 65536)
"""User ids above `_FIRST_PERSON` that are not people: dynamic ones of services, and nobody."""


def neighbours() -> list[str]:
    """Return the names of other people who are logged in or run something, sorted.

    Root is left out, who may do everything anyhow. If the system hides the processes of others, or
    in a container, some users are not seen.
    """
    running = {
        each.info["username"]
        for each in psutil.process_iter(["uids", "username"])
        if each.info["uids"] and is_person(each.info["uids"].real)
    }
    logged_in = {user.name for user in psutil.users()}
    return sorted((running | logged_in) - {psutil.Process().username(), "root"})


def is_person(uid: int) -> bool:
    """Return whether a user id is that of a person, not of one of the system's services."""
    return uid >= _FIRST_PERSON and uid not in _SYSTEMS_OWN


def private_folder(parent: str) -> str:
    """Return a folder that only this user can enter, the same one each time if possible.

    Parameters
    ----------
    parent : str
        The folder in which it is made, or was.
    """
    folder = os.path.join(parent, f"psnb-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not ours or stat.S_IMODE(found.st_mode) & 0o077:  # made by, or open to, another user
            return tempfile.mkdtemp(prefix="psnb-", dir=parent)
    return folder


_Node = Callable[[int, dict[str, int]], dict[str, Any]]
"""Describes a worker or server of a cluster, from its threads and resources."""


@explained
def local_cluster(
    workers: int = 2,
    servers: int = 1,
    threads_per_worker: int = 1,
    dashboard_address: str | None = None,
    security: bool = False,
    *,
    dashboard: bool = False,
    reuse: bool = False,
    processes: bool = True,
) -> Client:
    """Start a cluster of processes on this machine.

    Each worker and server is a process of its own, watched by a Dask nanny, which starts it again
    when it dies. The stop button of a notebook and Ctrl-C leave them alone.
    ``client.cluster.scale`` and ``adapt`` count all processes and never take a server away.

    With ``processes=False`` everything is in this process: it starts in a tenth of a second,
    closures see the notebook's own modules, prints and breakpoints, and share one interpreter. That
    is for trying things out, and for steps that compute outside of the interpreter.

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
        up to 8 % fewer at 4,096 (``tests/benchmarks/security.py``).
    dashboard : bool
        Whether there is Dask's own dashboard, on a free port of loopback unless
        ``dashboard_address`` says where; ``client.dashboard_link`` leads there. It needs
        ``psnb[dashboard]``.
    reuse : bool
        Whether to return the client of the local cluster that this process has, if one runs: a cell
        that starts a cluster can then be run again. Else a second one is started, and a warning
        logged, as the first one goes on with what it has.
    processes : bool
        Whether workers and servers are processes of their own, else threads of this one.

    Returns
    -------
    distributed.Client
        Connected; closing it closes the cluster as well. Also a context manager.

    Raises
    ------
    ConfigurationError
        If a number is below 1, or ``security`` is for a cluster without processes.
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
    shape = Shape(
        *(workers, servers, threads_per_worker, dashboard_address, bool(security), bool(processes))
    )
    if security and not processes:
        raise ConfigurationError(
            "local_cluster(security=True): without processes nothing listens that needs it"
        )
    if reuse and (found := running_with(shape)) is not None:
        return found
    warn_of_others()
    raise_limits()  # the scheduler is in this process, and others have its settings
    link = _link(security) if processes else _NO_LINK
    settings = dict(QUIET) if dashboard_address is None else {}
    node = _process(link, security, settings) if processes else _thread(link)
    scheduler = PrivateScheduler if security and dashboard_address is None else Scheduler
    try:
        # Dask imports from its folder, and uses one that another user has made in its place.
        parent = dask.config.get("temporary-directory") or tempfile.gettempdir()
        settings["temporary-directory"] = private_folder(parent)
        with dask.config.set(settings):  # for what runs in this process, the scheduler above all
            cluster = LocalCluster(
                workers={
                    **{f"server-{i}": node(1, {ROLE: 1}) for i in range(servers)},
                    **{f"worker-{i}": node(threads_per_worker, {}) for i in range(workers)},
                },
                worker=node(threads_per_worker, {}),
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
    except BaseException:  # an interrupt, too: its processes end
        cluster.close()
        raise


_PRELOAD = "psnb._src.cluster.preload"

_NO_LINK: dict[str, Any] = {"protocol": "inproc://", "security": Security()}


def _process(link: dict[str, Any], security: bool, settings: dict[str, Any]) -> _Node:
    options = {
        **link,
        "worker_class": PrivateWorker if security else Worker,
        "settings": settings,
        "dashboard": False,
        "silence_logs": logging.WARNING,
        "preload": [*dask.config.get("distributed.worker.preload"), _PRELOAD],
    }
    return lambda threads, resources: {
        "cls": SlowStartNanny,
        "options": {**options, "nthreads": threads, "resources": resources},
    }


def _thread(link: dict[str, Any]) -> _Node:
    # Of the one process, none has a share of the memory, by which Dask would pause it.
    options = {**link, "dashboard": False, "silence_logs": logging.WARNING, "memory_limit": None}
    return lambda threads, resources: {
        "cls": Worker,
        "options": {**options, "nthreads": threads, "resources": resources},
    }


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
