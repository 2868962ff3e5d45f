"""Hub: kernels post updates of their coordinators here, and panels receive them.

A kernel posts from a thread of its own, so this works while its cells block. A panel has one
socket for all coordinators, and gets the history of each when it connects, whatever the kernels
do. Nothing here blocks: a command is queued until the kernel's next post fetches it. Everything
runs on the Jupyter server's event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from psnb._src.jupyter_compat import kernel_process, notebooks
from psnb._src.monitor import protocol
from psnb._src.monitor.jupyter_server.commands import Commands, reply
from psnb._src.monitor.jupyter_server.coordinators import (
    CoordinatorEntry,
    CoordinatorRegistry,
    TooManyError,
)
from psnb._src.monitor.jupyter_server.panel import Panel
from psnb._src.monitor.jupyter_server.schedulers import MOST_SCHEDULERS, Schedulers


class Kernels:
    """Asks the managers of the server; used on its event loop.

    Parameters
    ----------
    kernel_manager, session_manager
        Of the running ``ServerApp``.
    """

    def __init__(self, kernel_manager: Any, session_manager: Any) -> None:
        self._kernels = kernel_manager
        self._sessions = session_manager

    async def notebooks(self) -> dict[str, str]:
        """Return the path of the notebook, relative to the server's root, by kernel id."""
        return await notebooks(self._sessions)

    def ended(self, known: CoordinatorEntry) -> str:
        """Return why a coordinator's kernel does not exist any more; empty if it exists."""
        if not known.kernel:
            return ""
        if known.kernel not in self._kernels:
            # A kernel that was never here runs elsewhere; only missing heartbeats show its end.
            return "its kernel was shut down" if known.process is not None else ""
        # Restarted here, it has another process.
        process = kernel_process(self._kernels, known.kernel)
        if known.process is None:
            known.process = process
        return "" if process == known.process else "its kernel was restarted"


HEARTBEAT_TIMEOUT = 5.0
"""Seconds without a post after which a kernel counts as gone; it posts once a second at least."""

MOST_PANELS = 100
"""Limit of connected pages."""

SWEEP = 1.0
"""Seconds between two checks for coordinators that are gone and commands that have expired."""

POLL = 0.5
"""Seconds between two polls of the schedulers."""


class Busy(Exception):  # noqa: N818 # the name in HTTP
    """A coordinator posts more often than it may."""


