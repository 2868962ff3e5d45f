"""Hub: kernels post updates of their coordinators here, and panels receive them.

A kernel posts from threads of its own, so this works while its cells block. A panel has one
socket for all coordinators, and gets the history of each when it connects, whatever the kernels
do. Nothing here blocks: a command is queued until the kernel's next post fetches it. Everything
runs on the Jupyter server's event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from psnb._src.jupyter_compat import kernel_process, notebooks
from psnb._src.monitor import protocol
from psnb._src.monitor.jupyter_server.coordinators import (
    CoordinatorEntry,
    CoordinatorRegistry,
    TooManyError,
)
from psnb._src.monitor.jupyter_server.panel import Panel, Panels
from psnb._src.monitor.jupyter_server.saved_runs import SavedRuns, is_folder
from psnb._src.monitor.jupyter_server.schedulers import MOST_SCHEDULERS, Schedulers
from psnb._src.monitor.protocol import WATCH_ONLY, reply

HEARTBEAT_TIMEOUT = 5.0
"""Seconds without a post after which a kernel counts as gone; it posts once a second at least."""

COMMAND_TIMEOUT = 30.0
"""Seconds within which a coordinator must reply."""

MOST_WAITING = 100
"""Limit of commands that wait for one coordinator's next post."""

MOST_PANELS = 100
"""Limit of connected pages."""

SWEEP = 1.0
"""Seconds between two checks for coordinators that are gone and commands that have expired."""


class Busy(Exception):  # noqa: N818 # the name in HTTP
    """A coordinator posts more often than it may."""


ReplyTo = Callable[[protocol.CommandReply], None]
"""Gets the reply to a panel's message, once, whatever happens."""


class _Given(NamedTuple):
    """A command without a reply so far."""

    reply_to: ReplyTo
    id: str
    known: CoordinatorEntry
    command: protocol.Command  # as the kernel gets it
    until: float


