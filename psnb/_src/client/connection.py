"""Connections to a server's process: for requests, for control and heartbeats; and its liveness.

A `ServerConnection` is shared by all requests of this process. They are numbered and answers come
in any order, so there may be many under way, of several threads. Any thread may send, and one that
waits may take the answers; the rest runs on the event loop of the client or worker, as all else
here does. Each operation on the dict of pending requests is atomic.

A heartbeat that waits behind data proves nothing. So a client that must know whether a server lives
uses a separate `ControlConnection` for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from psnb._src.client.requests import RequestBatch
from psnb._src.dask_compat.reach import ConnectionPool, give_back_connection
from psnb._src.placement.layout import ServerAddress
from psnb._src.server.memory import refusal
from psnb._src.server.messages import (
    Done,
    Failed,
    ServerAnswer,
    ServerReply,
    ServerRequest,
    number_in,
)
from psnb._src.server.operations import HostOperation
from psnb._src.server.replication import ForwardedRequest
from psnb._src.server.serving import HANDLER
from psnb._src.transport.connecting import connect
from psnb._src.transport.shared_memory import can_see, probe
from psnb._src.transport.stream import MessageStream, UnreceivedError, message_stream
from psnb._src.utils.threads import start_task
from psnb._src.utils.version import check_version, own_version

CONNECT_TIMEOUT = 5.0
"""Seconds to reach a server that is not connected yet."""


class ServerConnection:
    """Carries requests to one address and brings the answers; made by `open_connection`.

    Parameters
    ----------
    stream : MessageStream
        Open.
    on_broken : callable
        Called when the connection breaks, with the requests that have no answer and the error:
        `UnreadableError` if one side sent something that the other cannot unpickle.
    release : callable
        Called once when it is closed.
    shared : bool
        Whether large arrays go through shared memory.

    Attributes
    ----------
    stream : MessageStream
        As given.
    heard : int
        How many messages have come, including answers to those without operations.
    shared : bool
        Whether large arrays go through shared memory.
    """

    def __init__(
        self,
        stream: MessageStream,
        on_broken: Callable[[list[ForwardedRequest], OSError], None],
        release: Callable[[], None],
        *,
        shared: bool,
    ) -> None:
        self.stream, self.shared = stream, shared
        self._on_broken, self._release = on_broken, release
        self.heard = 0
        self._error: OSError | None = None
        self._pending: dict[int, ForwardedRequest] = {}
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._reader = asyncio.create_task(self._read(), name="psnb server connection")

    def send(self, exchange: ForwardedRequest, *, later: bool = False) -> None:
        """Send a request, or hold it back for the next; any thread. Its answer comes later.

        Raises
        ------
        MemoryError
            If there is no memory for it here; nothing was sent.
        """
        number = next(self._numbers)
        self._pending[number] = exchange
        try:
            self.stream.send(ServerRequest(number, *exchange.message()), later=later)
        except BaseException:  # nothing was sent, so there will be no answer
            self._pending.pop(number, None)
            raise
        # After the request was noted: either this sees the error, or `_read` finds the request.
        if self._error is not None and self._pending.pop(number, None) is not None:
            with contextlib.suppress(RuntimeError):  # closed: the callers have their error
                self._loop.call_soon_threadsafe(self._on_broken, [exchange], self._error)

    def close(self) -> None:
        """Close it; requests under way count as broken."""
        self.stream.abort()

    def _deliver(self, reply: ServerReply) -> None:
        self.heard += 1
        self._pending.pop(reply.number).answered(reply.answers)

    async def _read(self) -> None:
        try:
            while True:
                try:
                    await self.stream.run(ServerReply, self._deliver)
                except UnreceivedError as error:
                    refused = refusal(error, "the answer of a parameter server", "this process")
                    self._deliver(ServerReply(number_in(error.head), [Failed(refused)]))
        except OSError as error:
            self._error = error
            self.stream.abort()
            self._release()
            pending = [self._pending.pop(number, None) for number in list(self._pending)]
            self._on_broken([exchange for exchange in pending if exchange is not None], error)


async def open_connection(
    pool: ConnectionPool,
    address: str,
    on_broken: Callable[[list[ForwardedRequest], OSError], None],
    timeout: float = CONNECT_TIMEOUT,
    *,
    by_threads: bool = False,
) -> ServerConnection:
    """Connect to the parameter servers at an address.

    Answers come in any thread with ``by_threads``, else on the event loop.

    Raises
    ------
    OSError
        If that takes longer than ``timeout`` seconds, no process listens there, or it has another
        version of psnb.
    """
    # The pool owns the connection: when it closes, the connection closes too.
    comm = await connect(pool, address, timeout)
    release = partial(give_back_connection, pool, address, comm)
    try:
        async with asyncio.timeout(timeout):
            await comm.write({"op": HANDLER, "psnb": own_version(), "probe": probe()})
            reply = await comm.read()
            check_version(reply)
            if not isinstance(reply, dict) or reply.get("status") != "OK":
                raise ConnectionRefusedError(f"it serves no parameters any more: {reply!r}")
            stream = message_stream(comm)
            theirs = reply["probe"]
            sees = can_see(theirs)
            stream.send(sees)
            if sees:
                stream.share(theirs[0], seen=reply["sees"])
            if by_threads and stream.by_turns is not None:
                stream.by_turns.let_threads_read()
    except BaseException:  # a cancellation, too: nothing else closes it
        comm.abort()
        release()
        raise
    return ServerConnection(stream, on_broken, release, shared=sees)


class _Question:
    """A request, and the future of its answer."""

    def __init__(self, key: str, operations: Sequence[HostOperation]) -> None:
        self._key, self._operations = key, operations
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def message(self) -> tuple[str, Sequence[HostOperation]]:
        return self._key, self._operations

    def answered(self, answers: Sequence[ServerAnswer] | None) -> None:
        if self.answer.done():
            return
        match answers:
            case None:
                reason = "its process was started again, or it was dropped"
                self.answer.set_exception(ConnectionRefusedError(reason))
            case [Failed(error)]:
                self.answer.set_exception(error)
            case [Done(result)]:
                self.answer.set_result(result)
            case _:  # a heartbeat
                self.answer.set_result(None)


class ControlConnection:
    """A connection to a server, opened when it is needed, and again after it broke.

    Parameters
    ----------
    pool : distributed.core.ConnectionPool
        When it closes, the connection closes too.
    server : ServerAddress
        The server.

    Attributes
    ----------
    on_broken : callable
        Called when the connection breaks.
    """

    def __init__(self, pool: ConnectionPool, server: ServerAddress) -> None:
        self._pool, self._server = pool, server
        self.on_broken: Callable[[], object] = bool
        self._connection: ServerConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._heard = 0  # on connections that are closed

    @property
    def heard(self) -> int:
        """How many messages the server has sent."""
        return self._heard + (self._connection.heard if self._connection else 0)

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    async def ask(self, *operations: HostOperation) -> Any:
        """Run an operation of the server itself and return its result; without a time limit.

        Without an operation, return when the server has sent a heartbeat. The caller watches
        `heard`, and stops waiting when it does not change for too long.

        Raises
        ------
        ConnectionRefusedError
            If the server's process has ended, or the server was dropped.
        OSError
            If it cannot be reached, or the connection broke.
        PsnbError
            What the operation raised.
        """
        while self._connection is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(), name="psnb control connection")
            await asyncio.shield(self._opening)
        question = _Question(self._server.key, operations)
        self._connection.send(question)
        return await question.answer

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _open(self) -> None:
        try:
            address = self._server.address
            self._connection = await open_connection(self._pool, address, self._broken)
        finally:
            self._opening = None

    def _broken(self, questions: list[Any], error: OSError) -> None:
        if self._connection is not None:
            self._heard, self._connection = self.heard, None
        for question in questions:
            if not question.answer.done():
                question.answer.set_exception(error)
        self.on_broken()


_TICKS = 20
"""Ticks for each `heartbeat_timeout`. They are counted instead of comparing clocks: if this process
itself was frozen, the servers' messages are still waiting to be read."""


