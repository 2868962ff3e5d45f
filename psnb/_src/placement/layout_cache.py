"""LayoutCache: the layouts that a process knows.

It asks the scheduler when it has to; otherwise it answers from memory. Any thread may read; the
event loop of the client or worker writes and asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from psnb._src.placement.layout import Layout, unpacked
from psnb.errors import ServerLostError

ASK_TIMEOUT = 5.0
"""Seconds in which the scheduler must answer."""


class LayoutCache:
    """Layouts by strategy.

    Parameters
    ----------
    ask : callable
        Asks the scheduler for the (packed) layout of a strategy.

    Attributes
    ----------
    known : callable
        Returns the newest layout of a strategy that is known here, or None; any thread.
    """

    def __init__(self, ask: Callable[[str], Awaitable[Any]]) -> None:
        self._ask = ask
        self._layouts: dict[str, Layout] = {}  # each operation on it is atomic
        self.known = self._layouts.get
        self._asking: dict[str, asyncio.Task[Layout]] = {}
        self._sent: set[str] = set()  # of which the question is on its way

    def all(self) -> list[Layout]:
        """Return the newest layouts that are known here, of all strategies; any thread."""
        return list(self._layouts.values())

    def learn(self, layout: Layout) -> None:
        """Remember a layout, unless a newer one is known; one thread at a time."""
        known = self._layouts.get(layout.strategy)
        if known is None or known.version < layout.version:
            self._layouts[layout.strategy] = layout

    async def refresh(self, strategy: str) -> Layout:
        """Ask the scheduler for a strategy's layout; callers at the same time share a request.

        The answer is not older than the call: the cause of the question, for example a server that
        is gone, was published before. So a request that was sent earlier is never shared.

        Raises
        ------
        ServerLostError
            If the strategy is closed, or was taken over.
        OSError
            If the scheduler does not answer.
        """
        while strategy in self._sent:
            await asyncio.wait([self._asking[strategy]])
        asking = self._asking.get(strategy)
        if asking is None:
            asking = asyncio.create_task(self._refresh(strategy), name="psnb layout")
            self._asking[strategy] = asking
            asking.add_done_callback(partial(self._asked, strategy))
        return await asyncio.shield(asking)

    def _asked(self, strategy: str, asking: asyncio.Task[Layout]) -> None:
        del self._asking[strategy]
        self._sent.discard(strategy)
        if not asking.cancelled():
            asking.exception()  # retrieved, as its waiters may be gone

    async def _refresh(self, strategy: str) -> Layout:
        self._sent.add(strategy)
        async with asyncio.timeout(ASK_TIMEOUT):
            packed = await self._ask(strategy)
        if packed is None or isinstance(packed, str):
            self._layouts.pop(strategy, None)
            closed = "the parameter servers are gone: their strategy was closed"
            raise ServerLostError(packed or closed)
        self.learn(unpacked(packed))
        return self._layouts[strategy]
