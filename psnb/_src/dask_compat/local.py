"""Processes of a local cluster: Dask's classes, changed where no setting changes them.

A process that multiprocessing spawns begins by importing the script of its parent. The code outside
of ``if __name__ == "__main__":`` would run again in each worker: first of all, start a cluster.
Workers do not need it, as a script's definitions are pickled by value: so nannies hide it
(`script_hidden`).

Dask's log messages about these processes are replaced by ones that say what they mean for the user.
Dask's line is left out where it is known; if a release words it otherwise, it appears as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from multiprocessing import spawn
from multiprocessing.context import BaseContext
from typing import Any

import dask
from distributed import Nanny, Scheduler, SpecCluster, Worker, nanny, process
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.node import ServerNode

_PROCESS = "Dask Worker process (from Nanny)"
_SCRIPT = ("init_main_from_name", "init_main_from_path")

_lock = threading.Lock()  # guards the two below: each cluster may have an event loop of its own
_starting = 0
_with_script = spawn.get_preparation_data


@contextlib.contextmanager
def script_hidden() -> Iterator[None]:
    """Have nannies start processes that do not import this one's script, until the block ends.

    All other processes are started as usual, and the script itself does not notice it. Relies on
    ``multiprocessing.spawn.get_preparation_data``, which tells a process what it needs to know of
    its parent, also one that a fork server starts; and on the name of nannies' processes.
    """
    global _starting
    with _lock:
        _starting += 1
        spawn.get_preparation_data = _without_script
    try:
        yield
    finally:
        with _lock:
            _starting -= 1
            if not _starting:
                spawn.get_preparation_data = _with_script


def _without_script(name: str) -> dict[str, Any]:
    settings = _with_script(name)
    return {k: v for k, v in settings.items() if name != _PROCESS or k not in _SCRIPT}


# How a nanny starts its process is a setting of Dask's for all nannies, those of users, too. So it
# is decided here for each by itself. Both modules look for this name when they make a process.
_processes: ContextVar[BaseContext | None] = ContextVar("how a nanny starts", default=None)
_context_of_settings = nanny.get_mp_context


def _context() -> BaseContext:
    return _processes.get() or _context_of_settings()


nanny.get_mp_context = process.get_mp_context = _context

# How often nannies look whether their process has started; Dask's 50 ms are a part of a start.
nanny.WorkerProcess._init_msg_interval = 0.005


logger = logging.getLogger("psnb")

_NANNY = {
    "Restarting worker": "the process of %s has ended: it is started again, empty",
    "Worker process still alive after": "the process of %s did not end in time, and was killed",
}
_HEARTBEAT = "Failed to communicate with scheduler during heartbeat"

_whose: ContextVar[str] = ContextVar("whose process a nanny sees to")


@contextlib.contextmanager
def of_process(name: object) -> Iterator[None]:
    """Reword what a nanny logs in the block, so that it is about a process.

    Relies on the logger ``distributed.nanny``, and on how its warnings begin.
    """
    logging.getLogger("distributed.nanny").addFilter(_reworded)  # once, however often
    token = _whose.set(str(name))
    try:
        yield
    finally:
        _whose.reset(token)


def _reworded(record: logging.LogRecord) -> bool:
    if whose := _whose.get(""):  # nannies of other clusters log as usual
        for begins, words in _NANNY.items():
            if record.getMessage().startswith(begins):
                logger.warning(words, whose)
                return False
    return True


def await_heartbeats(worker: Worker, patience: float = 1.0) -> None:
    """Have a worker log that its scheduler does not answer only if it keeps running after that.

    While a cluster closes the scheduler often hangs up first, which Dask logs with a traceback. To
    be called in the worker's own process. Relies on the logger ``distributed.worker``, and on how
    the worker logs that a heartbeat fails, on its event loop.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    patience : float
        Seconds in which it may begin to close.
    """

    def say(error: object) -> None:
        if worker.status is Status.running:
            logger.warning("%s has no answer from the scheduler: %s", worker.name, error)

    def is_other(record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith(_HEARTBEAT):
            return True
        error = record.exc_info[1] if record.exc_info else None
        asyncio.get_running_loop().call_later(patience, say, error)
        return False

    logging.getLogger("distributed.worker").addFilter(is_other)


DRAIN_TIMEOUT = 30.0
"""Seconds that closures get to end when their worker is scaled away."""

# Dask kills a worker process after four fifths of the time that its nanny is given to close.
_NANNY_TIMEOUT = (DRAIN_TIMEOUT + 5) / 0.8


class _WithoutHTTP(ServerNode):
    """Closes the port of the HTTP server that each of Dask's processes has.

    Relies on ``ServerNode.start_http_server``, and ``http_server`` that it makes.
    """

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        super().start_http_server(*args, **kwargs)
        self.http_server.stop()  # it cannot have got a request yet: this is the loop's thread


class PrivateScheduler(_WithoutHTTP, Scheduler):
    """A scheduler that can be reached with certificates only."""


class PrivateWorker(_WithoutHTTP, Worker):
    """A worker that can be reached with certificates only."""


class SlowStartNanny(Nanny):
    """A nanny that gives its worker time to finish its closures when it is scaled away.

    The worker's process does not import the user's script (`script_hidden`).

    Parameters
    ----------
    settings : dict
        Dask's, for the worker.
    environment : mapping of str to str
        What the worker's process has in its environment when it starts.
    processes : multiprocessing context, optional
        How its process is started, else as Dask's settings say.

    Relies on ``pre_spawn_env``, the environment of the worker's process; on ``instantiate``, which
    starts it, also after it has died; on ``_cluster``, a weak reference to the cluster that closes
    the nanny, set when all of the cluster has started; and on how ``close`` goes: by ``kill`` and
    ``close_gracefully``; and on ``_on_worker_exit``, which starts a process again that has ended.
    """

    _cluster: Callable[[], Cluster | None] | None = None

    def __init__(
        self,
        *args: Any,
        settings: dict[str, Any],
        environment: Mapping[str, str],
        processes: BaseContext | None,
        **kwargs: Any,
    ) -> None:
        with dask.config.set(settings):  # the worker gets the settings in force here
            super().__init__(*args, **kwargs)
        self.pre_spawn_env.update(environment)
        self._processes = processes

    async def instantiate(self) -> Status:
        """Start the worker's process."""
        token = _processes.set(self._processes)
        try:
            with script_hidden():
                return await super().instantiate()
        finally:
            _processes.reset(token)

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
            # example, first informs its nanny, and would wait for it in vain.
            self.close_gracefully(reason)
            await self.kill(_NANNY_TIMEOUT, reason)
        return await super().close(timeout, reason)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


class SteadyCluster(SpecCluster):
    """A cluster that leaves it to nannies to start lost workers again.

    Added ones get the names ``worker-0`` and so on.

    Relies on ``_update_worker_status``, called for each worker that comes or goes,
    ``_new_worker_name``, which is meant to be changed, ``status``, and ``workers``, the nannies or
    workers by name; and on the logger ``distributed.batched``.
    """

    def close(self, timeout: float | None = None) -> Any:
        """Close the cluster, and log nothing of its own streams that end.

        The scheduler informs the cluster a moment later that a worker has gone. Within a process it
        finds the cluster's stream closed by then and logs that with a traceback, as the cluster no
        longer suppresses Dask's logs.
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

    def is_closed(self, name: Any) -> bool:
        """Whether a process was closed; one that its nanny is just starting again was not."""
        process = self.workers.get(name)
        return process is not None and process.status in (
            Status.closing_gracefully,
            Status.closing,
            Status.closed,
        )

    def _new_worker_name(self, worker_number: int) -> str:
        return f"worker-{worker_number}"

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # SpecCluster closes the nanny of a worker that is not there some seconds after it was lost.
        # If it has died once more in that very moment, it would never come back.
        Cluster._update_worker_status(self, op, msg)
