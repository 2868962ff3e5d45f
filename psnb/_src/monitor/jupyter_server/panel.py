"""Panel: one connected page, which updates it has, and which come next.

It has no queue of updates. It knows its position in each coordinator's backlog, and reads on from
there as fast as the connection allows: a slow panel lags, but takes no memory. Everything runs on
the server's event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from psnb._src.monitor import protocol
from psnb._src.monitor.jupyter_server.coordinators import CoordinatorRegistry

MOST_REPLIES = 200
"""Limit of replies that wait for a panel."""


class Panel:
    """The hub's side of one connection.

    Parameters
    ----------
    sources : CoordinatorRegistry
        The coordinators.
    listing : callable
        Returns the message that lists them and the schedulers.
    write : callable
        Sends a text, or its bytes; returns when the connection has accepted it. Raises
        `ConnectionError` when it is closed.
    close : callable
        Closes the connection, with a reason.
    write_timeout : float
        Seconds within which a panel must accept a message.
    """

    def __init__(
        self,
        sources: CoordinatorRegistry,
        listing: Callable[[], protocol.Sources],
        write: Callable[[str | bytes], Awaitable[None]],
        close: Callable[[str], None],
        write_timeout: float = 30.0,
    ) -> None:
        self._sources = sources
        self._listing = listing
        self._write = write
        self._close = close
        self._write_timeout = write_timeout
        self._sent: dict[str, int] = {}  # sequence number by coordinator
        self._replies: deque[protocol.CommandReply] = deque()
        self._list = True
        self._writing: asyncio.Task[None] | None = None  # kept, or it might be garbage-collected

    def hello(self) -> None:
        """Send everything again."""
        self._sent.clear()
        self.wake(listing=True)

    def reply_to(self, reply: protocol.CommandReply) -> None:
        """Send a reply."""
        if len(self._replies) >= MOST_REPLIES:
            self._close("the page does not take its replies; connect again")
            return
        self._replies.append(reply)
        self.wake()

    def wake(self, listing: bool = False) -> None:
        """Send what there is to send, and the list of coordinators if that has changed."""
        self._list = self._list or listing
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            async for text in self._next():
                async with asyncio.timeout(self._write_timeout):
                    await self._write(text)
        except TimeoutError:
            self._close(f"the page has not read for {self._write_timeout:g} s; connect again")
        except ConnectionError:
            pass  # the owner of the connection notices it too

    async def _next(self) -> AsyncIterator[str | bytes]:
        more = True
        while more:
            more = False
            while self._replies or self._list:
                if self._replies:
                    yield json.dumps(self._replies.popleft())
                else:
                    self._list = False
                    listing = self._listing()
                    live = {each["coordinator"] for each in listing["sources"]}
                    self._sent = {each: sent for each, sent in self._sent.items() if each in live}
                    yield json.dumps(listing)
            for known in list(self._sources.values()):
                for sequence, text in known.backlog.since(self._sent.get(known.coordinator)):
                    self._sent[known.coordinator] = sequence
                    yield text
                    more = True  # meanwhile more may have come


class Panels(set[Panel]):
    """All that are connected."""

    def wake(self, listing: bool = False) -> None:
        """Wake each; as `Panel.wake`."""
        for panel in self:
            panel.wake(listing)
