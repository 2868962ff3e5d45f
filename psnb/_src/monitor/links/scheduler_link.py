"""SchedulerLink: for coordinators outside of Jupyter, a route on the scheduler's HTTP server.

A coordinator sends updates to the scheduler (`SchedulerLink`). A plugin there (`UpdatesRoute`)
keeps the backlog of each coordinator and serves it next to the dashboard. The hub of a Jupyter
server polls it, if the scheduler is attached. Like the dashboard, the route needs no password:
anyone who can open the dashboard can read it. So the scheduler gets only an outline
(`psnb._src.monitor.updates`), and the route takes no commands.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin
from tornado.web import RequestHandler

from psnb._src.dask_compat.plugins import add_handler, add_route, call_every
from psnb._src.dask_compat.reach import ask_scheduler, event_loop, is_connected
from psnb._src.monitor.backlog import Backlog
from psnb._src.monitor.protocol import VERSION, Update
from psnb._src.monitor.publisher import Publisher
from psnb._src.monitor.updates import chunks, outline
from psnb._src.monitor.viewed import Viewed
from psnb._src.transport.questions import SchedulerQuestions, next_beat, questions_of
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.threads import run_in_thread, run_on_loop

POST, READ = "psnb_tell", "psnb_read"
"""The names of the handlers on the scheduler."""

MOST_COORDINATORS = 50
"""Limit of coordinators whose backlog the scheduler keeps."""

MOST_BYTES = 4 << 20
"""Limit of the updates in one answer, in bytes, unless there is only one; the next answer has the
rest."""

GONE_SECONDS = 300.0
"""Seconds after which a coordinator that is gone is removed."""

SWEEP = 10.0
"""Seconds between two checks for those."""

INTERVAL = 1.0
"""Seconds between two updates while someone reads them."""

RARELY = 60.0
"""The same while no one does."""

READ_WITHIN = 10.0
"""Seconds for which someone counts as reading who has read: a hub asks twice a second."""

TIMEOUT = 5.0
"""Seconds within which the scheduler must answer."""


@dataclass(eq=False)
class _KeptCoordinator:
    """What the scheduler keeps of one coordinator."""

    owner: str  # id of its client
    gone: str = ""
    until: float = 0.0  # when it is removed, if it is gone
    backlog: Backlog = field(default_factory=Backlog)


class UpdatesRoute(SchedulerPlugin):
    """Keeps the updates of coordinators and serves them; all on the scheduler's event loop.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    name = "psnb-updates"
    idempotent = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, _KeptCoordinator] = {}  # the latest sender comes last
        self._read = -math.inf  # when someone has read

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handler and the route; Dask calls this once."""
        call_every(scheduler, self.name, SWEEP, self.sweep)
        add_handler(scheduler, POST, self.post)
        add_handler(scheduler, READ, self.read)
        add_route(scheduler, r"(?:/.*)?/psnb/updates", _UpdatesHandler, {"route": self})

    def post(self, owner: str, coordinator: str, update: Update | None) -> bool:
        """Take an update from a client; None means that the coordinator was closed.

        Returns
        -------
        bool
            Whether a full update is needed.
        """
        kept = self._kept.pop(coordinator, None) or _KeptCoordinator(owner)
        self._kept[coordinator] = kept
        if len(self._kept) > MOST_COORDINATORS:
            gone = (each for each, kept in self._kept.items() if kept.gone)
            del self._kept[next(gone, next(iter(self._kept)))]
        if update is None:
            self._end(kept, "it was closed")
            return False
        kept.owner, kept.gone = owner, ""
        return kept.backlog.add(update)

    def read(self) -> bool:
        """Return whether someone reads the updates."""
        return self._clock() - self._read < READ_WITHIN

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Note that the coordinators of a client are gone with it."""
        for kept in self._kept.values():
            if kept.owner == client and not kept.gone:
                self._end(kept, "its process has ended, or left the cluster")

    def sweep(self) -> None:
        """Remove coordinators that went long ago; every `SWEEP` seconds."""
        now = self._clock()
        for coordinator, kept in list(self._kept.items()):
            if kept.gone and now >= kept.until:
                del self._kept[coordinator]

    def _end(self, kept: _KeptCoordinator, reason: str) -> None:
        kept.gone, kept.until = reason, self._clock() + GONE_SECONDS

    def extracts(self, after: dict[str, Any]) -> bytes:
        """Return `psnb._src.monitor.backlog.Extracts` as JSON.

        Parameters
        ----------
        after : dict
            The last sequence number that the reader has, by coordinator.
        """
        self._read = self._clock()
        left = MOST_BYTES
        parts = []
        for coordinator, kept in self._kept.items():
            have = after.get(coordinator)
            texts = []
            for _, text in kept.backlog.since(have if isinstance(have, int) else None):
                if left < len(text) and left < MOST_BYTES:
                    break
                left -= len(text)
                texts.append(text)
            # The updates are JSON already.
            head = json.dumps({"coordinator": coordinator, "gone": kept.gone}).encode()[:-1]
            parts.append(b'%b, "updates": [%b]}' % (head, b",".join(texts)))
        return b'{"version": %d, "coordinators": [%b]}' % (VERSION, b",".join(parts))


