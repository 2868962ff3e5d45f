"""HubLink: sends the updates of a coordinator in this kernel to the hub on the Jupyter server.

Two threads post, each on a connection of its own: the publisher's, ``psnb-hub-news``, whose updates
must arrive in order, and ``psnb-hub-life``, which gives heartbeats when nothing changes, carries
replies, and reports the end. They share a queue of replies and events. If the hub is out of reach,
the publisher tries again, less and less often, and the other thread pauses until it has succeeded.
A message that the hub refuses as invalid is a fault of psnb: it is logged, once, and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import weakref
from typing import Any
from urllib.parse import quote

from psnb._src.jupyter_compat import SECRET
from psnb._src.monitor.commands import execute
from psnb._src.monitor.links.hub_client import HubClient, JupyterServer
from psnb._src.monitor.protocol import VERSION, CommandReply, HubPost, Update
from psnb._src.monitor.publisher import Publisher
from psnb._src.monitor.updates import chunks
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.threads import uninterrupted

_log = logging.getLogger("psnb")

HEARTBEAT = 0.5
"""Maximum seconds between two posts; commands also wait for the next post."""

CLOSE_TIMEOUT = 2.0
"""Maximum seconds that ``close`` takes."""

_REFUSED = (400, 413)  # the same body would be refused again


class HubLink:
    """Posts a coordinator's updates to the hub, and runs the commands that come back.

    It never raises and never waits for the hub, except in `close`. It has only a weak reference to
    the coordinator, and ends when that is closed or garbage-collected.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    server : JupyterServer
        The Jupyter server, from `find_server`.
    refused_pause : float
        Seconds to wait before another full update after the hub has refused one.
    """

    def __init__(self, viewed: Viewed, server: JupyterServer, refused_pause: float = 30.0) -> None:
        self._viewed = weakref.ref(viewed)
        self._path = f"psnb/coordinators/{quote(viewed.id, safe='')}"
        self._news = server.connection()  # for the publisher's thread
        self._life = server.connection()  # for the other thread
        self._number = 0  # of the sent updates, which may be more than the published ones
        self._refused_pause = refused_pause
        self._no_hello_until = 0.0  # by the monotonic clock
        self._surprised = False  # whether a refusal by the hub was logged
        self._replies: queue.SimpleQueue[CommandReply] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._reached = threading.Event()  # set if the last post succeeded
        self._posted = time.monotonic()
        self._publisher = Publisher(viewed, self._send, "psnb-hub-news")
        self._thread = threading.Thread(target=self._run, name="psnb-hub-life", daemon=True)

    @uninterrupted
    def start(self) -> None:
        """Start both threads; once."""
        self._publisher.hello()  # the update from construction is shown nowhere
        self._publisher.start()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether one of its threads still runs."""
        return self._thread.is_alive() or self._publisher.alive

    @uninterrupted  # it takes at most `CLOSE_TIMEOUT`
    def close(self) -> None:
        """Send the hub the last state, and report the end; idempotent."""
        until = time.monotonic() + CLOSE_TIMEOUT
        self._publisher.stop()
        self._wake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until - time.monotonic()))

    def _send(self, update: Update) -> None:
        """Post an update; the publisher calls it."""
        for chunk in chunks(Update(**update)):  # a copy: the publisher reads its own later
            chunk["sequence"] = self._number
            self._number += 1
            if not self._post(self._news, [chunk], []):
                self._number -= 1  # a refused update leaves no gap
                if chunk["full"]:
                    self._no_hello_until = time.monotonic() + self._refused_pause

    def _run(self) -> None:
        errors = LoopErrors("Sending heartbeats to the Jupyter server")
        while self._publisher.alive:
            reached = self._reached.is_set()
            quiet = time.monotonic() - self._posted
            self._wake.wait(max(0.0, HEARTBEAT - quiet) if reached else HEARTBEAT)
            self._wake.clear()
            replies = self._taken()
            if reached and (replies or time.monotonic() - self._posted >= HEARTBEAT):
                with errors:
                    try:
                        self._post(self._life, [], replies)
                    except OSError as error:
                        # Its replies are lost; the hub informs the panels that wait.
                        _log.debug("the hub got no heartbeat: %s", error)
                        self._publisher.hello()  # which goes on trying
        try:
            if self._reached.is_set():
                self._life.request("DELETE", self._path)
        except OSError as error:
            _log.debug("the Jupyter server has not received a coordinator's end: %s", error)
        finally:
            self._life.close()
            self._news.close()

    def _taken(self) -> list[CommandReply]:
        taken = []
        while True:
            try:
                taken.append(self._replies.get_nowait())
            except queue.Empty:
                return taken

    def _post(
        self, connection: HubClient, updates: list[Update], replies: list[CommandReply]
    ) -> bool:
        """Post a batch and run the hub's commands; return whether the hub took the batch.

        Raises
        ------
        OSError
            If the hub could not be reached.
        """
        batch = HubPost(version=VERSION, updates=updates, replies=replies)
        body = json.dumps(batch, separators=(",", ":")).encode()
        self._posted = time.monotonic()
        try:
            status, answer = connection.request("POST", self._path, body)
            if status in _REFUSED:
                self._reached.set()
                self._note_refusal(status, answer)
                return False
            if status != 200:
                raise ConnectionError(_refusal(status, answer))
            orders = json.loads(answer)
        except (OSError, ValueError) as error:
            self._reached.clear()
            raise ConnectionError(str(error)) from error
        self._reached.set()
        self._obey(orders)
        return True

    def _note_refusal(self, status: int, answer: bytes) -> None:
        if not self._surprised:
            _log.warning(
                "Part of what a coordinator sends to its panels is not understood, and left out: "
                "%s; please report it",
                _refusal(status, answer),
            )
        self._surprised = True

    def _obey(self, orders: dict[str, Any]) -> None:
        if orders["hello"] and time.monotonic() >= self._no_hello_until:
            self._publisher.hello()
        viewed = self._viewed()
        if viewed is not None:
            for command in orders["commands"]:
                execute(viewed, command, "the panel", self._reply)

    def _reply(self, reply: CommandReply) -> None:
        self._replies.put(reply)
        self._wake.set()
        self._publisher.soon()


def _refusal(status: int, answer: bytes) -> str:
    if status == 404:
        return "the Jupyter server has no hub: its extension psnb is not enabled"
    if status in (401, 403):
        return (
            "the Jupyter server does not let this kernel in: restart the server, so that psnb's "
            f"extension is in it when it starts its kernels; they need its variable {SECRET}"
        )
    return f"the hub answers {status}: {answer[:200]!r}"
