"""How psnb reaches Dask's processes: event loops, connections and the scheduler.

A *node* is a client or a worker: both have an event loop, a pool of connections and a connection to
the scheduler. Coroutines run on that event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from distributed import Client, Security, Worker
from distributed.comm import Comm, connect, parse_host_port
from distributed.core import ConnectionPool, Status, send_recv
from tornado.iostream import IOStream

CONNECTION_KEPT = Status.dont_reply
"""What a handler returns that has answered by itself, and keeps the connection or has closed it."""


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


async def connect_apart(client: Client, address: str) -> Comm:
    """Return a new connection that does not belong to the client's pool.

    Relies on ``distributed.comm.connect``, and ``Client.connection_args`` for its certificates.
    """
    return await connect(address, **client.connection_args)


async def ask(comm: Comm, handler: str, **arguments: Any) -> Any:
    """Call a handler (`add_handler`) of the process at the other end; raises what it raised.

    Relies on ``distributed.core.send_recv``.
    """
    return await send_recv(comm, op=handler, **arguments)


def socket_stream(comm: Comm) -> IOStream | None:
    """Return the Tornado stream below a connection; None if it is no socket.

    Relies on ``TCP.stream``, of ``tcp://`` and ``tls://``, and on Dask reading from it only when it
    is asked to, so that nothing is lost if someone else goes on reading.
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


def scales_itself(cluster: Any) -> bool:
    """Return whether ``cluster.adapt`` was called, so that Dask decides how many workers there are.

    Relies on ``Cluster._adaptive``.
    """
    return getattr(cluster, "_adaptive", None) is not None