class _UpdatesHandler(RequestHandler):
    """``GET /psnb/updates?after={"coordinator": sequence}``."""

    def initialize(self, route: UpdatesRoute) -> None:
        self._route = route

    def get(self) -> None:
        try:
            after = json.loads(self.get_query_argument("after", "{}"))
        except (ValueError, RecursionError):
            after = None
        if not isinstance(after, dict):
            self.send_error(400)
            return
        self.set_header("Content-Type", "application/json")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        self.finish(self._route.extracts(after))


class SchedulerLink(Publisher):
    """Sends a coordinator's updates to the scheduler, from a thread ``psnb-route``.

    Once a second while someone reads them there, and else rarely: a task asks whether someone does,
    with what else is asked (`psnb._src.transport.questions`), and wakes the thread.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    client : distributed.Client
        Connected to its cluster; its scheduler must be able to import psnb.
    """

    def __init__(self, viewed: Viewed, client: Client) -> None:
        self._coordinator = viewed.id
        self._client = client
        self._numbers = itertools.count()  # of sent updates: maybe more than published
        self._asking: Future[None] | None = None
        super().__init__(viewed, self._publish, "psnb-route", RARELY)
        self.wake(full=True)  # the update from construction is shown nowhere

    def start(self) -> None:
        """Register the route, and begin; once.

        Raises
        ------
        Exception
            Whatever Dask raises if the scheduler does not answer, or has another psnb.
        """
        run_in_thread(self._client.register_plugin, UpdatesRoute())  # Dask blocks there
        super().start()
        asking = self._ask_for_readers(questions_of(self._client))
        self._asking = asyncio.run_coroutine_threadsafe(asking, event_loop(self._client))

    async def _ask_for_readers(self, questions: SchedulerQuestions) -> None:
        errors = LoopErrors("Asking whether a coordinator is watched")
        try:
            # One that was garbage-collected wakes nobody: that is to be reported soon as well.
            while self.alive and self._viewed() is not None:
                read = False
                with errors:
                    try:
                        read = await questions.ask(READ)
                    except OSError:  # the thread knows as well
                        await next_beat(INTERVAL)
                self._publish_every(INTERVAL if read else RARELY)
        finally:
            self._publish_every(INTERVAL)

    def _publish_every(self, seconds: float) -> None:
        before, self._interval = self._interval, seconds
        if seconds < before:
            self.wake()

    def ended(self) -> None:
        """Tell the scheduler that the coordinator is closed, or gone."""
        if self._asking is not None:
            self._asking.cancel()
        self._post(None)

    def _publish(self, update: Update) -> None:
        for chunk in chunks(outline(update)):
            chunk["sequence"] = next(self._numbers)
            if self._post(chunk):
                self.wake(full=True)

    def _post(self, update: Update | None) -> bool:
        """Call the plugin.

        Raises
        ------
        OSError
            If the scheduler does not answer, or the client is closed.
        """
        if not is_connected(self._client):
            raise ConnectionError("the client is not connected to its scheduler")
        call = partial(
            ask_scheduler,
            self._client,
            POST,
            owner=self._client.id,
            coordinator=self._coordinator,
            update=update,
        )
        try:
            wanted: bool = run_on_loop(event_loop(self._client), call, TIMEOUT)
        except RuntimeError as error:  # of an event loop that has just ended
            raise ConnectionError(str(error)) from error
        return wanted
