"""How psnb reaches Dask's processes: event loops, connections and the scheduler.

A *node* is a client or a worker: both have an event loop, a pool of connections and a connection to
the scheduler. Coroutines run on that event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from multiprocessing import spawn
from typing import Any

import dask
from dask.base import compute, is_dask_collection
from dask.core import flatten
from dask.delayed import Delayed
from dask.delayed import delayed as make_delayed
from dask.sizeof import sizeof
from dask.utils import parse_timedelta
from distributed import Client, Future, Nanny, Scheduler, Security, SpecCluster, Worker
from distributed.client import futures_of
from distributed.comm import Comm, connect, parse_host_port
from distributed.comm.tcp import set_tcp_timeout
from distributed.core import ConnectionPool, Status, send_recv
from distributed.deploy.cluster import Cluster
from distributed.node import ServerNode
from distributed.protocol.pickle import dumps as cloudpickled
from distributed.protocol.pickle import loads as unpickled
from distributed.scheduler import WorkerState
from distributed.utils import offload
from distributed.utils_comm import gather_from_workers
from distributed.worker import _worker_cvar
from tornado.ioloop import PeriodicCallback
from tornado.iostream import IOStream
from tornado.web import RequestHandler

CONNECTION_KEPT = Status.dont_reply
"""What a handler returns that has sent its own answer, and keeps or has closed the connection."""


def event_loop(node: Client | Worker) -> asyncio.AbstractEventLoop:
    """Return the event loop of a client or worker.

    Relies on ``loop``, a Tornado loop that is a shell around one of asyncio's.
    """
    loop: asyncio.AbstractEventLoop = node.loop.asyncio_loop
    return loop


def pool_of(node: Client | Worker) -> ConnectionPool:
    """Return the pool of a client's or worker's connections to others; it closes with the node.

    Relies on ``rpc``.
    """
    return node.rpc


def is_open(pool: ConnectionPool) -> bool:
    """Return whether a pool still makes connections.

    Relies on ``ConnectionPool.status``; a pool that is closed raises RuntimeError.
    """
    return bool(pool.status == Status.running)


def has_open_connection(pool: ConnectionPool, address: str) -> bool:
    """Return whether a pool has a connection to an address that is open and not in use.

    Relies on ``ConnectionPool.available``, sets of connections by address.
    """
    return any(not comm.closed() for comm in pool.available.get(address, ()))


def give_back_connection(pool: ConnectionPool, address: str, comm: Comm) -> None:
    """Give a connection back to its pool, which forgets it if it is closed.

    Relies on ``ConnectionPool.reuse``.
    """
    pool.reuse(address, comm)


def tls_context(pool: ConnectionPool) -> ssl.SSLContext | None:
    """Return with which certificates a pool connects; None if it does so without.

    Relies on ``ConnectionPool.connection_args``.
    """
    context: ssl.SSLContext | None = pool.connection_args.get("ssl_context")
    return context


def tls_context_of(security: Security) -> ssl.SSLContext | None:
    """Return the certificates with which clients connect; None if there are none.

    What it does not name is that of Dask's configuration. Relies on
    ``Security.get_connection_args``.
    """
    context: ssl.SSLContext | None = security.get_connection_args("client")["ssl_context"]
    return context


async def connect_separately(client: Client, address: str) -> Comm:
    """Return a new connection that does not belong to the client's pool.

    Relies on ``distributed.comm.connect``, and ``Client.connection_args`` for its certificates.
    """
    return await connect(address, **client.connection_args)


async def ask(comm: Comm, handler: str, **arguments: Any) -> Any:
    """Call a handler (`add_handler`) of the process at the other end; raises what it raised.

    Relies on ``distributed.core.send_recv``.
    """
    return await send_recv(comm, op=handler, **arguments)


def socket_stream(comm: Comm | None) -> IOStream | None:
    """Return the Tornado stream below a connection; None if it is not a socket.

    Relies on ``TCP.stream``, of ``tcp://`` and ``tls://``, and on Dask reading from it only when it
    is asked to, so that nothing is lost if another reader goes on.
    """
    stream = getattr(comm, "stream", None)
    return stream if isinstance(stream, IOStream) else None


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of an address like ``tcp://host:port``.

    Relies on ``distributed.comm.parse_host_port``.
    """
    host, port = parse_host_port(address)
    return host, port


