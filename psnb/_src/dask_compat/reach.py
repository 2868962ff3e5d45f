"""How psnb reaches Dask's processes: event loops, connections and the scheduler.

A *node* is a client or a worker: both have an event loop, a pool of connections and a connection to
the scheduler. Coroutines run on that event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from dask.utils import parse_timedelta
from distributed import Client, Scheduler, Security, Worker
from distributed.comm import Comm, connect, parse_host_port
from distributed.comm.tcp import set_tcp_timeout
from distributed.core import ConnectionPool, Status, send_recv
from distributed.protocol.pickle import dumps as cloudpickled
from distributed.protocol.pickle import loads as unpickled
from distributed.utils import offload
from tornado.iostream import IOStream

__all__ = ["Comm", "ConnectionPool", "cloudpickled", "offload", "parse_timedelta", "unpickled"]
# With the definitions below: psnb's imports from undocumented modules of Dask.

_CLIENT_CLOSED = "the Dask client is closed, the way to the scheduler"

CONNECTION_KEPT = Status.dont_reply
"""What a handler returns that has sent its own answer, and keeps or has closed the connection."""


def event_loop(node: Client | Worker) -> asyncio.AbstractEventLoop:
    """Return the event loop of a client or worker.

    Relies on ``loop``, a Tornado loop that is a shell around one of asyncio's.
    """
    return node.loop.asyncio_loop


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
    return pool.connection_args.get("ssl_context")


def tls_context_of(security: Security) -> ssl.SSLContext | None:
    """Return the certificates with which clients connect; None if there are none.

    Anything that it does not name is as in Dask's configuration. Relies on
    ``Security.get_connection_args``.
    """
    return security.get_connection_args("client")["ssl_context"]


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
    is asked to, so that nothing is lost if another reader continues.
    """
    stream = getattr(comm, "stream", None)
    return stream if isinstance(stream, IOStream) else None


def take_over(stream: IOStream) -> tuple[int, bytes]:
    """Take the socket out of a Tornado stream; return its file, and what the stream has read.

    One that reads as an error, if the stream is closed. The stream closes the socket that is
    assigned to its ``socket`` then. Relies on ``IOStream.socket`` and ``io_loop``, and on
    ``_read_buffer_size``, as an idle stream reads ahead.

    Raises
    ------
    ConnectionError
        If it has not sent all yet.
    """
    if read := bytearray(stream._read_buffer_size):
        stream.read_into(read)  # at once, as it is here
    if stream.closed():
        return socket.socket().detach(), bytes(read)
    if stream.writing():
        raise ConnectionError("the other side does not read")
    stream.io_loop.remove_handler(stream.socket)
    return stream.socket.detach(), bytes(read)


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of an address like ``tcp://host:port``.

    Relies on ``distributed.comm.parse_host_port``.
    """
    host, port = parse_host_port(address)
    return host, port


async def ask_scheduler(node: Client | Worker, handler: str, **arguments: Any) -> Any:
    """Call a handler (`add_handler`) of the scheduler.

    Relies on ``scheduler``, an object whose attributes send the operation of their name; None when
    the client is closed.

    Raises
    ------
    OSError
        If the connection is broken, or the client is closed.
    """
    if node.scheduler is None:
        raise ConnectionError(_CLIENT_CLOSED)
    try:
        return await getattr(node.scheduler, handler)(**arguments)
    except RuntimeError as error:
        if is_open(pool_of(node)):
            raise
        raise ConnectionError(_CLIENT_CLOSED) from error  # in this very moment


async def scheduler_identity(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of its cluster, with all workers; raises as others do.

    Relies on the handler ``identity``, its parameter ``n_workers`` (-1 for all), and in its answer
    ``workers``: by address ``name``, ``status`` and ``resources``.
    """
    return await ask_scheduler(client, "identity", n_workers=-1)


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

    It is closed if ``wait`` returns False; the first call counts. Dask itself tries for the
    client's timeout of connecting, or for ever if the listener there never answers. Relies on
    ``Client._reconnect``, which is awaited once for each connection that breaks, in a task that
    ends when the client is closed, and on ``Client._close``.
    """
    if "_reconnect" in vars(client):
        return
    reconnect = client._reconnect

    async def reconnect_later() -> None:
        await (reconnect() if await wait() else client._close())

    client._reconnect = reconnect_later


async def renew_tcp_timeouts(client: Client) -> None:
    """Give connections that were made before the limits of Dask's configuration as it is now.

    The connections of a client, and of its cluster's scheduler if that is in this process, as with
    batch systems. Relies on ``set_tcp_timeout``, which each connection gets once, and which takes
    its stream; on ``Client.scheduler_comm``, ``Scheduler.stream_comms`` and ``client_comms``, and
    their ``comm``; and on ``ConnectionPool.available`` and ``occupied``, sets of connections by
    address.
    """
    pool, streams = pool_of(client), [client.scheduler_comm]
    scheduler = getattr(client.cluster, "scheduler", None)
    if isinstance(scheduler, Scheduler):
        streams += [*scheduler.stream_comms.values(), *scheduler.client_comms.values()]
    comms = {getattr(stream, "comm", None) for stream in streams}
    for comm in comms.union(*pool.available.values(), *pool.occupied.values()):
        if (stream := socket_stream(comm)) is not None:
            set_tcp_timeout(stream)


def scales_itself(cluster: Any) -> bool:
    """Return whether ``cluster.adapt`` was called, so that Dask decides how many workers there are.

    Relies on ``Cluster._adaptive``.
    """
    return getattr(cluster, "_adaptive", None) is not None
