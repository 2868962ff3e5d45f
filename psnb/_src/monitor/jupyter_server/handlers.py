"""The hub's routes on the Jupyter server, with the server's own authentication.

Kernels post with the server's token; if it has only a password, with a secret in their environment.
Panels use the browser's cookie: Jupyter then checks the origin of a socket, and the XSRF token of
all other requests.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.auth.identity import User
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.web import HTTPError, stream_request_body
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from psnb._src.jupyter_compat import checked_by_itself, untracked
from psnb._src.monitor import protocol
from psnb._src.monitor.jupyter_server import messages
from psnb._src.monitor.jupyter_server.coordinators import Allowance, TooManyError
from psnb._src.monitor.jupyter_server.hub import Busy, Hub
from psnb._src.monitor.jupyter_server.panel import Panel
from psnb._src.monitor.protocol import SECRET_HEADER, reply

MOST_BODY = 4 << 20
"""Limit of a post, in bytes."""

MOST_MESSAGE = 64 << 10
"""Limit of a panel's message, in bytes."""

MESSAGES_PER_SECOND = 20.0
"""Limit of a panel's messages per second."""

_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013  # codes with which a socket is closed


@untracked  # these requests come four times a second
@stream_request_body
class CoordinatorHandler(APIHandler):
    """``POST`` and ``DELETE`` of ``psnb/coordinators/<id>``."""

    auth_resource = "kernels"

    def initialize(self, hub: Hub, secret: str) -> None:
        """Take the arguments of the route."""
        self._hub, self._secret = hub, secret
        self._body = bytearray()

    async def prepare(self) -> None:  # type: ignore[override]
        """Let the server's kernels in; refuse others, and bodies that are too large, unread."""
        await super().prepare()
        shown = self.request.headers.get(SECRET_HEADER, "")
        if hmac.compare_digest(shown.encode(), self._secret.encode()):
            self.current_user = self.current_user or User("a kernel of this server")
        await self._authorize()
        try:
            length = int(self.request.headers.get("Content-Length", 0))
        except ValueError:
            raise HTTPError(400, "the Content-Length is not a number") from None
        if length > MOST_BODY:
            raise _too_large()

    @authorized
    async def _authorize(self) -> None:
        """Raise a 403 unless the user may do what the request's method does."""

    def data_received(self, chunk: bytes) -> None:
        """Take a part of the body; enforces the limit if no length was announced."""
        if len(self._body) <= MOST_BODY:
            self._body += chunk

    @checked_by_itself
    async def post(self, coordinator: str) -> None:
        """Take a `HubPost`, answer with `PendingCommands`."""
        if len(self._body) > MOST_BODY:
            raise _too_large()
        try:
            batch = messages.read(bytes(self._body), protocol.HubPost)
            if any(x["coordinator"] != coordinator for x in batch["updates"] + batch["replies"]):
                raise HTTPError(
                    400, "a post is about one coordinator, the one that its address names"
                )
            self.finish(json.dumps(self._hub.post(coordinator, batch)))
        except messages.VersionError as error:
            advice = "install the same psnb in both places"
            raise HTTPError(400, f"the kernel speaks {error}: {advice}") from None
        except messages.MalformedError as error:
            raise HTTPError(400, f"the body is not a batch of updates: {error}") from None
        except Busy:
            raise HTTPError(429, "this coordinator posts too often: wait a second") from None
        except TooManyError as error:
            raise HTTPError(503, str(error)) from None

    @checked_by_itself
    async def delete(self, coordinator: str) -> None:
        """Close a coordinator; remove one that is gone already."""
        self._hub.close(coordinator)
        self.set_status(204)
        self.finish()


class StreamHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """The socket of a panel, ``psnb/stream``."""

    auth_resource = "kernels"

    def initialize(self, hub: Hub) -> None:
        """Take the arguments of the route."""
        self._hub = hub
        self._allowance = Allowance(MESSAGES_PER_SECOND)
        self._panel: Panel | None = None
        self._may_command = False

    def set_default_headers(self) -> None:
        """Set no headers: they have no meaning for a socket."""

    @property
    def max_message_size(self) -> int:
        """Bytes of a message from the page; tornado closes the socket if one is larger."""
        return MOST_MESSAGE

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Accept users who may read kernels."""
        if not await self._may("read"):
            raise HTTPError(403)
        self._may_command = await self._may("execute")
        await super().get(*args, **kwargs)

    async def _may(self, action: str) -> bool:
        allowed = self.authorizer.is_authorized(self, self.current_user, action, "kernels")
        return bool(await ensure_async(allowed))

    def open(self, *args: str, **kwargs: str) -> None:
        """Register the panel, and send it everything."""
        super().open()
        self.set_nodelay(True)
        self._panel = Panel(
            self._hub.sources,
            self._hub.listing,
            self._write,
            lambda reason: self.close(_TRY_AGAIN_LATER, reason),
        )
        try:
            self._hub.join(self._panel)
        except TooManyError as error:
            self.close(_TRY_AGAIN_LATER, str(error))

    def on_close(self) -> None:
        """Remove the panel."""
        if self._panel is not None:
            self._hub.panels.discard(self._panel)

    def on_message(self, message: str | bytes) -> None:
        """Handle a panel's message."""
        if not self._allowance.allows():
            self.close(_POLICY_VIOLATION, f"more than {MESSAGES_PER_SECOND:.0f} messages a second")
            return
        panel = self._panel
        assert panel is not None
        try:
            found = messages.read_from_panel(message)
        except messages.MalformedError as error:
            wrong = f"this is nothing that a panel says: {error}"
            if isinstance(error, messages.VersionError):
                remedy = "reload the page, or install the same psnb in both places"
                wrong = f"the panel speaks {error}: {remedy}"
            panel.reply_to(reply(messages.asked(message), "", wrong))
            return
        if found["type"] == "hello":
            panel.hello()
        elif not self._may_command:
            wrong = "you may look here, but not give commands"
            panel.reply_to(reply(found["id"], found.get("coordinator", ""), wrong))
        elif found["type"] == "command":
            self._hub.command(found, panel.reply_to)
        else:
            self._hub.attach(found, panel.reply_to)

    async def _write(self, text: str | bytes) -> None:
        try:
            await self.write_message(text)
        except WebSocketClosedError as error:
            raise ConnectionError("the page has gone") from error


def _too_large() -> HTTPError:
    return HTTPError(413, f"a post may have {MOST_BODY >> 20} MiB")
