"""HubLink: sends the updates of a coordinator in this kernel to the hub on the Jupyter server.

One thread posts, the publisher's, ``psnb-hub``: updates in their order, replies, a heartbeat when
there is neither, and the end. If the hub is out of reach, it tries again, less and less often. A
message that the hub refuses as invalid is a fault of psnb: it is logged, once, and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import time
from urllib.parse import quote

from psnb._src.jupyter_compat import SECRET
from psnb._src.monitor.commands import execute
from psnb._src.monitor.links.hub_client import HubClient, JupyterServer
from psnb._src.monitor.protocol import VERSION, CommandReply, HubPost, Update
from psnb._src.monitor.publisher import Publisher
from psnb._src.monitor.updates import chunks
from psnb._src.monitor.viewed import Viewed

_log = logging.getLogger("psnb")

HEARTBEAT = 0.5
"""Maximum seconds between two posts; commands also wait for the next post."""

_REFUSED = (400, 413)  # the same body would be refused again

_log = logging.getLogger("psnb")


class HubLink(Publisher):
    """Posts a coordinator's updates to the hub, and runs the commands that come back.

    It never raises, and nothing waits for the hub, except `stop`.

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
        self._path = f"psnb/coordinators/{quote(viewed.id, safe='')}"
        self._hub = HubClient(server)
        self._number = 0  # of the sent updates, which may be more than the published ones
        self._refused_pause = refused_pause
        self._no_hello_until = 0.0  # by the monotonic clock
        self._warned = False  # whether a refusal by the hub was logged
        self._replies: queue.SimpleQueue[CommandReply] = queue.SimpleQueue()
        self._reached = False  # whether the last post succeeded
        self._posted = time.monotonic()
        super().__init__(viewed, self._publish, "psnb-hub")
        self.hello()  # the update from construction is shown nowhere

    def _publish(self, update: Update) -> None:
        for chunk in chunks(Update(**update)):  # a copy: the publisher reads its own later
            chunk["sequence"] = self._number
            self._number += 1
            if not self._post([chunk]):
                self._number -= 1  # a refused update leaves no gap
                if chunk["full"]:
                    self._no_hello_until = time.monotonic() + self._refused_pause

    def idle(self) -> None:
        """Post replies, and heartbeats."""
        if not self._replies.empty() or time.monotonic() - self._posted >= HEARTBEAT:
            self._post([])

    def ended(self) -> None:
        """Tell the hub that the coordinator is closed, or gone."""
        try:
            if self._reached:
                self._hub.request("DELETE", self._path)
        finally:
            self._hub.close()

    def _post(self, updates: list[Update]) -> bool:
        """Post updates and replies, run the hub's commands; return whether the hub took them.

        If it is out of reach, replies are lost; the hub informs the panels that wait.

        Raises
        ------
        OSError
            If the hub could not be reached.
        """
        replies = [self._replies.get() for _ in range(self._replies.qsize())]
        batch = HubPost(version=VERSION, updates=updates, replies=replies)
        body = json.dumps(batch, separators=(",", ":")).encode()
        self._posted, self._reached = time.monotonic(), False
        status, answer = self._hub.request("POST", self._path, body)
        if status in _REFUSED:
            self._reached = True
            if not self._warned:
                self._warned = True
                _log.warning(
                    "Part of what a coordinator sends to its panels is not understood, and left "
                    "out: %s; please report it",
                    _refusal(status, answer),
                )
            return False
        if status != 200:
            raise ConnectionError(_refusal(status, answer))
        try:
            orders = json.loads(answer)
        except ValueError as error:
            raise ConnectionError(str(error)) from error
        self._reached = True
        if orders["hello"] and time.monotonic() >= self._no_hello_until:
            self.hello()
        viewed = self._viewed()
        if viewed is not None:
            for command in orders["commands"]:
                execute(viewed, command, "the panel", self._reply)
        return True

    def _reply(self, reply: CommandReply) -> None:
        self._replies.put(reply)
        self.soon()


def _refusal(status: int, answer: bytes) -> str:
    if status == 404:
        return "the Jupyter server has no hub: its extension psnb is not enabled"
    if status in (401, 403):
        return (
            "the Jupyter server does not let this kernel in: restart the server, so that psnb's "
            f"extension is in it when it starts its kernels; they need its variable {SECRET}"
        )
    return f"the hub answers {status}: {answer[:200]!r}"