async def ask_scheduler(node: Client | Worker, handler: str, **arguments: Any) -> Any:
    """Call a handler (`add_handler`) of the scheduler.

    Relies on ``scheduler``, an object whose attributes send the operation of their name.

    Raises
    ------
    AttributeError
        If the client is closed.
    OSError
        If the connection is broken.
    """
    return await getattr(node.scheduler, handler)(**arguments)


async def scheduler_identity(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of its cluster, with all workers; raises as others do.

    Relies on the handler ``identity``, its parameter ``n_workers`` (-1 for all), and in its answer
    ``workers``: by address ``name``, ``status`` and ``resources``.
    """
    found: dict[str, Any] = await ask_scheduler(client, "identity", n_workers=-1)
    return found


async def task_value(worker: Worker, key: Any) -> tuple[str | None, Any, bool]:
    """Return a task's state at the scheduler, its result, and whether that was fetched.

    The result is there in the state ``memory`` only, None otherwise. What this worker holds is
    returned as it is; what another holds is copied, and not kept. The state is None if the
    scheduler does not have the task. Relies on ``Worker.data``, on the handlers ``get_task_status``
    and ``who_has``, and on ``gather_from_workers``, which returns what it got first.
    """
    if key in worker.data:
        return "memory", worker.data[key], False
    states: dict[Any, str | None] = await ask_scheduler(worker, "get_task_status", keys=[key])
    if states[key] != "memory":
        return states[key], None, False
    where = await holders(worker, [key])
    found, *_ = await gather_from_workers(where, pool_of(worker), who=worker.address)
    if key in found:
        return "memory", found[key], True
    return "processing", None, False  # the worker that had it is gone


async def holders(node: Client | Worker, keys: list[Any]) -> dict[Any, list[str]]:
    """Return the addresses of the workers that have the results of tasks.

    Relies on the handler ``who_has``; a task that the scheduler does not have has none.
    """
    found: dict[Any, list[str]] = await ask_scheduler(node, "who_has", keys=keys)
    return found


async def scheduler_has(client: Client, keys: list[Any]) -> bool:
    """Return whether the scheduler has all of some tasks; raises as others do.

    It takes graphs one by one, beside other messages: what was submitted first may arrive last.
    Relies on the handler ``get_task_status``, which answers None for a task that it has not.
    """
    states: dict[Any, str | None] = await ask_scheduler(client, "get_task_status", keys=keys)
    return all(states.values())


def scheduler_address(client: Client) -> str:
    """Return the scheduler's address; empty if the client is closed.

    Relies on ``Client.scheduler``, which is None then.
    """
    scheduler = client.scheduler
    return "" if scheduler is None else str(scheduler.address)


def scheduler_since(client: Client) -> tuple[str, float]:
    """Return a scheduler's id and when it was started, in seconds since the epoch; cheap.

    Empty and 0 if that is not known. Relies on ``Client._scheduler_identity``, a mapping with the
    last answer of the scheduler's ``identity``; `Client.scheduler_info` would ask it.
    """
    known = getattr(client, "_scheduler_identity", {})
    return str(known.get("id", "")), float(known.get("started", 0.0))


def is_connected(client: Client) -> bool:
    """Return whether a client has a connection to its scheduler.

    Relies on ``Client.status``, a text.
    """
    return bool(client.status == "running")


def has_ended(client: Client) -> bool:
    """Return whether a client was closed; one that connects again was not.

    Relies on ``Client.status``, a text.
    """
    return client.status in ("closing", "closed")


def await_before_reconnecting(client: Client, wait: Callable[[], Awaitable[bool]]) -> None:
    """Have a client whose connection has broken wait for something before it makes another one.

    It is closed if ``wait`` returns False; what was given first counts. Dask itself tries for as
    long as the client was given to connect at first, or for ever if somebody listens there who says
    nothing. Relies on ``Client._reconnect``, which is awaited once for each connection that breaks,
    in a task that ends when the client is closed, and on ``Client._close``.
    """
    if "_reconnect" in vars(client):
        return
    reconnect = client._reconnect

    async def reconnect_later() -> None:
        await (reconnect() if await wait() else client._close())

    client._reconnect = reconnect_later


async def renew_tcp_timeouts(client: Client) -> None:
    """Give connections that were made before the limits of Dask's configuration as it is now.

    Those of a client, and of the scheduler of its cluster if that is in this process, as of batch
    systems. Relies on ``set_tcp_timeout``, which each connection gets once, and which takes its
    stream; on ``Client.scheduler_comm``, ``Scheduler.stream_comms`` and ``client_comms``, and their
    ``comm``; and on ``ConnectionPool.available`` and ``occupied``, sets of connections by address.
    """
    pool, streams = pool_of(client), [client.scheduler_comm]
    scheduler = getattr(client.cluster, "scheduler", None)
    if isinstance(scheduler, Scheduler):
        streams += [*scheduler.stream_comms.values(), *scheduler.client_comms.values()]
    comms = {getattr(stream, "comm", None) for stream in streams}
    for comm in comms.union(*pool.available.values(), *pool.occupied.values()):
        if (socket := socket_stream(comm)) is not None:
            set_tcp_timeout(socket)


def scales_itself(cluster: Any) -> bool:
    """Return whether ``cluster.adapt`` was called, so that Dask decides how many workers there are.

    Relies on ``Cluster._adaptive``.
    """
    return getattr(cluster, "_adaptive", None) is not None


# What psnb imports from modules of Dask that are not documented, by the names used here.
#
# Relies on these modules and names: Dask has moved such before.

__all__ = [
    "Comm",
    "ConnectionPool",
    "Delayed",
    "WorkerState",
    "cloudpickled",
    "compute",
    "futures_of",
    "is_dask_collection",
    "make_delayed",
    "offload",
    "parse_timedelta",
    "sizeof",
    "unpickled",
]


# The partitions of Dask's collections.


def empty_frame(collection: Any) -> Any:
    """Return a frame or series like a collection's partitions, without rows; None for others.

    Relies on ``_meta``, and on ``divisions``, which frames and series alone have.
    """
    return getattr(collection, "_meta", None) if hasattr(collection, "divisions") else None


def partitions_kept(collection: Any) -> list[Future] | None:
    """Return the results that the partitions of a persisted collection are; None for others.

    Relies on the protocol of collections, ``__dask_graph__`` and ``__dask_keys__``; on futures in
    the graph; and on ``target``, which entries have that are another name for one.
    """
    if not futures_of(collection):
        return None
    graph = dict(collection.__dask_graph__())
    found = []
    for key in flatten(collection.__dask_keys__()):
        value: Any = graph.get(key)
        while hasattr(value, "target"):
            value = graph.get(value.target)
        if not isinstance(value, Future):
            return None
        found.append(value)
    return found


def partitions_delayed(collection: Any) -> list[Delayed]:
    """Return the partitions of a collection as delayed objects; of an array in a row."""
    delayed = collection.to_delayed()
    return list(flatten(delayed.tolist() if hasattr(delayed, "tolist") else delayed))


def with_own_tasks(several: Iterable[Delayed]) -> list[Delayed]:
    """Return delayed objects that have the tasks which they need, and no others.

    Those of a collection have all of its tasks, which would be gone through for each of them.
    Relies on ``HighLevelGraph.get_all_dependencies``, and on `Delayed` taking a dict.
    """
    known: dict[int, tuple[Any, dict[Any, Any], Any]] = {}
    return [_culled(each, known) for each in several]


def _culled(delayed: Delayed, known: dict[int, tuple[Any, dict[Any, Any], Any]]) -> Delayed:
    graph = delayed.dask
    if not hasattr(graph, "get_all_dependencies"):
        return delayed
    if id(graph) not in known:  # with the graph: its id is its own as long as it lives
        known[id(graph)] = graph, dict(graph), graph.get_all_dependencies()
    _, tasks, dependencies = known[id(graph)]
    waiting: list[Any] = [delayed.key]
    found: dict[Any, Any] = {}
    while waiting:
        key = waiting.pop()
        if key not in found:
            found[key] = tasks[key]
            waiting += dependencies[key]
    return Delayed(delayed.key, found)


def tasks_of(delayed: Delayed) -> set[Any]:
    """Return the keys of the tasks that a delayed object has."""
    return set(delayed.dask)


# What psnb adds to Dask's schedulers and workers while they run, and reads of them.
#
# All of it is called on the event loop of the scheduler or worker.


def add_handler(node: Scheduler | Worker, name: str, function: Callable[..., Any]) -> None:
    """Have a scheduler or worker call a function for messages with the operation ``name``.

    Relies on ``Server.handlers``, a dict that is looked up for each message. If the function's
    first parameter is named ``comm``, it gets the connection; the rest comes from the message.
    """
    node.handlers[name] = function


def remove_handler(node: Scheduler | Worker, name: str) -> None:
    """Undo `add_handler`; idempotent."""
    node.handlers.pop(name, None)


def replace_operation(
    scheduler: Scheduler, name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Put a function in the place of an operation of the scheduler; return the one before.

    Relies on the operation being both a method, which the scheduler calls itself, and a handler of
    the same name, which clients and clusters call.
    """
    before: Callable[..., Any] = getattr(scheduler, name)
    setattr(scheduler, name, function)
    add_handler(scheduler, name, function)
    return before


def hold_tasks(scheduler: Scheduler, holder: str, keys: Iterable[str]) -> None:
    """Keep tasks for a holder that is not a client, as for Dask's own ``Variable``; idempotent.

    Those that the scheduler does not have are left out. Relies on
    ``Scheduler.client_desires_keys``, which makes such a client up, and on ``Scheduler.tasks``.
    """
    there = [key for key in keys if key in scheduler.tasks]
    scheduler.client_desires_keys(keys=there, client=holder)


def release_tasks(scheduler: Scheduler, holder: str, keys: Iterable[str]) -> None:
    """Undo `hold_tasks`; idempotent. The scheduler forgets what nothing else wants.

    Relies on ``Scheduler.client_releases_keys``, and on ``Scheduler.clients`` by name.
    """
    if holder in scheduler.clients:
        scheduler.client_releases_keys(keys=list(keys), client=holder)


def actors_at(scheduler: Scheduler, address: str) -> set[str]:
    """Return the keys of the actors in a worker's process, as the scheduler knows them.

    Relies on ``WorkerState.actors``.
    """
    worker = scheduler.workers.get(address)
    return set() if worker is None else {task.key for task in worker.actors}


def actor_of(worker: Worker, key: str) -> Any:
    """Return the actor with this key that a worker holds; None if there is none.

    Relies on ``Worker.state``, and its ``actors`` by key.
    """
    return worker.state.actors.get(key)


def plugin_named(scheduler: Scheduler, name: str) -> Any:
    """Return the plugin of a scheduler with this name; None if there is none.

    Relies on ``Scheduler.plugins``, plugins by name.
    """
    return scheduler.plugins.get(name)


def add_route(
    scheduler: Scheduler, pattern: str, handler: type[RequestHandler], arguments: dict[str, Any]
) -> None:
    """Add a route to a scheduler's HTTP server.

    Relies on ``Scheduler.http_application``, a Tornado application that exists when plugins start.
    """
    scheduler.http_application.add_handlers(".*$", [(pattern, handler, arguments)])


def serves_dashboard(dask_scheduler: Scheduler) -> bool:
    """Return whether a scheduler serves Dask's dashboard: it may be off, or lack bokeh.

    Its HTTP server runs in any case, and ``Client.dashboard_link`` leads there. Relies on the
    application of bokeh being among the ``applications`` of ``Scheduler.http_application``; its
    parameter's name is the one under which ``Client.run_on_scheduler`` passes the scheduler.
    """
    return any(
        kind.__module__.startswith("bokeh.")
        for application in dask_scheduler.http_application.applications
        for kind in type(application).__mro__
    )


def call_every(
    scheduler: Scheduler, name: str, seconds: float, function: Callable[[], None]
) -> None:
    """Call a function again and again until the scheduler ends.

    Relies on ``Server.periodic_callbacks``, which Dask stops with the scheduler.
    """
    callback = PeriodicCallback(function, 1000 * seconds)
    scheduler.periodic_callbacks[name] = callback
    callback.start()


def keep_awake(scheduler: Scheduler) -> None:
    """Have a scheduler with an idle timeout count from now, as if it had worked until now.

    Relies on ``Scheduler.idle_since``: None while there is work.
    """
    scheduler.idle_since = None


def memory_limit(worker: Worker) -> int | None:
    """Return the bytes of memory that Dask grants a worker; None if there is no limit.

    Relies on ``Worker.memory_manager``.
    """
    limit: int | None = worker.memory_manager.memory_limit
    return limit


def threads_of(worker: Worker) -> int:
    """Return how many tasks a worker runs at the same time.

    Relies on ``Worker.state``, a ``WorkerState`` of the worker's own side.
    """
    return int(worker.state.nthreads)


def be_worker(worker: Worker) -> None:
    """Let this thread be one of a worker's for ``distributed.get_worker`` and ``get_client``.

    Not on the event loop. Relies on ``distributed.worker._worker_cvar``, which Dask sets in the
    threads of its tasks.
    """
    _worker_cvar.set(worker)


# Starting the processes of nannies without the script that the user runs.
#
# A process that multiprocessing spawns begins by importing the script of its parent. What a script
# does outside of ``if __name__ == "__main__":`` it would do again in each worker: first of all,
# start a cluster. Workers need nothing of it, as what a script defines is pickled by value.

_PROCESS = "Dask Worker process (from Nanny)"
_SCRIPT = ("init_main_from_name", "init_main_from_path")

_lock = threading.Lock()  # guards the two below: each cluster may have an event loop of its own
_starting = 0
_with_script = spawn.get_preparation_data


@contextlib.contextmanager
def script_hidden() -> Iterator[None]:
    """Have nannies start processes that do not import this one's script, until the block ends.

    All other processes are started as usual, and the script itself sees nothing of it. Relies
    on ``multiprocessing.spawn.get_preparation_data``, which tells a process what it needs to know
    of its parent, also one that a fork server starts; and on the name of nannies' processes.
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


# What Dask logs of the processes of a local cluster, in words that say what it means for them.
#
# Dask's line is left out where it is known; if a release words it otherwise, it appears as it is.

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
    """Have a worker say that its scheduler does not answer only if it goes on after that.

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


# Dask's classes for processes of a local cluster, changed where no setting changes them.

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
        self.http_server.stop()  # it cannot have got a request yet: this is the loop's thread


class PrivateScheduler(_WithoutHTTP, Scheduler):
    """A scheduler that can be reached with certificates only."""


class PrivateWorker(_WithoutHTTP, Worker):
    """A worker that can be reached with certificates only."""


class SlowStartNanny(Nanny):
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
            # example, first informs its nanny, and would wait for it in vain.
            self.close_gracefully(reason)
            await self.kill(_NANNY_TIMEOUT, reason)
        return await super().close(timeout, reason)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


class SteadyCluster(SpecCluster):
    """A cluster that leaves it to nannies to start lost workers again.

    Those that are added get the names ``worker-0`` and so on.

    Relies on ``_update_worker_status``, called for each worker that comes or goes,
    ``_new_worker_name``, which is meant to be changed, ``status``, and ``workers``, the nannies or
    workers by name; and on the logger ``distributed.batched``.
    """

    def close(self, timeout: float | None = None) -> Any:
        """Close the cluster, and log nothing of its own streams that end.

        The scheduler informs the cluster a moment later that a worker has gone. Within a process it
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


# What psnb needs of Dask beyond its documented interface: all of it is here, and nowhere else.
#
# Dask may change any of this in any release. Each function says what it relies on; if a release
# breaks it, only this room changes. It imports nothing of psnb. `TESTED` names the oldest and the
# newest release with which the tests pass (``make test-oldest`` and ``make test``).

TESTED = ("2026.3.0", "2026.8.0")
"""The oldest and the newest release of Dask with which the tests pass."""
