"""The local cluster, of which no server is scaled away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psnb._src.cluster.protection import ROLE
from psnb._src.dask_internals import SteadyCluster
from psnb.errors import ConfigurationError

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
"""Settings for clusters whose Dask dashboard nobody looks at."""


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

        Adaptive scaling also names processes that the scheduler does not know yet, such as servers
        that their nannies are just starting again.
        """
        specs = self.worker_spec
        await super().scale_down([w for w in workers if w not in specs or not _is_server(specs[w])])


def _is_server(spec: dict[str, Any]) -> bool:
    return bool(spec["options"].get("resources", {}).get(ROLE))
