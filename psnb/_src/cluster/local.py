"""The Dask classes of the local cluster: no server is scaled away, and nannies are patient.

If the cluster requires certificates, nothing is served over HTTP, which does not ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dask
from distributed import Nanny, Scheduler, SpecCluster, Worker
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.node import ServerNode

from psnb._src.cluster.protection import ROLE
from psnb.errors import ConfigurationError

DRAIN_TIMEOUT = 30.0
"""Seconds that closures get to end when their worker is scaled away."""

# Dask kills a worker process after four fifths of the time that its nanny is given to close.
_NANNY_TIMEOUT = (DRAIN_TIMEOUT + 5) / 0.8


# Dask has malloc give memory back to the system at once, so the pages of each large array must be
# cleared again: that costs several times what copying it does. So this much is kept for the next.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 26)}


# A hundred times a second and more Dask profiles tasks in each process, which closures are not, and
# measures the delays of event loops. With two workers and a server that takes a tenth of a core,
# and makes the server slower.
QUIET = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "500ms"}
"""Settings for clusters whose Dask dashboard nobody looks at."""


class _WithoutHTTP(ServerNode):
    """Closes the port of the HTTP server that each of Dask's processes has."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        super().start_http_server(*args, **kwargs)
        self.http_server.stop()  # nobody can have asked it anything: this is the loop's thread


class PrivateScheduler(_WithoutHTTP, Scheduler):
    """A scheduler that can be reached with certificates only."""


class PrivateWorker(_WithoutHTTP, Worker):
    """A worker that can be reached with certificates only."""


class PatientNanny(Nanny):
    """A nanny that gives its worker time to finish its closures when it is scaled away."""

    def __init__(self, *args: Any, settings: dict[str, Any], **kwargs: Any) -> None:
        with dask.config.set(settings):  # the worker gets the settings in force here
            super().__init__(*args, **kwargs)
        self.pre_spawn_env.update(_MALLOC)

    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> Any:
        """Close the worker and then the nanny; quickly if the whole cluster closes."""
        cluster = self._cluster() if self._cluster is not None else None
        alive = self.status in (Status.running, Status.closing_gracefully)
        if alive and cluster is not None and cluster.status is Status.running:
            # Before the nanny stops listening: a worker that is being closed, by the scheduler for
            # example, first tells its nanny, and would wait for it in vain.
            self.close_gracefully(reason)
            await self.kill(_NANNY_TIMEOUT, reason)
        return await super().close(timeout, reason)


class LocalCluster(SpecCluster):
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
        if self.status is not Status.running:  # Dask closes a cluster with scale(0)
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

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # SpecCluster closes the nanny of a worker that is not there some seconds after it was lost.
        # If it has died once more in that very moment, it would never come back.
        Cluster._update_worker_status(self, op, msg)

    async def scale_down(self, workers: Iterable[Any]) -> None:
        """Retire the workers of these names, never a server; adaptive scaling calls this.

        Adaptive scaling also names processes that the scheduler does not know yet, such as servers
        that their nannies are just starting again.
        """
        specs = self.worker_spec
        await super().scale_down([w for w in workers if w not in specs or not _is_server(specs[w])])


def _is_server(spec: dict[str, Any]) -> bool:
    return bool(spec["options"].get("resources", {}).get(ROLE))
