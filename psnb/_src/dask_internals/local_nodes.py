"""Dask's classes for processes of a local cluster, changed where no setting changes them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import dask
from distributed import Nanny, Scheduler, SpecCluster, Worker
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.node import ServerNode

from psnb._src.dask_internals.spawning import script_hidden
from psnb._src.dask_internals.words import of_process

DRAIN_TIMEOUT = 30.0
"""Seconds that closures get to end when their worker is scaled away."""

# Dask kills a worker process after four fifths of the time that its nanny is given to close.
_NANNY_TIMEOUT = (DRAIN_TIMEOUT + 5) / 0.8


# Dask has malloc give memory back to the system at once, so the pages of each large array must be
# cleared again: that costs several times what copying it does. So this much is kept for the next.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 26)}


class _WithoutHTTP(ServerNode):
    """Closes the port of the HTTP server that each of Dask's processes has.

    Relies on ``ServerNode.start_http_server``, and ``http_server`` that it makes.
    """

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        super().start_http_server(*args, **kwargs)
        self.http_server.stop()  # nobody can have asked it anything: this is the loop's thread


class PrivateScheduler(_WithoutHTTP, Scheduler):
    """A scheduler that can be reached with certificates only."""


class PrivateWorker(_WithoutHTTP, Worker):
    """A worker that can be reached with certificates only."""


class PatientNanny(Nanny):
    """A nanny that gives its worker time to finish its closures when it is scaled away.

    The worker's process does not import the user's script (`script_hidden`).

    Relies on ``pre_spawn_env``, the environment of the worker's process; on ``instantiate``, which
    starts it, also after it has died; on ``_cluster``, a weak reference to the cluster that closes
    the nanny, set when all of the cluster has started; and on how ``close`` goes: by ``kill`` and
    ``close_gracefully``; and on ``_on_worker_exit``, which starts a process again that has ended.
    """

    _cluster: Callable[[], Cluster | None] | None = None

    def __init__(self, *args: Any, settings: dict[str, Any], **kwargs: Any) -> None:
        with dask.config.set(settings):  # the worker gets the settings in force here
            super().__init__(*args, **kwargs)
        self.pre_spawn_env.update(MALLOC)

    async def instantiate(self) -> Status:
        """Start the worker's process."""
        with script_hidden():
            return await super().instantiate()

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """End the worker's process, by force if it does not end in time."""
        with of_process(self.name):
            await super().kill(timeout, reason)

    async def _on_worker_exit(self, exitcode: int | None) -> None:
        with of_process(self.name):
            await super()._on_worker_exit(exitcode)

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


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


class SteadyCluster(SpecCluster):
    """A cluster that leaves it to nannies to start lost workers again.

    Those that are added get the names ``worker-0`` and so on.

    Relies on ``_update_worker_status``, called for each worker that comes or goes,
    ``_new_worker_name``, which is meant to be changed, and ``status``; and on the logger
    ``distributed.batched``.
    """

    def close(self, timeout: float | None = None) -> Any:
        """Close the cluster, and say nothing of its own streams that end.

        The scheduler tells the cluster a moment later that a worker has gone. Within a process it
        finds the cluster's stream closed by then and logs that with a traceback, when the cluster
        has ceased to silence Dask's logs.
        """
        logger = logging.getLogger("distributed.batched")
        logger.addFilter(_is_warning)
        try:
            return super().close(timeout)
        finally:
            logger.removeFilter(_is_warning)

    @property
    def runs(self) -> bool:
        """Whether it is neither starting nor closing."""
        return self.status is Status.running

    def _new_worker_name(self, worker_number: int) -> str:
        return f"worker-{worker_number}"

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # SpecCluster closes the nanny of a worker that is not there some seconds after it was lost.
        # If it has died once more in that very moment, it would never come back.
        Cluster._update_worker_status(self, op, msg)
