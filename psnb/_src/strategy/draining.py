"""ServerDraining: servers whose processes were asked to end, until they hold nothing any more.

Such a server says so in its answers (`ServerStatus.leaves`), and its process waits for a while.
The reconciler moves its shards to others as in any other move. Once other servers have all that
it holds, it is asked to stop, and its process ends. If no other server can take its shards, all
is saved, and it ends before any closure continues: no write is lost with it.

On the client's event loop; saving runs in a thread, ``psnb-last-save``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Set
from functools import partial

from psnb._src.monitor.events import EventKind
from psnb._src.placement.layout import Layout, ServerAddress
from psnb._src.strategy.servers import Servers
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import counted
from psnb._src.utils.threads import run_on_loop
from psnb.errors import CheckpointError

LastSave = Callable[[Callable[[], None]], AnyPath]
"""Saves all parameters and then calls a function, both before any closure continues."""

_END_TIMEOUT = 5.0


def no_last_save(then: Callable[[], None]) -> AnyPath:
    """Raise: the `LastSave` where there is no coordinator, so no manager to save with."""
    raise CheckpointError("there is no coordinator whose checkpoint manager could save")


class ServerDraining:
    """The servers of one strategy that leave.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The client's event loop.
    servers : Servers
        The strategy's.
    last_save : callable
        A `LastSave`.

    Attributes
    ----------
    alone : bool
        Whether servers that might help were looked for, and there are none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        servers: Servers,
        last_save: LastSave = no_last_save,
    ) -> None:
        self._loop, self._servers, self._last_save = loop, servers, last_save
        self._began: dict[ServerAddress, float] = {}
        self.alone = False
        self._saving = False  # it was begun; until none leaves any more

    def follow(
        self,
        layout: Layout,
        leaving: Set[ServerAddress],
        usable: Collection[ServerAddress],
        writing: Collection[ServerAddress] = (),
    ) -> None:
        """Go on with each of them, in each round of the reconciler.

        Parameters
        ----------
        layout : Layout
            Where shards are.
        leaving : set of ServerAddress
            The servers that leave.
        usable : collection of ServerAddress
            The servers that may take their shards.
        writing : collection of ServerAddress
            The servers that write a checkpoint; their processes wait for its end, for a while.
        """
        self._began = {server: self._began[server] for server in leaving & self._began.keys()}
        for server in leaving:
            if server not in self._began:
                self._began[server] = time.monotonic()
                held = sum(placement.primary == server for placement in layout.placements)
                text = f"parameter {server.name} at {server.address} was asked to end; "
                text += f"its {counted(held, 'shard')} move to {counted(len(usable), 'other')}"
                self._servers.events.add(EventKind.SERVER_RETIRING, text)
        for server in leaving:
            if server not in writing and not holds(layout, server, len(usable)):
                self._report_retired(server, "has handed over all shards")
                self._servers.give_up(server)
        if not leaving:
            self._saving = self.alone = False
        elif not usable and self.alone and not self._saving:
            self._saving = True
            run = partial(self._save, tuple(leaving))
            threading.Thread(target=run, name="psnb-last-save", daemon=True).start()

    def _report_retired(self, server: ServerAddress, how: str) -> None:
        seconds = time.monotonic() - self._began[server]
        text = f"parameter {server.name} at {server.address} {how} within {seconds:.2g} s"
        self._servers.events.add(EventKind.SERVER_RETIRED, text)

    def _save(self, leaving: Collection[ServerAddress]) -> None:
        def end() -> None:
            run_on_loop(self._loop, partial(self._end, leaving), _END_TIMEOUT)

        try:
            path = self._last_save(end)
        except asyncio.CancelledError:
            return  # the client was closed meanwhile
        except Exception as error:  # a boundary, as of all automatic saves
            self._servers.events.add(
                EventKind.CHECKPOINT_FAILED,
                "no other server can take the shards of those that were asked to end, and they "
                f"could not be saved: {error}",
            )
        else:
            text = f"saved {str(path)!r}, as no other server can take the shards"
            self._servers.events.add(EventKind.CHECKPOINT_SAVED, text)

    async def _end(self, leaving: Collection[ServerAddress]) -> None:
        for server in leaving:
            if server in self._began:  # it has not died meanwhile
                self._report_retired(server, "has ended after all was saved,")
        await asyncio.gather(*map(self._servers.dismiss, leaving))


def holds(layout: Layout, server: ServerAddress, others: int) -> bool:
    """Return whether a server holds what others should have first. Pure.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    server : ServerAddress
        The server.
    others : int
        How many others may hold shards: a copy is not waited for if there is no room for it.
    """
    return any(
        server == placement.primary or (server in placement.servers and others > layout.replicas)
        for placement in layout.placements
    )