class Hub:
    """All coordinators, all panels, and the commands between them.

    Parameters
    ----------
    kernels : Kernels
        The kernels of the server.
    clock : callable
        Returns seconds.
    """

    def __init__(self, kernels: Kernels, clock: Callable[[], float] = time.monotonic) -> None:
        self._kernels = kernels
        self._clock = clock
        self.sources = CoordinatorRegistry(clock)
        self._commands = Commands(clock)
        self._panels: set[Panel] = set()
        self._attaching: set[asyncio.Task[None]] = set()  # kept, or they might be garbage-collected
        self._schedulers = Schedulers(self.sources, self._news, self._relist, clock)

    # Called for kernels.

    def post(self, coordinator: str, batch: protocol.HubPost) -> protocol.PendingCommands:
        """Take a kernel's updates of a coordinator, and return commands for it.

        Raises
        ------
        Busy
            If it posts too often.
        TooManyError
            If the hub knows too many coordinators.
        """
        known = self.sources.get(coordinator)
        if known is not None and known.kind != "kernel":
            # The kernel's own posts replace what a scheduler has sent.
            self.sources.forget(coordinator)
            known = None
        if known is None:
            known = self.sources.add(coordinator, "kernel", "")
        elif known.gone:
            # It is back, perhaps in another process than the one the server knows.
            known.gone, known.process = "", None
        if not known.allowance.allows():
            raise Busy
        known.heard = self._clock()
        was = known.listed()
        wanted = False
        for update in batch["updates"]:
            wanted = known.add(update)
        for answer in batch["replies"]:
            self._commands.answer(answer)
        commands, known.waiting = known.waiting, []
        if known.listed() != was or known.backlog.last is None:
            self._relist()
        self._news()
        wanted = wanted or known.backlog.last is None
        return protocol.PendingCommands(version=protocol.VERSION, hello=wanted, commands=commands)

    def close(self, coordinator: str) -> None:
        """Note that a coordinator was closed; remove one that is gone already."""
        known = self.sources.get(coordinator)
        if known is not None and known.gone:
            self.sources.dismiss(coordinator)
            self._relist()
        elif known is not None:
            self._end(known, "it was closed")

    # Called for panels.

    def join(self, panel: Panel) -> None:
        """Add a panel, and send it everything.

        Raises
        ------
        TooManyError
            If too many panels are connected.
        """
        if len(self._panels) >= MOST_PANELS:
            raise TooManyError(f"{MOST_PANELS} pages listen already")
        self._panels.add(panel)
        self._schedulers.poll_now()
        panel.hello()

    def leave(self, panel: Panel) -> None:
        """Remove a panel."""
        self._panels.discard(panel)

    def command(
        self, command: protocol.Command, reply_to: Callable[[protocol.CommandReply], None]
    ) -> None:
        """Forward a command; ``reply_to`` gets the reply, once, whatever happens."""
        known = self.sources.get(command["coordinator"])
        if known is None:
            error = "there is no such coordinator here"
            reply_to(reply(command["id"], command["coordinator"], error))
        else:
            self._commands.give(known, command, reply_to)

    def attach(
        self, request: protocol.Attach, reply_to: Callable[[protocol.CommandReply], None]
    ) -> None:
        """Attach a scheduler, if it answers, or detach one; ``reply_to`` gets the reply, once."""
        address = request["address"]
        if request["type"] == "detach":
            error = self._schedulers.detach(address)
            result = "" if error else f"no longer watching {address}"
            reply_to(reply(request["id"], "", error, result))
        elif len(self._attaching) >= MOST_SCHEDULERS:
            reply_to(reply(request["id"], "", "too many schedulers are asked: wait a moment"))
        else:
            asking = asyncio.ensure_future(self._attach(request, reply_to))
            self._attaching.add(asking)
            asking.add_done_callback(self._attaching.discard)

    async def _attach(
        self, request: protocol.Attach, reply_to: Callable[[protocol.CommandReply], None]
    ) -> None:
        error = await self._schedulers.attach(request["address"])
        result = "" if error else f"watching {request['address']}"
        reply_to(reply(request["id"], "", error, result))

    def listing(self) -> protocol.Sources:
        """Return the message that lists coordinators and schedulers."""
        return protocol.Sources(
            type="sources",
            version=protocol.VERSION,
            sources=[each.listed() for each in self.sources],
            schedulers=self._schedulers.listed(),
        )

    # Called by timers.

    async def sweep(self) -> None:
        """Find coordinators that are gone and commands that have expired; every `SWEEP` seconds."""
        live = [each for each in self.sources if each.kind == "kernel" and not each.gone]
        notebooks = await self._kernels.notebooks() if live else {}
        for known in live:
            unresponsive = self._clock() - known.heard
            if known.gone:  # it went while the notebooks were asked for
                continue
            if reason := self._kernels.ended(known):
                self._end(known, reason)
            elif unresponsive > HEARTBEAT_TIMEOUT:
                self._end(
                    known,
                    f"no news for {HEARTBEAT_TIMEOUT:.0f} s: its process has ended, or is stuck "
                    "in code that keeps Python's lock",
                )
            elif known.notebook != (path := notebooks.get(known.kernel, "")):
                known.notebook = path
                self._relist()
        self._commands.expire()

    def poll(self) -> None:
        """Ask the schedulers that are due; every `POLL` seconds."""
        self._schedulers.poll(watched=bool(self._panels))

    def _end(self, known: CoordinatorEntry, reason: str) -> None:
        self.sources.end(known, reason)
        self._commands.expire()
        self._relist()

    def _news(self) -> None:
        for panel in self._panels:
            panel.wake()

    def _relist(self) -> None:
        for panel in self._panels:
            panel.list_again()