class ServerLiveness:
    """Counts for how long servers have not responded, and says when that is too long.

    The client then decides about the requests, by where their shards are.

    Parameters
    ----------
    pool : distributed.core.ConnectionPool
        Its connections ask for heartbeats.
    heard : callable
        Returns how many messages of a server have come over other connections. They count too: a
        busy server opens no new connection.
    overdue : callable
        Called again and again with each batch whose server is unresponsive.
    waited : float
        Seconds without an answer after which a server is watched; they count towards the timeout.

    Attributes
    ----------
    silences : dict of ServerAddress to float
        For how many seconds each server that is followed has not responded.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        heard: Callable[[ServerAddress], int],
        overdue: Callable[[RequestBatch], Awaitable[None]],
        waited: float,
    ) -> None:
        self._pool, self._heard, self._overdue, self._waited = pool, heard, overdue, waited
        self._waiting: dict[ServerAddress, set[RequestBatch]] = {}
        self.silences: dict[ServerAddress, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, server: ServerAddress, batch: RequestBatch, heartbeat_timeout: float) -> None:
        """Follow a server, which may be unresponsive for so long, while a batch waits for it."""
        if server in self._waiting:
            self._waiting[server].add(batch)
            return
        self._waiting[server] = {batch}
        start_task(self._follow(server, heartbeat_timeout), self._tasks, "psnb server life")

    def close(self) -> None:
        """Follow none any more; idempotent."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, server: ServerAddress, heartbeat_timeout: float) -> None:
        control, batches = ControlConnection(self._pool, server), self._waiting[server]
        silence, heard, tick = self._waited, (0, self._heard(server)), heartbeat_timeout / _TICKS
        asking: asyncio.Task[None] | None = None
        try:
            while batches := {each for each in batches if server in each.waiting().values()}:
                self._waiting[server] = batches
                if asking is None or asking.done():
                    asking = asyncio.create_task(_sign(control), name="psnb heartbeat")
                await asyncio.sleep(tick)
                known, heard = heard, (control.heard, self._heard(server))
                silence = silence + tick if heard == known else 0.0
                self.silences[server] = silence
                if silence >= heartbeat_timeout:
                    await asyncio.gather(*map(self._overdue, self._waiting[server]))
        finally:
            del self._waiting[server]
            self.silences.pop(server, None)
            control.close()
            if asking is not None:
                asking.cancel()


async def _sign(control: ControlConnection) -> None:
    # `ControlConnection.heard` shows whether one came; the reason why not does not matter.
    with contextlib.suppress(OSError):
        await control.ask()
