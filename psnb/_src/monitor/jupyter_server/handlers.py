"""The hub's routes on the Jupyter server, with the server's own authentication.

Kernels post with the server's token; if it has none, only a password, with what it has given them
in their environment. Panels use the browser's cookie: Jupyter then checks the
origin of a socket, and the XSRF token of all other requests.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.auth.identity import User
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.web import HTTPError, stream_request_body
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from psnb._src.jupyter_compat import checked_by_itself, kernel_process, notebooks, untracked
from psnb._src.monitor import protocol
from psnb._src.monitor.jupyter_server import coordinators
from psnb._src.monitor.jupyter_server.coordinators import (
    Allowance,
    Commands,
    CoordinatorEntry,
    CoordinatorRegistry,
    TooManyError,
    reply,
)
from psnb._src.monitor.jupyter_server.schedulers import MOST_SCHEDULERS, Schedulers
from psnb._src.monitor.protocol import SECRET_HEADER


class Kernels:
    """Asks the managers of the server; used on its event loop.

    Parameters
    ----------
    kernel_manager, session_manager
        Of the running `ServerApp`.
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
            # A kernel that was never here runs elsewhere; only its silence shows its end.
            return "its kernel was shut down" if known.process is not None else ""
        # Of one that runs elsewhere only silence shows the end.
        process = kernel_process(self._kernels, known.kernel)
        if known.process is None:
            known.process = process
        return "" if process == known.process else "its kernel was restarted"


# One connected panel: what it has been sent, and what comes next.
#
# It has no queue of updates. It knows its position in each coordinator's backlog, and reads on from
# there as fast as the connection allows: a slow panel lags, but takes no memory. Everything runs on
# the server's event loop.

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
        self.list_again()

    def list_again(self) -> None:
        """Send the list of coordinators."""
        self._list = True
        self.wake()

    def reply_to(self, reply: protocol.CommandReply) -> None:
        """Send a reply."""
        if len(self._replies) >= MOST_REPLIES:
            self._close("the page does not take its replies; connect again")
            return
        self._replies.append(reply)
        self.wake()

    def wake(self) -> None:
        """Check whether there is something to send."""
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
                    yield json.dumps(self._listed())
            for known in self._sources:
                for sequence, text in known.backlog.since(self._sent.get(known.coordinator)):
                    self._sent[known.coordinator] = sequence
                    yield text
                    more = True  # meanwhile more may have come

    def _listed(self) -> protocol.Sources:
        listing = self._listing()
        live = {each["coordinator"] for each in listing["sources"]}
        self._sent = {each: sent for each, sent in self._sent.items() if each in live}
        return listing


# Hub: kernels post updates of their coordinators here, and panels receive them.
#
# A kernel posts from a thread of its own, so this works while its cells block. A panel has one
# socket for all coordinators, and gets the history of each when it connects, whatever the kernels
# do. Nothing here blocks: a command is queued until the kernel's next post fetches it. Everything
# runs on the Jupyter server's event loop, so there are no locks.

SILENCE = 5.0
"""Seconds without a post after which a kernel counts as gone; it posts once a second at least."""

MOST_PANELS = 100
"""Limit of connected pages."""

SWEEP = 1.0
"""Seconds between two checks for coordinators that are gone and commands that have expired."""

POLL = 0.5
"""Seconds between two polls of the schedulers."""


class Busy(Exception):  # noqa: N818 # the name in HTTP
    """A coordinator posts more often than it may."""


class KernelsView(Protocol):
    """The hub's questions about kernels; see `Kernels`."""

    async def notebooks(self) -> dict[str, str]:
        """Return the notebook's path by kernel id."""

    def ended(self, known: CoordinatorEntry) -> str:
        """Return why a coordinator's kernel is no longer there; empty if it is."""


class Hub:
    """All coordinators, all panels, and the commands between them.

    Parameters
    ----------
    kernels : KernelsView
        The kernels of the server.
    clock : callable
        Returns seconds.
    """

    def __init__(self, kernels: KernelsView, clock: Callable[[], float] = time.monotonic) -> None:
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
            elif unresponsive > SILENCE:
                self._end(
                    known,
                    f"no news for {SILENCE:.0f} s: its process has ended, or is stuck in code "
                    "that keeps Python's lock",
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
        batch = _batch(bytes(self._body), coordinator)
        try:
            orders = self._hub.post(coordinator, batch)
        except Busy:
            raise HTTPError(429, "this coordinator posts too often: wait a second") from None
        except TooManyError as error:
            raise HTTPError(503, str(error)) from None
        self.finish(json.dumps(orders))

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
            self._hub.leave(self._panel)

    def on_message(self, message: str | bytes) -> None:
        """Handle a panel's message."""
        if not self._allowance.allows():
            self.close(_POLICY_VIOLATION, f"more than {MESSAGES_PER_SECOND:.0f} messages a second")
            return
        assert self._panel is not None
        try:
            decode = coordinators.decode(message)
        except coordinators.VersionError as error:
            remedy = "reload the page, or install the same psnb in both places"
            wrong = f"the panel speaks {error}: {remedy}"
        except coordinators.MalformedError as error:
            wrong = f"this is nothing that a panel says: {error}"
        else:
            self._do(decode, self._panel)
            return
        self._panel.reply_to(reply(coordinators.asked(message), "", wrong))

    def _do(self, decode: Any, panel: Panel) -> None:
        if decode["type"] == "hello":
            panel.hello()
        elif not self._may_command:
            error = "you may look here, but not give commands"
            panel.reply_to(reply(decode["id"], decode.get("coordinator", ""), error))
        elif decode["type"] == "command":
            self._hub.command(decode, panel.reply_to)
        else:
            self._hub.attach(decode, panel.reply_to)

    async def _write(self, text: str | bytes) -> None:
        try:
            await self.write_message(text)
        except WebSocketClosedError as error:
            raise ConnectionError("the page has gone") from error


def _batch(body: bytes, coordinator: str) -> protocol.HubPost:
    """Return a post's body as a `HubPost`.

    Raises
    ------
    HTTPError
        If it is not one.
    """
    try:
        batch = coordinators.batch(body)
    except coordinators.VersionError as error:
        raise HTTPError(
            400, f"the kernel speaks {error}: install the same psnb in both places"
        ) from None
    except coordinators.MalformedError as error:
        raise HTTPError(400, f"the body is not a batch of updates: {error}") from None
    news: list[Any] = [*batch["updates"], *batch["replies"]]
    if any(each["coordinator"] != coordinator for each in news):
        raise HTTPError(400, "a post is about one coordinator, the one that its address names")
    return batch


def _too_large() -> HTTPError:
    return HTTPError(413, f"a post may have {MOST_BODY >> 20} MiB")