class Hub:
    """All coordinators, all panels, and the commands between them.

    Parameters
    ----------
    kernels, sessions
        The managers of the running ``ServerApp``.
    clock : callable
        Returns seconds.
    root : pathlib.Path
        The server's folder.
    """

    def __init__(
        self,
        kernels: Any,
        sessions: Any,
        clock: Callable[[], float] = time.monotonic,
        root: Path = Path(),
    ) -> None:
        self._kernels, self._sessions = kernels, sessions
        self._clock = clock
        self.sources = CoordinatorRegistry(clock)
        self.panels = Panels()
        self.schedulers = Schedulers(self.sources, self.panels, clock)
        self.saved_runs = SavedRuns(root, self.sources, self.panels)
        self._given: dict[str, _Given] = {}
        self._number = itertools.count()
        self._attaching: set[asyncio.Task[None]] = set()  # kept, or they might be garbage-collected

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
            del self.sources[coordinator]
            known = None
        if known is None:
            known = self.sources.add(coordinator, "kernel")
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
            given = self._given.get(answer["id"])
            if given is not None and given.known is known:  # else it is too late
                del self._given[answer["id"]]
                given.reply_to(protocol.CommandReply(**{**answer, "id": given.id}))
        commands, known.waiting = known.waiting, []
        self.panels.wake(listing=known.listed() != was or known.backlog.last is None)
        wanted = wanted or known.backlog.last is None
        return protocol.PendingCommands(
            version=protocol.VERSION, hello=wanted, watched=bool(self.panels), commands=commands
        )

    def close(self, coordinator: str) -> None:
        """Note that a coordinator was closed; remove one that is gone already."""
        known = self.sources.get(coordinator)
        if known is not None and known.gone:
            del self.sources[coordinator]
            self.sources.dismissed.append(coordinator)
            self.panels.wake(listing=True)
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
        if len(self.panels) >= MOST_PANELS:
            raise TooManyError(f"{MOST_PANELS} pages listen already")
        self.panels.add(panel)
        panel.hello()

    def command(self, command: protocol.Command, reply_to: ReplyTo) -> None:
        """Queue a command for its coordinator's next post."""
        known = self.sources.get(command["coordinator"])
        if known is None:
            error = "there is no such coordinator here"
        elif known.kind == "scheduler":
            error = WATCH_ONLY
        elif known.gone:
            error = f"the coordinator cannot be reached: {known.gone}"
        elif len(known.waiting) >= MOST_WAITING:
            error = "too many commands wait for this coordinator already"
        else:
            # Each panel numbers its own commands, so the numbers are not unique.
            unique = f"{next(self._number)}"
            sent = protocol.Command(**{**command, "id": unique})
            known.waiting.append(sent)
            until = self._clock() + COMMAND_TIMEOUT
            self._given[unique] = _Given(reply_to, command["id"], known, sent, until)
            return
        reply_to(reply(command["id"], command["coordinator"], error))

    def attach(self, request: protocol.Attach, reply_to: ReplyTo) -> None:
        """Attach a scheduler, if it answers, or detach one; or list the runs of a folder."""
        if request["type"] == "attach" and len(self._attaching) >= MOST_SCHEDULERS:
            reply_to(reply(request["id"], "", "too many schedulers are asked: wait a moment"))
            return
        asking = asyncio.ensure_future(self._attach(request, reply_to))
        self._attaching.add(asking)
        asking.add_done_callback(self._attaching.discard)

    async def _attach(self, request: protocol.Attach, reply_to: ReplyTo) -> None:
        address = request["address"]
        if request["type"] == "detach":
            error, done = self.schedulers.detach(address), "no longer watching"
        elif is_folder(address):
            error, done = await self.saved_runs.add(address), "listed the runs of"
        else:
            error, done = await self.schedulers.attach(address), "watching"
        reply_to(reply(request["id"], "", error, "" if error else f"{done} {address}"))

    def listing(self) -> protocol.Sources:
        """Return the message that lists coordinators and schedulers."""
        return protocol.Sources(
            type="sources",
            version=protocol.VERSION,
            sources=[each.listed() for each in self.sources.values()],
            schedulers=self.schedulers.listed(),
        )

    # Called by a timer.

    async def sweep(self) -> None:
        """Find coordinators that are gone and commands that have expired; every `SWEEP` seconds."""
        live = [x for x in self.sources.values() if x.kind == "kernel" and not x.gone]
        paths = await notebooks(self._sessions) if live else {}
        for known in live:
            if known.gone:  # it went while the notebooks were asked for
                continue
            if reason := self._ended(known):
                self._end(known, reason)
            elif known.notebook != (path := paths.get(known.kernel, "")):
                known.notebook = path
                self.panels.wake(listing=True)
        self._expire()

    def _ended(self, known: CoordinatorEntry) -> str:
        """Return why a coordinator is gone; empty if it lives."""
        if known.kernel and known.kernel in self._kernels:
            # Restarted here, it has another process.
            process = kernel_process(self._kernels, known.kernel)
            if known.process is None:
                known.process = process
            if process != known.process:
                return "its kernel was restarted"
        elif known.kernel and known.process is not None:
            # A kernel that was never here runs elsewhere; only missing heartbeats show its end.
            return "its kernel was shut down"
        if self._clock() - known.heard > HEARTBEAT_TIMEOUT:
            return (
                f"no news for {HEARTBEAT_TIMEOUT:.0f} s: its process has ended, or is stuck in "
                "code that keeps Python's lock"
            )
        return ""

    def _expire(self) -> None:
        """Reply with an error to commands that are too old, or whose coordinator is gone."""
        now = self._clock()
        for unique, given in list(self._given.items()):
            known = given.known
            if known.gone:
                error = f"the coordinator went before it replied: {known.gone}"
            elif now < given.until:
                continue
            elif given.command in known.waiting:
                known.waiting.remove(given.command)
                error = (
                    f"the kernel did not fetch it in {COMMAND_TIMEOUT:.0f} s, so it was withdrawn"
                )
            else:
                error = f"no reply within {COMMAND_TIMEOUT:.0f} s; it may still be under way"
            del self._given[unique]
            given.reply_to(reply(given.id, known.coordinator, error))

    def _end(self, known: CoordinatorEntry, reason: str) -> None:
        self.sources.end(known, reason)
        self._expire()
        self.panels.wake(listing=True)
