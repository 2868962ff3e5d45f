"""The local cluster: processes on this machine, or threads of this process."""

from __future__ import annotations

import atexit
import logging
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import dask
from distributed import Client, Scheduler, Security, Worker

from psnb._src.cluster.forking import FORKS, MALLOC, ForkContext, import_named
from psnb._src.cluster.links import raise_limits
from psnb._src.cluster.neighbours import neighbours, private_folder
from psnb._src.cluster.roles import ROLE
from psnb._src.dask_compat.local import (
    PrivateScheduler,
    PrivateWorker,
    SlowStartNanny,
    SteadyCluster,
)
from psnb._src.dask_compat.reach import is_connected
from psnb.errors import ClusterError, ConfigurationError

# A hundred times a second and more Dask profiles tasks in each process, which closures are not, and
# measures the delays of event loops. With two workers and a server this takes a tenth of a core,
# and slows the server down. The processes' measurements of themselves, at Dask's pace, are half of
# the CPU time of an idle cluster.
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

        Returns immediately. The workers that came last go first, after they have finished their
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

        It forgets servers that the scheduler retired earlier, after they were drained. Adaptive
        scaling also names processes that the scheduler does not know yet, such as servers that
        their nannies are just restarting.
        """
        specs = self.worker_spec
        await super().scale_down(
            [w for w in workers if w not in specs or not _is_server(specs[w]) or self.is_closed(w)]
        )


def _is_server(spec: dict[str, Any]) -> bool:
    return bool(spec["options"].get("resources", {}).get(ROLE))


logger = logging.getLogger("psnb")


class LocalClient(Client):
    """A client that closes its cluster when it closes, or when Python ends.

    Parameters
    ----------
    cluster : LocalCluster
        As it has started.
    shape : mapping of str to object
        What was asked for: arguments of `psnb.local_cluster`.
    """

    def __init__(self, cluster: LocalCluster, shape: Mapping[str, object]) -> None:
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
        if self.shape["dashboard_address"] is not None:
            return str(super()._repr_html_())
        return f"<code>{escape(repr(self))}</code>"


_all: weakref.WeakSet[LocalClient] = weakref.WeakSet()


def running() -> list[LocalClient]:
    """Return the clients of the local clusters of this process that are not closed."""
    return [client for client in list(_all) if is_connected(client)]


def running_with(shape: Mapping[str, object]) -> LocalClient | None:
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
    other = [f"{name}={each!r}" for name, each in there[0].shape.items() if each != shape[name]]
    raise ClusterError(
        f"local_cluster(reuse=True): the cluster that runs at {there[0].cluster.scheduler_address} "
        f"was started with {', '.join(other)}: ask for the same, or end it first with close() of "
        "its client"
    )


def _close_all() -> None:
    for client in running():
        client.close()


# Before Dask ends all clusters: to a client that is still open, servers would seem to die.
atexit.register(_close_all)


def start(shape: Mapping[str, Any], reuse: bool) -> LocalClient:
    """Start a cluster, or return the one that runs; see `psnb.local_cluster`."""
    if reuse and (found := running_with(shape)) is not None:
        return found
    for client in running():
        logger.warning(
            "another local cluster of this process runs at %s (workers=%s, servers=%s), and goes "
            "on with what it has: local_cluster(reuse=True) returns it, close() of its client ends "
            "it",
            client.cluster.scheduler_address,
            client.shape["workers"],
            client.shape["servers"],
        )
    workers, servers, threads_per_worker = (
        shape[each] for each in ("workers", "servers", "threads_per_worker")
    )
    dashboard_address, security, processes = (
        shape[each] for each in ("dashboard_address", "security", "processes")
    )
    raise_limits()  # the scheduler is in this process, and others have its settings
    link = _link(security) if processes else _NO_LINK
    settings = dict(QUIET) if dashboard_address is None else {}
    options = {**link, "dashboard": False, "silence_logs": logging.WARNING}
    if processes:
        options["worker_class"] = PrivateWorker if security else Worker
        options["settings"] = settings
        options["environment"] = MALLOC
        options["processes"] = ForkContext() if FORKS else None
        options["preload"] = [*dask.config.get("distributed.worker.preload"), _PRELOAD]
    else:
        # In one process, no worker has a memory limit of its own, at which Dask would pause it.
        options["memory_limit"] = None

    def node(threads: int, resources: dict[str, int]) -> dict[str, Any]:
        return {
            "cls": SlowStartNanny if processes else Worker,
            "options": {**options, "nthreads": threads, "resources": resources},
        }

    # Processes begin while this one waits; meanwhile it imports what will be asked for next.
    ahead = threading.Thread(
        target=import_named,
        args=(["psnb:ParameterServerStrategy", "psnb:ClusterCoordinator", "psnb:Embedding"],),
        name="psnb-imports",
        daemon=True,
    )
    if processes:
        ahead.start()
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
        cause: BaseException = error
        while cause.__cause__ is not None:  # Dask wraps it, as "Nanny failed to start."
            cause = cause.__cause__
        raise ClusterError(
            f"the local cluster did not start: {type(cause).__name__}: {cause}"
        ) from error
    try:
        if processes:
            ahead.join()
        return LocalClient(cluster, shape)
    except BaseException:  # an interrupt, too: its processes end
        cluster.close()
        raise


_PRELOAD = "psnb._src.cluster.preload"

_NO_LINK: dict[str, Any] = {"protocol": "inproc://", "security": Security()}


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
