"""WorkerLink: a coordinator's session on one worker, opened, and messages over it. On the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import asdict

from psnb._src.dask_compat.reach import Comm
from psnb._src.protocol import messages
from psnb._src.transport.stream import MessageStream, message_stream
from psnb._src.utils.version import check_version, own_version

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

    def send(self, message: messages.ToWorker) -> None:
        """Send a message; returns at once and never raises for a broken connection."""
        self._stream.send(message)

    async def receive(self) -> messages.ToNotebook:
        """Return the next message; raises OSError when the connection breaks."""
        return await self._stream.receive(messages.ToNotebook)

    def abort(self) -> None:
        """Close the connection at once; idempotent."""
        self._stream.abort()


async def open_session(
    connect: Callable[[str], Awaitable[Comm]],
    address: str,
    opening: messages.SessionOpening,
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
            await comm.write({"op": messages.HANDLER, "psnb": own_version(), **asdict(opening)})
            reply = await comm.read()
            check_version(reply)
            if not isinstance(reply, dict) or reply.get("status") != "OK":
                # A worker that joined a moment ago has not got the plugin yet, and says None.
                why = reply.get("exception_text") if isinstance(reply, dict) else reply
                raise ConnectionError(f"the worker is not prepared for psnb: {why}")
        except BaseException:  # a cancellation, too: nothing else closes it
            comm.abort()
            raise
    return WorkerLink(message_stream(comm), reply["threads"])
