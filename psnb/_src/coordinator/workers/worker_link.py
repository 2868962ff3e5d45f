"""WorkerLink: a coordinator's session on one worker, opened, and messages over it.

Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import asdict

from psnb._src.dask_internals import Comm
from psnb._src.runtime import session_messages
from psnb._src.transport import MessageStream, message_stream, unwired
from psnb._src.version import check_version, own_version

OPEN_TIMEOUT = 10.0
"""Seconds in which a worker must be connected, and answer the opening of a session."""


class WorkerLink:
    """Carries messages to a session and back.

    Attributes
    ----------
    threads : int
        Closures that the worker runs at the same time.
    """

    def __init__(self, stream: MessageStream, threads: int) -> None:
        self._stream, self.threads = stream, threads

    def send(self, message: session_messages.ToWorker) -> None:
        """Send a message; returns at once and never raises for a broken connection."""
        self._stream.send(message.wire())

    async def receive(self) -> session_messages.ToNotebook:
        """Return the next message; raises OSError when the connection breaks."""
        return unwired(await self._stream.receive(), session_messages.ToNotebook)

    def abort(self) -> None:
        """Close the connection at once; idempotent."""
        self._stream.abort()


async def open_session(
    connect: Callable[[str], Awaitable[Comm]],
    address: str,
    opening: session_messages.SessionOpening,
) -> WorkerLink:
    """Connect a worker, and open a session on it.

    Parameters
    ----------
    connect : callable
        Opens a connection to an address.
    address : str
        The worker's.
    opening : SessionOpening
        What the session must know.

    Raises
    ------
    OtherVersionError
        If the worker has another version of psnb.
    OSError
        If the worker cannot be reached, refuses, or does not answer in time.
    """
    async with asyncio.timeout(OPEN_TIMEOUT):
        comm = await connect(address)
        try:
            await comm.write(
                {"op": session_messages.HANDLER, "psnb": own_version(), **asdict(opening)}
            )
            reply = await comm.read()
            check_version(reply)
            if not isinstance(reply, dict) or reply.get("status") != "OK":
                # A worker that joined a moment ago has not got the plugin yet.
                raise ConnectionError(f"the worker is not prepared for psnb: {reply!r}")
        except BaseException:
            comm.abort()
            raise
    return WorkerLink(message_stream(comm), reply["threads"])
