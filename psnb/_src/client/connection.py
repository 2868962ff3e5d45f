"""ServerConnection: one stream to a server's process, shared by all requests of this process.

Requests are numbered and answers come in any order, so many may be under way, from any number of
threads. Any thread may send; the rest runs on the event loop of the client or worker. Each
operation on the dict of pending requests is atomic.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from psnb._src.dask_compat.reach import ConnectionPool, give_back_connection
from psnb._src.server.memory import refusal
from psnb._src.server.messages import Failed, ServerReply, ServerRequest, number_in
from psnb._src.server.replication import ForwardedRequest
from psnb._src.server.serving import HANDLER
from psnb._src.transport.connecting import connect
from psnb._src.transport.shared_memory import can_see, probe
from psnb._src.transport.stream import MessageStream, UnreceivedError, message_stream
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
        self.shared = shared
        self._stream, self._on_broken, self._release = stream, on_broken, release
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
            self._stream.send(ServerRequest(number, *exchange.message()), later=later)
        except BaseException:  # nothing was sent, so there will be no answer
            self._pending.pop(number, None)
            raise
        # After the request was noted: either this sees the error, or `_read` finds the request.
        if self._error is not None and self._pending.pop(number, None) is not None:
            with contextlib.suppress(RuntimeError):  # closed: the callers have their error
                self._loop.call_soon_threadsafe(self._on_broken, [exchange], self._error)

    def flush(self) -> None:
        """Send what is held back; any thread."""
        self._stream.flush()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """Return an array that can be sent without a copy; see `MessageStream.allocate`."""
        return self._stream.allocate(shape, dtype)

    def close(self) -> None:
        """Close it; requests under way count as broken."""
        self._stream.abort()

    def _deliver(self, reply: ServerReply) -> None:
        # A frame of its own: while the next answer is awaited, no variable may keep the arrays of
        # the last one, which may be in the server's memory.
        self.heard += 1
        self._pending.pop(reply.number).answered(reply.answers)

    async def _read(self) -> None:
        try:
            while True:
                try:
                    self._deliver(await self._stream.receive(ServerReply))
                except UnreceivedError as error:
                    refused = refusal(error, "the answer of a parameter server", "this process")
                    self._deliver(ServerReply(number_in(error.head), [Failed(refused)]))
        except OSError as error:
            self._error = error
            self._stream.abort()
            self._release()
            pending = [self._pending.pop(number, None) for number in list(self._pending)]
            self._on_broken([exchange for exchange in pending if exchange is not None], error)


async def open_connection(
    pool: ConnectionPool,
    address: str,
    on_broken: Callable[[list[ForwardedRequest], OSError], None],
    timeout: float = CONNECT_TIMEOUT,
) -> ServerConnection:
    """Connect to the parameter servers at an address.

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
    except BaseException:  # a cancellation, too: nothing else closes it
        comm.abort()
        release()
        raise
    return ServerConnection(stream, on_broken, release, shared=sees)
